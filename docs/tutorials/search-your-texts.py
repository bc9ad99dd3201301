# %% [markdown]
# # From a data frame to a searched corpus
#
# Twelve lines: improve a small language model on the texts of a data frame, write their vectors to
# a file, and search it.

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
# ## A better reading of your texts
#
# Any data frame with a column of texts will do; here it is news, and how long each text is. Fifty
# texts are few: if they do not show that another reading is better, the model stays as it is.

# %%
import pandas as pd
import layerscope
from layerscope.data import load_corpus

frame = pd.DataFrame({"text": load_corpus("lee", limit=50).texts})
frame["words"] = frame["text"].str.split().str.len()
better = layerscope.improve(
    "smollm2-135m", frame, max_length=48, templates=["one-word"], out="better"
)
better

# %% [markdown]
# ## Ask it
#
# Among the texts that were judged on, at once:

# %%
better.search("a fire in the mountains", top=3)

# %% [markdown]
# ## Vectors of all texts
#
# `embed` streams: a million rows take no more memory than these, and a run that is killed goes on.
# The other columns stay. Where each text lies is a picture by scikit-learn.

# %%
vectors = layerscope.embed("better", frame, "vectors.parquet")
found = layerscope.search("better", "an accident at sea", vectors, top=3)
found[["cosine", "words", "text"]]

# %%
import numpy as np
from sklearn.decomposition import PCA

table = pd.read_parquet(vectors)
table[["x", "y"]] = PCA(2, random_state=0).fit_transform(np.stack(table["vector"]))
table.plot.scatter("x", "y", c="words", colormap="viridis").figure
