"""Write an encoder with fewer blocks as the folder it came from, and verify it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.blocks.words import card
from layerscope.core.runs import MARKER
from layerscope.errors import ExportError
from layerscope.exporting.cutting import with_blocks, write_weights
from layerscope.exporting.servers import check_servers
from layerscope.exporting.verifying import HALF_TOLERANCE, TOLERANCE, cosine_distances, reload
from layerscope.store import atomic
from layerscope.version import VERSION

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".gguf")
_COPIED = (".json", ".txt", ".model", ".safetensors", ".jinja")
_OWN = ("layerscope.json", "manifest.json", "model.safetensors.index.json")
_VERIFIED = 20


@dataclass(frozen=True)
class MadeEncoder:
    """A variant of an encoder, ready to encode and to be written; `texts` verify its folder."""

    encoder: Encoder
    variant: Variant
    texts: Sequence[str]
    license: str

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of length 1."""
        if not texts:
            return np.empty((0, self.encoder.model.width), dtype=np.float32)
        return self.encoder.encode(self.variant, self.encoder.batches(texts))


@dataclass(frozen=True)
class Verification:
    """The comparison of a written folder's vectors with those measured."""

    texts: int
    cosine_distance: float
    tolerance: float
    versions: dict[str, str]


def write_export(
    made_encoder: MadeEncoder, manifest: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Write the model, its card and the marker of an export; return the manifest, completed."""
    write_folder(made_encoder.encoder, made_encoder.variant, folder)
    verification = verify_folder(
        made_encoder.encoder, made_encoder.variant, folder, made_encoder.texts[:_VERIFIED]
    )
    manifest = {
        **manifest,
        "verification": asdict(verification),
        "servers": check_servers(folder),
    }
    atomic.write_text(folder / "README.md", card(manifest, made_encoder.license))
    marker = {
        "kind": "encoder",
        "layerscope": VERSION,
        "base": manifest["model"],
        "license": made_encoder.license,
        "blocks": list(made_encoder.variant.blocks),
        "transformer": transformer_path(made_encoder.encoder.folder),
        "verification": manifest["verification"],
    }
    atomic.write_json(folder / MARKER, atomic.plain(marker))
    return manifest


def transformer_path(folder: Path) -> str:
    """Return the place of the transformer's files below a folder; empty for the folder itself."""
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
    source = encoder.folder
    place = transformer_path(encoder.folder)
    modules = json.loads((source / "modules.json").read_text(encoding="utf-8"))
    for path in dict.fromkeys(["", *(str(module["path"]) for module in modules)]):
        target = folder / path
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((source / path).glob("*")):
            is_weights = path == place and file.suffix in _WEIGHTS
            is_copied = file.suffix in _COPIED and file.name not in _OWN and not is_weights
            if file.is_file() and is_copied:
                shutil.copyfile(file, target / file.name)
    model = with_blocks(encoder.model, variant.blocks, variant.modules)
    write_weights(model, folder / place)


def verify_folder(
    encoder: Encoder, variant: Variant, folder: Path, texts: Sequence[str]
) -> Verification:
    """Load the folder in a fresh process and compare its vectors with those measured.

    Texts that the encoder would cut are left out: a run may read fewer tokens than the folder.
    """
    counts = encoder.token_counts(texts)
    short = [
        text
        for text, count in zip(texts, counts, strict=True)
        if text.strip() and count < encoder.max_length
    ] or ["A text."]
    vectors = encoder.encode(variant, encoder.batches(short))
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        (reloaded,), versions = reload([{"folder": str(folder), "texts": short}], Path(scratch))
    distance = float(np.nanmax(cosine_distances(vectors, reloaded)))
    tolerance = TOLERANCE.get(encoder.model.identity["dtype"], HALF_TOLERANCE)
    if not distance < tolerance:
        raise ExportError(
            f"blocks {list(variant.blocks)} of {encoder.folder.name} cannot be written: the folder "
            f"gives other vectors than were measured (cosine distance {distance:.1e}, allowed "
            f"{tolerance:.0e})."
        )
    return Verification(len(short), distance, tolerance, versions)
