# %% [markdown]
# # Read a profile, and do not be fooled by one token
#
# A well-known curve of language models: entropy is high in the first layers, falls into a valley in
# the middle, and rises again. The usual reading is that "the middle compresses". In this tutorial
# we measure the curve, and find that in this model one token makes the valley.

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
            "layerscope[gguf,report,export,mteb]",
        ],
        check=True,
    )

# %% [markdown]
# ## Measure every layer
#
# We use twenty news texts, cut to 96 tokens. `final_norm="raw"` reads the states as the blocks
# output them.

# %%
import pandas as pd

import layerscope

METRICS = ["prompt_entropy", "curvature", "sink_ratio", "sink_first"]
texts = {"limit": 20, "max_length": 96}
raw = layerscope.profile("smollm2-135m", "lee", final_norm="raw", metrics=METRICS, **texts)
raw

# %% [markdown]
# *Prompt entropy* measures how evenly the tokens of a text spread over directions: low means
# compressed. The curve has a valley. But look at the other curves at the same layers.
#
# ## The sink
#
# `sink_ratio` is the largest token's norm divided by the median norm. In the valley, one token has
# more than a hundred times the norm of the others, and `sink_first` says that it is the first token
# of nearly every text. layerscope calls the token with the largest norm the *sink*.

# %%
raw.wide(["prompt_entropy", "sink_ratio", "sink_first"]).iloc[8:16].round(2)

# %% [markdown]
# Entropy is computed after the mean of the states is subtracted. One token of huge norm decides that
# mean. Once the mean is subtracted, all other tokens look alike. So we leave that token out:

# %%
raw.plot(metrics=["prompt_entropy", "sink_ratio"], x="layer")

# %% [markdown]
# The dotted line is the same metric without the sink token. The valley is gone.
# layerscope always measures both, and says whether a valley comes from the sink (`is_sink`):

# %%
raw.summary()["valley"]

# %% [markdown]
# ## The final norm hides it too
#
# Most models normalize their states once more after the last block. If this final norm is applied
# at every layer, it scales the sink token down. That is the default of `profile`, because a cut model
# does the same.

# %%
applied = layerscope.profile("smollm2-135m", "lee", metrics=METRICS, **texts)
both = {"raw": raw.wide()["prompt_entropy"], "applied": applied.wide()["prompt_entropy"]}
pd.DataFrame(both).iloc[::3].round(2)

# %% [markdown]
# ## What to remember
#
# - A dip in a curve is not yet compression: first look at the curve without the sink.
# - Two curves can be compared only under the same conventions; a report of both says where they
#   differ.
# - For a paper, `raw.wide(["prompt_entropy"]).to_latex()` gives a table, and `raw.plot(other)`
#   draws two runs together.
# - Read on: [every metric explained](../metrics.md), and [what the paper says, what we
#   find](../../packages/layerscope-paper/docs/paper.md).
