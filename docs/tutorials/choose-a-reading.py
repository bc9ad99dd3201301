# %% [markdown]
# # Choose how to read your model
#
# A language model holds good sentence embeddings, but not where most people look for them. We let `improve` find out where and how to read a small model on short questions, and look at what it chose.

# %% tags=["colab"]
# On Colab, install layerscope first. Elsewhere this does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "layerscope[gguf,report,export,mteb,vision]"], check=True)

# %% [markdown]
# ## Texts without labels
#
# 100 of TREC's questions. Your own texts would be a list of strings, or a file: `layerscope.improve(model, "reviews.csv", column="text")`.

# %%
import layerscope
from layerscope.evaluation.tasks.catalogue import TASKS, fetch

rows = TASKS.get("TrecQuestions").read(fetch("TrecQuestions"))["train"]
questions = [row["text"] for row in rows[:100]]
questions[:4]

# %% [markdown]
# ## One call
#
# Every layer is read in several ways (a way is called a *readout*: the words around the text, how token states become one vector, whether the final norm is applied, whether a mean is subtracted). A small
# sentence encoder, `minilm-l6`, says for every candidate how well its neighborhoods agree with its own. No label is used.

# %%
better = layerscope.improve("smollm2-135m", questions, max_length=48)
better

# %% [markdown]
# Read the view from the top: the layer and readout, what the judge says of them against *today* (the last layer, averaged over tokens), and how much of the gain comes from the readout and how much from the
# layer. Usually it is the readout. Below are five of the questions with their nearest neighbors.
#
# ## All candidates
#
# The best layer of each readout, by the judge's score with its interval. The intervals of the first few overlap: candidates that cannot be told apart count as tied, and of those the cheapest is taken
# (`cost` is computation per text, today's being 1).

# %%
best = better.table.sort_values("score", ascending=False).groupby("readout", sort=False).first()
best[["layer", "score", "ci_low", "ci_high", "tied", "cost"]].head(8)

# %% [markdown]
# ## Use it
#
# `encode` works at once; vectors have length 1, so inner products are cosines.

# %%
pair = better.encode(["Who wrote Hamlet ?", "What author created Hamlet ?", "How far is the moon ?"])
print((pair @ pair.T).round(2))

# %% [markdown]
# To keep it, export it: a folder that sentence-transformers loads without layerscope.
#
# ```python
# better.save("better")
# ```
#
# ## What to take with you
#
# - The judge ranks candidates; it does not promise a score. If you have labels, even 32, let them decide: [from labels to a folder](from-labels-to-a-folder.md).
# - If the evidence is weak, `improve` leaves the model as it is and says why.
# - The choice is made for *these* texts. Another kind of text may want another readout.
