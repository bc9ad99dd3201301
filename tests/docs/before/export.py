"""The two folders that the page loads: a cut model, and one with an ONNX graph."""

import layerscope

layerscope.export("smollm2-135m", 2, out="better-smollm2", max_length=64)
layerscope.export("minilm-l6", 2, out="minilm-3", max_length=64, onnx=True)
