# %% [markdown]
# # Probe a vision model
#
# What can be read from each layer of an image model? In this tutorial we train probes (small
# classifiers) on the frozen states of all layers at once, and see where the classes are easiest to
# tell apart.

# %% tags=["colab"]
# On Colab, install layerscope first. Elsewhere this does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "layerscope[gguf,report,export,mteb,vision]",
            "layerscope-zoo",
        ],
        check=True,
    )

# %% [markdown]
# ## A model and pictures
#
# `mobile-sam` is the image encoder of MobileSAM, which was trained to segment objects, not to name
# them. `digits` are scikit-learn's handwritten digits. Both come from the package index, the model
# by way of `layerscope-zoo`. A folder with one subfolder per class (`photos/cat/*.jpg`) works as
# well: `layerscope.probe(model, "photos/")`.

# %%
import layerscope

run = layerscope.probe("mobile-sam", "digits", heads=["mean", "knn"], sample=200, epochs=12)
run

# %% [markdown] `mean` is a linear classifier on the mean over patches. `knn` learns nothing: the 20
# nearest training pictures vote. Bands are 95 % intervals.
#
# ## Which layer?
#
# The highest point of a curve is too optimistic, because it was picked on the test pictures. The
# fair answer is the layer that the *validation* pictures choose, judged on the test pictures:

# %%
for probe, told in run.summary()["probes"].items():
    low, high = told["gain_ci"]
    print(
        f"{probe}: layer {told['chosen_layer']}, {told['chosen']:.1%}; over the last layer {100 * told['gain']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
    )

# %% [markdown] Twenty validation pictures are few, as the notes above warn: the linear probe's
# choice, layer 0, turns out worse on the test pictures than the last layer. A fair test shows that.
# Use more pictures (`sample=2000`) before you rely on such a choice.
#
# If an interval includes zero, the layers cannot be told apart on so few pictures. `tied_best` in
# the table marks all layers that cannot be told from the best.

# %%
run.wide().round(3)

# %% [markdown]
# ## What the states look like
#
# The metrics of a profile work for images too: an image is a prompt, its patches are the tokens.

# %%
profile = layerscope.profile(
    "mobile-sam",
    "digits",
    limit=40,
    metrics=["prompt_entropy", "dataset_entropy", "effective_rank"],
)
profile

# %% [markdown]
# ## What to remember
#
# - Choose a layer on validation items, judge it on test items. `probe` does both for you and says
#   which is which.
# - A model that was trained for something else may be best before its last layer: [three image
#   models of one size](../vision-comparison.md).
# - Attention probes (`heads=["attention"]`) read every patch and take longer:
#   [probes](../probing.md).
