"""llama.cpp on the GGUF files: its own tokenizer, pooling from the file."""

from __future__ import annotations

import json

import numpy as np
from common import TEXTS, WORK, distance, told, wanted
from llama_cpp import Llama

far, parts = 0.0, []
for name in ("llama-mean", "llama-last", "gemma-mean"):
    folder = WORK / "folders" / name
    if not folder.is_dir():
        continue
    model = Llama(
        str(folder / "gguf" / "model.gguf"),
        embedding=True,
        n_ctx=512,
        n_batch=512,
        n_ubatch=512,
        verbose=False,
    )
    vectors = np.array([model.embed(text, normalize=False) for text in TEXTS])
    facts = json.loads((folder / "layerscope.json").read_text(encoding="utf-8"))
    one = distance(vectors, wanted(name))
    parts.append(f"{facts['base']['name']} {facts['readout'].removesuffix('/keep/none')} {one:.1e}")
    far = max(far, one)
told("llama-cpp-python", f"Llama.embed, {len(TEXTS)} texts: {'; '.join(parts)}", far)
