"""The result of one task at one layer under one readout, and the file that holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from layerscope.core.readout import Readout
from layerscope.evaluation.items import ItemScores
from layerscope.store import checked

__all__ = ["ScoreResult", "SplitScore", "write_result"]

ItemsByPart = Mapping[tuple[str, str], ItemScores]
"""Per-item contributions by split and subset."""


@dataclass(frozen=True)
class SplitScore:
    """The main score of one split and subset; None where it is undefined."""

    split: str
    subset: str
    score: float | None = None


@dataclass(frozen=True)
class ScoreResult:
    """The scores of one task at one layer under one readout.

    `scoring` names the code that computed them, and `mteb_reason` says why a device left them to mteb.
    `converged` is the share of classifiers whose fit converged, where a device fits them.
    """

    task: str
    readout: Readout
    site: str
    layer: int
    status: Literal["scored", "undefined", "failed"]
    reason: str = ""
    task_type: str = ""
    metric: str = ""
    scores: tuple[SplitScore, ...] = ()
    scoring: str = "mteb"
    mteb_reason: str = ""
    converged: float | None = None
    seconds: float = 0.0


def write_result(file: Path, result: ScoreResult, items: ItemsByPart) -> None:
    """Write a result with the per-item contributions to its scores; the file is whole or absent."""
    arrays = {}
    facts = {"result": json.dumps(asdict(result))}
    for (split, subset), contributions in items.items():
        name = f"{split}/{subset}"
        facts[name] = contributions.rule
        arrays[f"{name}/values"] = contributions.values.astype(np.float32)
        if contributions.gold is not None:
            arrays[f"{name}/gold"] = contributions.gold.astype(np.float32)
    checked.write_arrays(file, arrays, facts)


def read_result(file: Path) -> ScoreResult:
    """Return the result in a file, all of whose content is checked."""
    checked.read_arrays(file)
    fields = json.loads(checked.ArrayFile(file).facts["result"])
    fields["readout"] = Readout(**fields["readout"])
    fields["scores"] = tuple(SplitScore(**score) for score in fields["scores"])
    return ScoreResult(**fields)


def read_items(file: Path, split: str, subset: str) -> ItemScores | None:
    """Return the per-item contributions to a score, or None where it is not made of items."""
    stored = checked.ArrayFile(file)
    name = f"{split}/{subset}"
    if name not in stored.facts:
        return None
    gold = None
    if f"{name}/gold" in stored.names:
        gold = stored.read(f"{name}/gold").astype(np.float64)
    values = stored.read(f"{name}/values").astype(np.float64)
    return ItemScores(stored.facts[name], values, gold)  # type: ignore[arg-type]
