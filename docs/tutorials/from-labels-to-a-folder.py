# %% [markdown]
# # From a labeled CSV to a deployed folder
#
# You have some eighty labeled examples and want a small model in production. We choose layer and readout with the labels, see how sure the choice is, cut the model there, and load the folder without layerscope.

# %% tags=["colab"]
# On Colab, install layerscope first. Elsewhere this does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "layerscope[gguf,report,export,mteb,vision]"], check=True)

# %% [markdown]
# ## A labeled file
#
# Columns `text` and `label`. Here: 80 of TREC's questions with the kind of answer they ask for; 100 more are kept for the end.

# %%
import csv

import layerscope
from layerscope.evaluation.tasks.catalogue import TASKS, fetch

rows = TASKS.get("TrecQuestions").read(fetch("TrecQuestions"))["train"][:180]
known, unseen = rows[:80], rows[80:]
with open("questions.csv", "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["text", "label"])
    table.writerows([row["text"], row["label"]] for row in known)

# %% [markdown]
# ## Choose
#
# Every layer under every readout is judged by the labels. What the choice is worth is measured on examples that had no part in it.

#
# We offer only readouts that a sentence-transformers folder can hold: it can put words around a text, but neither repeat it (`echo`) nor leave out its largest token (`drop`).

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
# *Tied* layers cannot be told from the chosen one with so few labels. That is useful: a tied layer further down makes a smaller model. `budget=0.5` asks for at most half of the blocks:

# %%
small = layerscope.select("smollm2-135m", labels="questions.csv", readouts=READOUTS, budget=0.5)
print(f"whole: layer {choice.layer} of {choice.layers}, {choice.readout}")
print(f"small: layer {small.layer} of {small.layers}, {small.readout}; {small.blocks_saved} blocks need not run")

# %% [markdown]
# ## Export
#
# The model is cut, written as a sentence-transformers folder, loaded in a fresh process and compared. Only then does the folder get its name. We write three: the choice, the smaller one, and what you would have
# used without choosing. (`brief` compares on the shorter texts only, which is quicker.)

# %%
layerscope.export("smollm2-135m", from_run=choice, out="chosen", center_on="questions.csv", brief=True)
layerscope.export("smollm2-135m", from_run=small, out="small", center_on="questions.csv", brief=True)
layerscope.export("smollm2-135m", choice.layers, out="today", brief=True)

# %% [markdown]
# ## Deploy
#
# From here on layerscope is not needed. A question gets the class whose center is nearest, from 80 examples; it is judged on 100 that nothing has seen.

# %%
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

labels = np.array([row["label"] for row in known])
truth = np.array([row["label"] for row in unseen])


def accuracy(folder):
    model = SentenceTransformer(folder)
    examples = model.encode([row["text"] for row in known], normalize_embeddings=True)
    centers = np.stack([examples[labels == label].mean(axis=0) for label in np.unique(labels)])
    nearest = model.encode([row["text"] for row in unseen], normalize_embeddings=True) @ centers.T
    return (np.unique(labels)[nearest.argmax(axis=1)] == truth).mean()


for folder in ("today", "chosen", "small"):
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6
    print(f"{folder:7} {accuracy(folder):.0%} right, {size:.0f} MB")

# %% [markdown]
# ## What to take with you
#
# - Labels decide better than any rule; 64 find most of what there is to gain: [how well it does](../few-labels.md#how-well-it-does).
# - Where the evidence is weak the last layer stays, and the choice says so.
# - `layerscope export --onnx` adds a graph that needs neither torch nor sentence-transformers; `layerscope bench` measures the speed: [export](../export.md).
