# %% [markdown]
# # From a labeled CSV to a deployed folder
#
# You have about eighty labeled examples and want a small model in production. In this tutorial we
# choose a layer and a readout with the labels, see how sure the choice is, cut the model at that
# layer, and load the exported folder without layerscope.

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
# ## A labeled file
#
# The file has the columns `text` and `label`. Here it holds 80 questions of the TREC dataset,
# labeled with the kind of answer they ask for. We keep 100 more for the final test.

# %%
import csv

import layerscope
from layerscope.evaluation.tasks import TASKS

rows = TASKS.get("TrecQuestions").splits()["train"][:180]
known, unseen = rows[:80], rows[80:]
with open("questions.csv", "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["text", "label"])
    table.writerows([row["text"], row["label"]] for row in known)

# %% [markdown]
# ## Choose
#
# The labels judge every layer under every readout (how a text becomes one vector). The gain of the
# choice is measured on examples that had no part in it.
#
# We list only readouts that a sentence-transformers folder can hold: it can put words around a
# text, but it can neither repeat the text (`echo`) nor leave out its largest token (`drop`).

# %%
READOUTS = [
    f"{start}/{norm}/keep/{centering}"
    for start in ("plain/mean", "one-word/last")
    for norm in ("applied", "raw")
    for centering in ("none", "corpus")
]
choice = layerscope.select("smollm2-135m", labels="questions.csv", readouts=READOUTS)
choice

# %% [markdown]
# With so few labels, *tied* layers cannot be told from the chosen one. That is
# useful: a tied layer further down makes a smaller model. `max_blocks=0.5` asks for at most half of
# the blocks:

# %%
small = layerscope.select("smollm2-135m", labels="questions.csv", readouts=READOUTS, max_blocks=0.5)
print(f"whole: layer {choice.layer} of {choice.layers}, {choice.readout}")
print(
    f"small: layer {small.layer} of {small.layers}, {small.readout}; {small.blocks_saved} blocks need not run"
)

# %% [markdown]
# ## Export
#
# `export` cuts the model, writes it as a sentence-transformers folder, loads that folder in a fresh
# process and compares its vectors with the original's. Only then does the folder get its final
# name. If the readout is centered, `center_on` names the texts whose mean is subtracted.

# %%
center_on = "questions.csv" if small.how.centering == "corpus" else None
done = layerscope.export("smollm2-135m", choice=small, out="deployed", center_on=center_on)
print(*sorted(path.name for path in done.path.iterdir()), sep="\n")

# %% [markdown]
# ## Deploy
#
# From here on layerscope is not needed.

# %%
import numpy as np
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("deployed")
examples = model.encode([row["text"] for row in known], normalize_embeddings=True)
labels = np.array([row["label"] for row in known])
centers = np.stack([examples[labels == label].mean(axis=0) for label in np.unique(labels)])


def classify(texts):
    nearest = model.encode(texts, normalize_embeddings=True) @ centers.T
    return np.unique(labels)[nearest.argmax(axis=1)]


right = classify([row["text"] for row in unseen]) == np.array([row["label"] for row in unseen])
print(f"nearest class center: {right.mean():.0%} of {len(unseen)} questions that nothing has seen")

# %% [markdown]
# That is the small model, with a classifier that only compares with class means. If quality matters
# more than speed, export `choice` instead of `small`.
#
# ## What to remember
#
# - 64 labels find most of the possible gain: [choosing with labels](../results.md#choosing-with-labels).
# - If the evidence is weak, the choice stays with the last layer and says so.
# - `layerscope export --format onnx` adds a graph that needs neither torch nor sentence-transformers:
#   [export](../export.md).
