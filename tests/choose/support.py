"""Constructed evidence and evaluations with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.label_free import Curve, Evidence
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import Z95
from layerscope.evaluation.results import ItemScores
from layerscope.evaluation.run import Evaluation
from layerscope.profiling.run import Profile

_ITEMS = 400


def evidence(curves: dict[str, Any], **facts: Any) -> Evidence:
    """Evidence from plain lists; a pair (values, half width) has an interval."""
    made = {}
    for name, curve in curves.items():
        values, half = curve if isinstance(curve, tuple) else (curve, 0.0)
        array = np.asarray(values, dtype=float)
        made[name] = Curve(array, array - half, array + half)
    blocks = len(next(iter(made.values())).value) - 1
    return Evidence(**{"model": "made", "n_blocks": blocks, "curves": made, **facts})


def valley_curve(blocks: int = 20, depth: float = 2.0) -> list[float]:
    """Prompt entropy that falls by `depth` in the middle."""
    return [4.0 - depth * (0.3 < k / blocks < 0.7) for k in range(blocks + 1)]


def model_facts(blocks: int, **facts: Any) -> dict[str, Any]:
    """The identity of a made-up model."""
    return {"name": "made", "n_blocks": blocks, "weights_sha256": "w", **facts}


def profile(
    curves: dict[str, list[float]], half: float = 0.01, final_norm: str = "hf", **model: Any
) -> Profile:
    """A finished profile with these curves."""
    blocks = len(next(iter(curves.values()))) - 1
    rows = [
        {
            "site": site_of(layer),
            "layer": layer,
            "depth": layer / blocks,
            "metric": metric,
            "normalization": "raw",
            "sink": "keep",
            "value": value,
            "ci_low": value - half,
            "ci_high": value + half,
            "n": 100,
        }
        for metric, values in curves.items()
        for layer, value in enumerate(values)
    ]
    manifest = {
        "kind": "profile",
        "status": "complete",
        "model": model_facts(blocks, **model),
        "conventions": {"final_norm": final_norm, "final_norm_module": "LayerNorm"},
        "counts": {"prompts": 100, "undefined": {}},
        "warnings": [],
    }
    return Profile(pd.DataFrame(rows), manifest, pd.DataFrame({"prompt": [0]}))


def evaluation(
    tasks: dict[str, list[float]],
    half: float = 0.01,
    path: Path | None = None,
    readouts: dict[Readout, list[float]] | None = None,
) -> Evaluation:
    """An evaluation with these scores (0 to 1) by layer, from items that give gains about this half
    width; NaN: no items are stored.

    With `readouts` these are the scores of the one task "a" under several readouts.
    """
    rng = np.random.default_rng(0)
    items: dict[tuple[str, str, str], dict[tuple[str, int], ItemScores]] = {}
    cases = [("a", *case) for case in (readouts or {}).items()]
    cases = cases or [(task, Readout(), scores) for task, scores in tasks.items()]
    rows = []
    for task, readout, scores in cases:
        for layer, score in enumerate(scores):
            noise = rng.standard_normal(_ITEMS)
            noise = (noise - noise.mean()) / noise.std()
            if np.isfinite(half):
                spread = half * (_ITEMS / 2) ** 0.5 / Z95
                part = items.setdefault((task, "test", "default"), {})
                part[readout.name, layer] = ItemScores("mean", score + spread * noise)
            rows.append(
                {
                    "task": task,
                    "split": "test",
                    "subset": "default",
                    **readout.columns,
                    "layer": layer,
                    "site": site_of(layer),
                    "score": score,
                    "gain": score - scores[-1],
                    "ci_low": np.nan,
                    "ci_high": np.nan,
                    "tied_best": False,
                }
            )
    table = pd.DataFrame(rows)
    manifest = {
        "kind": "evaluation",
        "status": "complete",
        "model": model_facts(len(cases[0][2]) - 1),
        "failed": [],
        "warnings": [],
        "undefined": [],
    }
    scores = table.drop(columns=["gain", "ci_low", "ci_high", "tied_best"])
    return Evaluation(scores, table, manifest, path or Path("nowhere"), items)
