"""Reading what a path holds: a run of some kind, or the choice of a layer."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from layerscope.errors import RunFolderError


def load_any(path: str | Path) -> Any:
    """Whatever run a folder holds, or the choice of a layer in a .json file."""
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Run
    from layerscope.store import RunFolder

    if Path(path).is_file() and Path(path).suffix == ".json":
        return load_choice(Path(path))
    manifest = RunFolder(path).manifest()
    if manifest is None:
        raise RunFolderError(
            f"{path} holds no run: there is no manifest.json in it. Give folders written by profile or evaluate."
        )
    kind = manifest.get("kind")
    if kind == "evaluation":
        return Evaluation.load(path)
    if kind == "profile":
        return Run.load(path)
    raise RunFolderError(f"{path} holds a run of kind {kind!r}; a report reads profiles and evaluations.")


def load_choice(path: Path) -> Any:
    """A choice of a layer as `select` writes it."""
    from layerscope.selection import Choice

    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return Choice(**{f.name: held[f.name] for f in fields(Choice) if f.name in held})
    except (ValueError, TypeError, OSError) as error:
        raise RunFolderError(f"{path} holds no choice of a layer ({error}). `layerscope select --json` writes one.") from None
