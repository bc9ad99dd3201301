"""StaticModel.from_pretrained on the static model; what it should be is the mean of the stored rows."""

from __future__ import annotations

import numpy as np
from common import FOLDER, TEXTS, distance, told
from model2vec import StaticModel
from safetensors.numpy import load_file
from tokenizers import Tokenizer

folder = FOLDER / "model2vec"
model = StaticModel.from_pretrained(folder)
table = load_file(folder / "model.safetensors")["embeddings"].astype(np.float64)
core = Tokenizer.from_file(str(folder / "tokenizer.json"))
unknown = core.token_to_id("[UNK]")
rows = [[token for token in core.encode(text, add_special_tokens=False).ids if token != unknown] for text in TEXTS]
known = [i for i, row in enumerate(rows) if row]
expected = np.array([table[rows[i]].mean(0) for i in known])
told(
    "model2vec",
    f"StaticModel.encode against the table's rows, {len(known)} texts",
    distance(model.encode(TEXTS)[known], expected),
)
