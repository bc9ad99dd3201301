"""What the layers belong to: a model by name or folder, or a run's folder, whose manifest names the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from layerscope.core.readout import Readout, all_readouts, get_template, kinds_of, parse_readouts
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError, ModelError, RunFolderError
from layerscope.evaluation.encode import space_description
from layerscope.models import LoadedModel, load
from layerscope.selection.labels.vectors import by_template
from layerscope.store import RunFolder
from layerscope.store.embeddings import EmbeddingStore, Space, text_key
from layerscope.store.folder import MANIFEST

DEFAULT_MAX_LENGTH = 256


@dataclass
class Opened:
    """A model that may not be loaded yet: where a run's vectors of all texts are in the store, it need not be."""

    identity: dict[str, Any]
    max_length: int
    unit: bool
    run: Path | None = None
    model: LoadedModel | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.identity["name"])

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.identity["n_blocks"])

    def loaded(self, offline: bool) -> LoadedModel:
        """The model itself; an error where it is not the one that the run was made with."""
        if self.model is not None:
            return self.model
        spec, revision = self.name, self.identity.get("revision")
        if self.identity.get("source") not in ("catalogue", "hub"):
            raise ModelError(
                f"{self.run} was made with {self.name!r}, a model on disk or in memory whose place it does not know, and the "
                "store does not hold the vectors of these examples. Give the model itself in place of the run."
            )
        options = {"revision": revision} if self.identity["source"] == "hub" and revision else {}
        dtype, both = str(self.identity.get("dtype", "float32")), bool(self.identity.get("bidirectional"))
        if self.identity.get("adapters"):
            raise ModelError(f"{self.run} was made with adapters. Give the adapted model itself in place of the run.")
        model = load(spec, offline=offline, dtype=dtype, **options)
        if both and not model.identity["bidirectional"]:
            model = load(spec, offline=offline, dtype=dtype, bidirectional=True, **options)
        if model.identity["weights_sha256"] != self.identity.get("weights_sha256"):
            raise ModelError(f"{self.name!r} is not the model that {self.run} was made with: its weights differ.")
        self.model = model
        return model

    def readouts(self, given: str | Sequence[str] | None, offline: bool) -> list[Readout]:
        """The readouts to compare, the default one always among them; all where none are named."""
        if self.model is None and not self.identity.get("bidirectional"):
            has_cls, has_norm = False, True
        else:
            model = self.loaded(offline)
            has_cls = bool(model.identity["bidirectional"]) and getattr(model.tokenizer, "cls_token_id", None) is not None
            has_norm = model.anatomy.final_norm is not None
        found = all_readouts(has_cls=has_cls, has_norm=has_norm) if given is None else parse_readouts(given, has_cls, has_norm)
        return list(dict.fromkeys([Readout(), *found]))

    def layers(self, given: Sequence[int] | None) -> list[int]:
        """The layers to compare, the last one always among them."""
        count = self.n_blocks
        if given is None:
            return list(range(count + 1))
        wanted = {layer if layer >= 0 else count + 1 + layer for layer in given} | {count}
        wrong = sorted(layer for layer in wanted if not 0 <= layer <= count)
        if wrong:
            raise LayerscopeError(f"layer {wrong[0]} does not exist: {self.name} has layers 0 to {count} (or -1 for the last).")
        return sorted(wanted)

    def held(
        self, store: EmbeddingStore, texts: Sequence[str], readouts: Sequence[Readout], layers: Sequence[int]
    ) -> dict[str, Space] | None:
        """The spaces of the store by template, if they hold everything; nothing is made where they do not exist."""
        keys, sites = [text_key(text) for text in texts], [site_of(layer) for layer in layers]
        described = cast(LoadedModel, SimpleNamespace(identity=self.identity))
        known = {info.key for info in store.spaces()} if store.root.exists() else set()
        spaces = {}
        for name, group in by_template(readouts).items():
            description = space_description(described, get_template(name), self.max_length)
            space = store.space(description)
            if space.key not in known or not bool(space.has(keys, kinds_of(group), sites).all()):
                return None
            spaces[name] = space
        return spaces


def open_source(source: str | Path | LoadedModel, max_length: int | None, offline: bool) -> Opened:
    """Find out what was given; a model named is loaded, a run's is not yet."""
    if isinstance(source, LoadedModel):
        return _of_model(source, max_length)
    folder = Path(source)
    if not (folder / MANIFEST).is_file() or (folder / "config.json").is_file():
        a_model = [path for pattern in ("config.json", "modules.json", "*.gguf") for path in folder.glob(pattern)]
        if folder.is_dir() and not a_model:
            raise LayerscopeError(
                f"{folder} is neither a run (no {MANIFEST}) nor a model (no config.json). Give one of them, or a model's name."
            )
        return _of_model(load(source, offline=offline), max_length)
    manifest = RunFolder(folder).manifest() or {}
    if manifest.get("status") != "complete" or "model" not in manifest:
        raise RunFolderError(f"the run in {folder} is not finished. Run the same command again: it goes on where it stopped.")
    conventions = manifest.get("conventions", {})
    identity = manifest["model"]
    length = max_length or int(conventions.get("max_length") or DEFAULT_MAX_LENGTH)
    unit = bool(conventions.get("unit_length", identity.get("normalizes")))
    return Opened(identity, _capped(length, identity.get("context_length")), unit, folder)


def _of_model(model: LoadedModel, max_length: int | None) -> Opened:
    length = _capped(max_length or DEFAULT_MAX_LENGTH, model.max_length)
    return Opened(model.identity, length, bool(model.identity.get("normalizes")), None, model)


def _capped(length: int, limit: int | None) -> int:
    return length if limit is None else min(length, limit)
