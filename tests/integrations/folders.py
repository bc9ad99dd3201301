"""The folders that the programs open, and what layerscope captures in the whole models for the same
texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import layerscope
from layerscope.core.readout import Readout
from layerscope.exporting.draft import LONG, SHORT
from layerscope.exporting.verifying import pooled_vectors
from layerscope.models import open_model

TEXTS = [*(text for text in SHORT if text == text.strip()), LONG[0].strip()]
FOLDERS = {  # name: model, layer, readout, formats
    "minilm": ("minilm-l6", 4, "plain/mean/applied", ["onnx"]),
    "llama-mean": ("smollm2-135m", 5, "plain/mean/applied", ["gguf"]),
    "llama-last": ("smollm2-135m", 12, "plain/last/raw", ["gguf"]),
    "gemma-mean": ("gemma3-270m", 8, "plain/mean/applied", ["gguf"]),
}


def main(work: Path, names: Sequence[str] = ()) -> None:
    """Export what is not there yet; all, or those named."""
    (work / "texts.json").write_text(json.dumps(TEXTS), encoding="utf-8")
    for name in names or FOLDERS:
        model, layer, readout, formats = FOLDERS[name]
        folder = work / "folders" / name
        if (work / f"{name}.npy").exists():
            continue
        loaded = open_model(model, None, {})
        layerscope.export(
            loaded,
            layer,
            readout=readout,
            out=folder,
            formats=formats,
            overwrite=True,
            normalize=False,
        )
        ids = loaded.tokenizer(TEXTS)["input_ids"]
        if name == "minilm":  # what `embed` writes, for programs that read tables of vectors
            layerscope.embed(str(folder), TEXTS, work / "vectors.parquet", overwrite=True)
        np.save(work / f"{name}.npy", pooled_vectors(loaded, ids, layer, Readout.parse(readout)))
        print(f"{folder}: {model}, layer {layer}, {readout}, {', '.join(formats)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
