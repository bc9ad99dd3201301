"""fastembed's TextEmbedding on the exported graph, which pools itself.

py_rust_stemmers has no wheel for Linux on ARM. fastembed imports it for BM25 alone, so that an
empty one stands in for it here.
"""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec

if find_spec("py_rust_stemmers") is None:
    sys.modules["py_rust_stemmers"] = types.ModuleType("py_rust_stemmers")
    sys.modules["py_rust_stemmers"].SnowballStemmer = None  # type: ignore[attr-defined]

import numpy as np
from common import FOLDER, TEXTS, distance, told, wanted
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

TextEmbedding.add_custom_model(
    model="layerscope/minilm",
    pooling=PoolingType.DISABLED,
    normalization=False,
    sources=ModelSource(hf="layerscope/minilm"),
    dim=wanted().shape[1],
    model_file="onnx/model.onnx",
)
model = TextEmbedding("layerscope/minilm", specific_model_path=str(FOLDER), local_files_only=True)
told(
    "fastembed",
    f"TextEmbedding.embed, {len(TEXTS)} texts",
    distance(np.array(list(model.embed(TEXTS))), wanted()),
)
