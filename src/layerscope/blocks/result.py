"""The result of `improve` for a sentence encoder: the encoder with fewer blocks, written as the
folder it came from and verified."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from rich.markup import escape

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.blocks.words import card, facts, headline
from layerscope.core.runs import MARKER, view
from layerscope.errors import ExportError, LayerscopeError
from layerscope.exporting.cutting import with_blocks, write_weights
from layerscope.exporting.pipeline import load_folder
from layerscope.exporting.publishing import published
from layerscope.exporting.servers import check_servers
from layerscope.exporting.verifying import HALF_TOLERANCE, TOLERANCE, cosine_distances, reload
from layerscope.models.settings import quiet
from layerscope.store import RunFolder, StoredRun, atomic
from layerscope.terminal import Console, print_facts, print_frame, print_notes
from layerscope.version import VERSION

if TYPE_CHECKING:
    from layerscope.core.charts import Figure

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


def write_export(
    made_encoder: MadeEncoder, manifest: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Write the model, its card and the marker of an export; return the manifest, completed."""
    encoder = made_encoder.encoder
    variant = made_encoder.variant
    write_folder(encoder, variant, folder)
    verification = verify_folder(encoder, variant, folder, made_encoder.texts[:_VERIFIED])
    manifest = {**manifest, "verification": verification, "servers": check_servers(folder)}
    atomic.write_text(folder / "README.md", card(manifest, made_encoder.license))
    marker = {
        "kind": "encoder",
        "layerscope": VERSION,
        "base": manifest["model"],
        "license": made_encoder.license,
        "blocks": list(variant.blocks),
        "transformer": transformer_path(encoder.folder),
        "verification": verification,
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
) -> dict[str, Any]:
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
    return {
        "texts": len(short),
        "cosine_distance": distance,
        "tolerance": tolerance,
        "versions": versions,
    }


@dataclass(repr=False)
class FasterEncoder(StoredRun):
    """A sentence encoder with fewer blocks.

    - `front`: every candidate: how many blocks, which, refitted or as they are, cost, agreement
      with the whole encoder (with its interval), and the share of nearest neighbors that are the
      same.
    - `removals`: each step of the search: how close the encoder stays after each possible removal.
    - `folder`: the exported sentence-transformers folder, None if `out` was not given.

        faster = layerscope.improve("minilm-l6", texts, budget=0.5, out="faster")
        faster.encode(["how do I reset my card?"])
    """

    kind: ClassVar[str] = "encoder"
    files: ClassVar[dict[str, str]] = {"front": "front", "removals": "removals"}

    front: pd.DataFrame
    removals: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    _made: MadeEncoder | None = field(default=None, repr=False, compare=False)

    @property
    def folder(self) -> Path | None:
        """The exported folder, which holds the run as well."""
        return self.path

    @property
    def model(self) -> str:
        """The name of the whole encoder."""
        return str(self.manifest["model"]["name"])

    @property
    def name(self) -> str:
        """The encoder and the texts."""
        return f"{self.model} on {self.manifest['texts']['name']}"

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that remain, numbered from 0 as in the whole encoder."""
        return tuple(self.manifest["choice"]["blocks"])

    @property
    def warnings(self) -> list[str]:
        """Notes that a user should know before using the result."""
        return list(self.manifest["warnings"])

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return vectors (texts, D) of texts, or (D,) of one text, of length 1."""
        if isinstance(texts, str):
            vector: np.ndarray = self.encode([texts])[0]
            return vector
        if self._made is not None:
            return self._made.encode(texts)
        if self.path is None:
            raise LayerscopeError("this encoder was not saved. Save it first: faster.save(FOLDER).")
        with quiet():
            loaded = load_folder(self.path)
        vectors = loaded.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def save(self, out: str | Path, overwrite: bool = False) -> Path:  # type: ignore[override]
        """Write the sentence-transformers folder, verified in a fresh process.

        It appears complete or not at all.
        """
        if self._made is None:
            raise LayerscopeError(
                f"this run was read from disk; its model is in {self.folder}. Copy that folder."
            )
        with published(Path(out), overwrite) as folder:
            manifest = write_export(self._made, self.manifest, folder)
            run = RunFolder(folder)
            self.write(run)
            self.manifest = run.write_manifest(manifest)
        self.path = Path(out)
        return self.path

    def plot(self) -> Figure:
        """Draw what each block's removal costs, and the agreement by the share of blocks kept."""
        figure: Figure = view("encoder", "plot")(self)
        return figure

    def summary(self) -> dict[str, Any]:
        """Return what a reader wants first, as plain values."""
        names = ("model", "texts", "choice", "claim", "labels", "speed", "seconds", "conventions")
        return {
            "folder": None if self.folder is None else str(self.folder),
            **{name: self.manifest.get(name) for name in names},
            "front": self.front.to_dict(orient="records"),
            "warnings": self.warnings,
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the summary as JSON."""
        return json.dumps(self.summary(), indent=indent, ensure_ascii=False, default=str)

    def __repr__(self) -> str:
        place = "not saved" if self.folder is None else f"in {self.folder}"
        count = f"{len(self.blocks)} of {self.manifest['model']['n_blocks']} blocks"
        return f"<FasterEncoder {self.name}: {count}; {place}>"

    def __str__(self) -> str:
        return str(view("encoder", "text")(self))


def print_faster(result: FasterEncoder, console: Console | None = None) -> None:
    """Print the headline, the facts, the front, notes, and how to use the folder."""
    console = console or Console(highlight=False)
    console.print(escape(f"{headline(result.manifest)}."), style="bold")
    print_facts(console, facts(result.manifest))
    rows = [
        {
            "blocks": row["count"],
            "which": row["blocks"],
            "weights": row["weights"],
            "cost": f"{row['cost']:.2f}",
            "agreement": f"{row['agreement']:.3f}",
            "same neighbors": f"{row['neighbors']:.0%}",
            "": "chosen" if row["chosen"] else "",
        }
        for row in result.front.to_dict(orient="records")
    ]
    print_frame(console, rows, list(rows[0]))
    print_notes(console, result.warnings)
    if result.folder is not None:
        folder = escape(str(result.folder))
        console.print(f'Use it: [bold]SentenceTransformer("{folder}")[/].encode(texts)')


def as_text(result: FasterEncoder) -> str:
    """Return the same as plain text."""
    stream = io.StringIO()
    print_faster(result, Console(file=stream, width=200, highlight=False, color_system=None))
    return stream.getvalue()
