"""fastembed's TextEmbedding on the exported graph, which pools itself."""

from __future__ import annotations

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
told("fastembed", f"TextEmbedding.embed, {len(TEXTS)} texts", distance(np.array(list(model.embed(TEXTS))), wanted()))
