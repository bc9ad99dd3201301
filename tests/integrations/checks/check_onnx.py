"""onnxruntime on the exported graph, with the tokenizers package alone."""

from __future__ import annotations

import numpy as np
import onnxruntime
from common import FOLDER, TEXTS, distance, told, wanted
from tokenizers import Tokenizer

core = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
core.enable_padding(pad_id=0)
rows = core.encode_batch(TEXTS)
session = onnxruntime.InferenceSession(
    str(FOLDER / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
)
given = {
    "input_ids": np.array([row.ids for row in rows]),
    "attention_mask": np.array([row.attention_mask for row in rows]),
}
told(
    "onnxruntime",
    f"sentence_embedding, {len(TEXTS)} texts",
    distance(session.run(["sentence_embedding"], given)[0], wanted()),
)
