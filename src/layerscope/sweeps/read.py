"""A sweep's file: which models, checkpoints, corpora and tasks, and under which settings."""

from __future__ import annotations

import glob
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerscope.data import Corpus, load_corpus
from layerscope.metrics import Options
from layerscope.sweeps.checks import SweepFileError, entries, expect, only, texts

_TOP = ("out", "models", "corpora", "profile", "evaluate", "offline")
_MODEL = ("name", "revisions", "checkpoints")
_CORPUS = ("data", "column", "limit", "text_filter", "name")
# what a sweep sets itself, or what belongs to a single run
_NOT_PROFILE = {"model", "texts", "tokenizer", "out", "offline", "overwrite", "progress", "live", "engine", "address", "options"}
_NOT_PROFILE |= {"model_options", "limit", "column", "text_filter"}
_NOT_EVALUATE = {"model", "tokenizer", "out", "offline", "overwrite", "progress", "engine", "address", "model_options"}


@dataclass(frozen=True)
class ModelEntry:
    """One model at one revision or checkpoint, with its settings."""

    spec: str
    revision: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def spec_name(self) -> str:
        """How it is called in tables: a folder by its own name."""
        return Path(self.spec).name if self.spec.startswith(("/", ".", "~")) or Path(self.spec).is_absolute() else self.spec

    @property
    def label(self) -> str:
        """The same, with the revision."""
        return f"{self.spec_name}@{self.revision}" if self.revision else self.spec_name


@dataclass(frozen=True)
class CorpusEntry:
    """One corpus, and how it is read."""

    data: str
    column: str | None = None
    limit: int | None = None
    text_filter: str | None = None
    label: str = ""

    def load(self, offline: bool) -> Corpus:
        """Read its texts."""
        return load_corpus(self.data, column=self.column, limit=self.limit, text_filter=self.text_filter, offline=offline)


@dataclass(frozen=True)
class SweepConfig:
    """Everything that a sweep's file says."""

    models: list[ModelEntry]
    corpora: list[CorpusEntry]
    profile: dict[str, Any]
    evaluate: dict[str, Any] | None
    out: str | None
    offline: bool


def read_sweep(source: str | Path | Mapping[str, Any]) -> SweepConfig:
    """A checked configuration from a YAML file, or from a dict of the same shape."""
    if isinstance(source, Mapping):
        return _config(dict(source), Path())
    import yaml

    path = Path(source)
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SweepFileError(f"{path} cannot be read: {error.strerror}. Give a YAML file; docs/clusters.md shows one.") from error
    except yaml.YAMLError as error:
        raise SweepFileError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return _config(expect(held, dict, "the file", "a mapping with the key `models`"), path.parent)
    except SweepFileError as error:
        raise SweepFileError(f"{path}: {error}") from None


def _config(held: dict[str, Any], base: Path) -> SweepConfig:
    only(held, _TOP, "the sweep")
    if "models" not in held:
        raise SweepFileError("`models` is missing: a list of catalogue names, hub ids or folders.")
    models = [model for i, one in enumerate(entries(held["models"], "models")) for model in _models(one, f"models[{i}]", base)]
    settings = _settings(held.get("profile"), "profile", _profile_keys())
    evaluated = held.get("evaluate")
    scored = None if evaluated is None else _settings(evaluated, "evaluate", _evaluate_keys())
    default = [] if scored is not None and "profile" not in held else ["lee"]
    given = held.get("corpora", default)
    corpora = [_corpus(one, f"corpora[{i}]", base) for i, one in enumerate(entries(given, "corpora") if given else [])]
    out = held.get("out")
    return SweepConfig(
        models,
        corpora,
        settings,
        scored,
        None if out is None else str(expect(out, str, "out", "a folder's name")),
        bool(expect(held.get("offline", False), bool, "offline", "true or false")),
    )


def _models(one: Any, where: str, base: Path) -> list[ModelEntry]:
    if isinstance(one, str):
        return [ModelEntry(_located(one, base))]
    expect(one, dict, where, "a name, or a mapping with the key `name`")
    options = _model_keys()
    only(one, [*_MODEL, *options], where)
    if "name" not in one and "checkpoints" not in one:
        raise SweepFileError(f"{where} needs a `name` (catalogue name, hub id or folder), or `checkpoints` (folders).")
    chosen = {k: v for k, v in one.items() if k in options}
    if "checkpoints" in one:
        if "revisions" in one or "name" in one:
            raise SweepFileError(f"{where} has `checkpoints`, which are folders: `name` and `revisions` go with hub models.")
        folders = [
            path for pattern in texts(one["checkpoints"], f"{where}.checkpoints") for path in _matches(pattern, base, where)
        ]
        return [ModelEntry(path, None, chosen) for path in folders]
    spec = _located(str(expect(one["name"], str, f"{where}.name", "a model's name")), base)
    revisions: list[str | None] = [*texts(one["revisions"], f"{where}.revisions")] if "revisions" in one else [None]
    return [ModelEntry(spec, revision, chosen) for revision in revisions]


def _matches(pattern: str, base: Path, where: str) -> list[str]:
    found = sorted(glob.glob(str((base / Path(pattern).expanduser()).absolute())), key=_by_number)
    if not found:
        raise SweepFileError(f"{where}.checkpoints: no folder matches {pattern!r} (looked in {base.absolute()}).")
    return found


def _by_number(path: str) -> tuple[int, str]:
    """Step 900 before step 1000."""
    digits = "".join(c for c in Path(path).name if c.isdigit())
    return int(digits or 0), path


def _located(name: str, base: Path) -> str:
    """A path in the file is meant from where the file is; anything else is a name."""
    path = base / Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _corpus(one: Any, where: str, base: Path) -> CorpusEntry:
    held = {"data": one} if isinstance(one, str) else expect(one, dict, where, "a name, or a mapping with the key `data`")
    only(held, _CORPUS, where)
    if "data" not in held:
        raise SweepFileError(f"{where} needs `data`: a corpus name, a file or a hub dataset.")
    data = str(expect(held["data"], str, f"{where}.data", "a corpus name, a file or a hub dataset"))
    if held.get("limit") is not None:
        expect(held["limit"], int, f"{where}.limit", "a whole number of texts")
    reading: dict[str, Any] = {key: held.get(key) for key in ("column", "limit", "text_filter")}
    return CorpusEntry(_located(data, base), **reading, label=str(held.get("name") or Path(data).stem or data))


def _settings(held: Any, where: str, valid: list[str]) -> dict[str, Any]:
    settings = expect({} if held is None else held, dict, where, "a mapping of settings")
    only(settings, valid, where)
    return dict(settings)


def _parameters(function: Any, without: set[str]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in without]


def _profile_keys() -> list[str]:
    from layerscope.profiling import profile

    return sorted({*_parameters(profile, _NOT_PROFILE), *Options.__dataclass_fields__})


def _evaluate_keys() -> list[str]:
    from layerscope.evaluation.job import evaluate

    return _parameters(evaluate, _NOT_EVALUATE)


def _model_keys() -> list[str]:
    from layerscope.models import load

    return _parameters(load, {"spec", "revision", "offline"})
