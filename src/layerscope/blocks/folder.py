"""Write an encoder with fewer blocks as the folder it came from, and verify it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.errors import ExportError
from layerscope.exporting.cutting import with_blocks, write_weights
from layerscope.exporting.verifying import HALF_TOLERANCE, TOLERANCE, cosine_distances, reload

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".gguf")
_COPIED = (".json", ".txt", ".model", ".safetensors", ".jinja")
_OWN = ("layerscope.json", "manifest.json", "model.safetensors.index.json")


def transformer_path(folder: Path) -> str:
    """Return where below a folder the transformer's files are; empty for the folder itself."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    return str(modules[0]["path"])


def reads_last_state(folder: Path) -> bool:
    """Return whether a folder's pipeline pools the last state, not one of an inner layer."""
    settings = folder / transformer_path(folder) / "sentence_bert_config.json"
    if not settings.is_file():
        return True
    output = json.loads(settings.read_text(encoding="utf-8")).get("modality_config") or {}
    names = (output.get("text") or {}).get("method_output_name", "last_hidden_state")
    return "hidden_states" not in names


def write_folder(encoder: Encoder, variant: Variant, folder: Path) -> None:
    """Copy the encoder's folder with other blocks in it; pooling, prompts and tokenizer stay."""
    source, place = encoder.folder, transformer_path(encoder.folder)
    modules = json.loads((source / "modules.json").read_text(encoding="utf-8"))
    for path in dict.fromkeys(["", *(str(module["path"]) for module in modules)]):
        target = folder / path
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((source / path).glob("*")):
            weights = path == place and file.suffix in _WEIGHTS
            if file.is_file() and file.suffix in _COPIED and file.name not in _OWN and not weights:
                shutil.copyfile(file, target / file.name)
    part = with_blocks(encoder.model, variant.blocks, variant.modules)
    write_weights(part, folder / place)


def verify_folder(
    encoder: Encoder, variant: Variant, folder: Path, texts: Sequence[str]
) -> dict[str, Any]:
    """Load the folder in a fresh process and compare its vectors with those measured.

    Texts that the encoder would cut are left out: a run may read fewer tokens than the folder.
    """
    lengths = [len(row) for row in encoder.model.tokenize(texts).ids]
    short = [
        text
        for text, n in zip(texts, lengths, strict=True)
        if text.strip() and n < encoder.max_length
    ] or ["A text."]
    vectors = encoder.encode(variant, encoder.batches(short))
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        job = {"folder": str(folder), "texts": short, "probes": [], "index": None}
        (arrays,), versions = reload([job], Path(scratch))
    if versions.pop("layerscope_loaded"):
        raise ExportError("the fresh process loaded layerscope, so the check says nothing.")
    distance = float(np.nanmax(cosine_distances(vectors, arrays["vectors"])))
    tolerance = TOLERANCE.get(encoder.model.identity["dtype"], HALF_TOLERANCE)
    if not distance < tolerance:
        raise ExportError(
            f"blocks {list(variant.blocks)} of {encoder.folder.name} cannot be written: the folder "
            f"gives other vectors than were measured (cosine distance {distance:.1e}, allowed "
            f"{tolerance:.0e})."
        )
    return {
        "texts": len(short),
        "cosine_distance": distance,
        "tolerance": tolerance,
        "versions": versions,
    }
