# %% [markdown]
# # Choose how to read your model
#
# A language model holds good sentence embeddings, but often not where people look for them: the
# last layer, averaged over tokens. In this tutorial `improve` finds a better layer and a better way
# to read it, for a small model and short questions, and we look at what it chose.

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
# ## Texts without labels
#
# We use 100 questions of the TREC dataset. Your own texts can be a list of strings, or a file:
# `layerscope.improve(model, "reviews.csv", column="text")`.

# %%
import layerscope
from layerscope.evaluation.tasks.catalogue import TASKS

rows = TASKS.get("TrecQuestions").splits()["train"]
questions = [row["text"] for row in rows[:100]]
questions[:4]

# %% [markdown]
# ## One call
#
# Every layer is read in several ways, called *readouts*. The name of a readout has five parts, as
# in `one-word/last/applied/keep/corpus`: the words around the text (template), how token states
# become one vector (pooling), whether the final norm is `applied` or not (`raw`), whether the token
# with the largest norm is kept or dropped, and whether the mean of the texts is subtracted
# (`corpus`) or not (`none`).
#
# One more way is fitted to your texts, without labels: a *head*, a linear map of the plain reading
# of a layer (`plain/mean/applied/keep/head`). It learns to agree with the best prompt and the
# judge, and needs no prompt afterwards.
#
# A *candidate* is a layer with a readout. A small sentence encoder, `minilm-l6`, is the judge: a
# candidate scores high if texts have the same neighbors in its space as in the judge's. No labels
# are used. Heads are judged on texts that they were not fitted on.

# %%
better = layerscope.improve("smollm2-135m", questions, max_length=48)
better

# %% [markdown]
# Read the output from the top: the layer and readout; the judge's score against
# *today* (the last layer, averaged over tokens); and how much of the gain comes from the readout
# and how much from the layer. Usually most of it comes from the readout. The output ends with five
# of the questions and their nearest neighbors.
#
# ## All candidates
#
# The table has the best layer of each readout, by the judge's score with its interval. Candidates
# whose scores are practically equal to the best on the same texts count as tied, and the cheapest
# of them is chosen (`cost` is the computation per text, relative to today; `budget=0.5` chooses
# among those that cost at most half). The intervals of the first few overlap: with other texts,
# another of them might have come first.

# %%
best = better.table.sort_values("score", ascending=False).groupby("readout", sort=False).first()
best[["layer", "score", "ci_low", "ci_high", "tied", "cost"]].head(8)

# %% [markdown]
# ## Use it
#
# `encode` works right away. Its vectors have length 1, so inner products are cosine similarities.

# %%
pair = better.encode(
    ["Who wrote Hamlet ?", "What author created Hamlet ?", "How far is the moon ?"]
)
print((pair @ pair.T).round(2))

# %% [markdown]
# To keep the result, export it as a folder that sentence-transformers loads without layerscope:
#
# ```python
# better.save("better")
# ```
#
# ## What to remember
#
# - The judge ranks candidates; it does not promise a score. If you have labels, even 32, let them
#   decide: [from labels to a folder](from-labels-to-a-folder.md).
# - If the evidence is weak, `improve` leaves the model as it is and says why.
# - The choice is made for *these* texts. Another kind of text may need another readout.
