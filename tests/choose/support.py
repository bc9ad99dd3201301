"""Constructed evidence and evaluations with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.evidence import Curve, Evidence
from layerscope.evaluation.run import Evaluation
from layerscope.profiling.run import Profile

READOUT = ("plain", "mean", "applied", "keep", "none")


def evidence(curves: dict[str, Any], **facts: Any) -> Evidence:
    """Evidence from plain lists; a pair (values, half width) has an interval."""
    made = {}
    for name, given in curves.items():
        values, half = given if isinstance(given, tuple) else (given, 0.0)
        array = np.asarray(values, dtype=float)
        made[name] = Curve(array, array - half, array + half)
    blocks = len(next(iter(made.values())).value) - 1
    return Evidence(
        **{"model": "made", "n_blocks": blocks, "curves": made, "final_norm": "hf", **facts}
    )


def valley_curve(blocks: int = 20, depth: float = 2.0) -> list[float]:
    """Prompt entropy that falls by `depth` in the middle."""
    return [4.0 - depth * (0.3 < k / blocks < 0.7) for k in range(blocks + 1)]


def profile(
    curves: dict[str, list[float]], half: float = 0.01, final_norm: str = "hf", **model: Any
) -> Profile:
    """A finished profile with these curves."""
    blocks = len(next(iter(curves.values()))) - 1
    rows = []
    for metric, values in curves.items():
        for layer, value in enumerate(values):
            site = "embed" if layer == 0 else f"block.{layer - 1}"
            rows.append(
                [
                    site,
                    layer,
                    layer / blocks,
                    metric,
                    "raw",
                    "keep",
                    value,
                    value - half,
                    value + half,
                    100,
                ]
            )
    columns = [
        "site",
        "layer",
        "depth",
        "metric",
        "normalization",
        "sink",
        "value",
        "ci_low",
        "ci_high",
        "n",
    ]
    manifest = {
        "kind": "profile",
        "status": "complete",
        "model": {"name": "made", "n_blocks": blocks, "weights_sha256": "w", **model},
        "conventions": {"final_norm": final_norm, "final_norm_module": "LayerNorm"},
        "counts": {"prompts": 100, "undefined": {}},
        "warnings": [],
    }
    return Profile(pd.DataFrame(rows, columns=columns), manifest, pd.DataFrame({"prompt": [0]}))


def evaluation(
    tasks: dict[str, list[float]], half: float = 0.01, path: Path | None = None
) -> Evaluation:
    """An evaluation with these scores (0 to 1) by layer, each with an interval of its gain."""
    rows = []
    for task, scores in tasks.items():
        for layer, score in enumerate(scores):
            site = "embed" if layer == 0 else f"block.{layer - 1}"
            gain = score - scores[-1]
            wide = 0.0 if layer == len(scores) - 1 else half
            rows.append(
                [
                    task,
                    "test",
                    "default",
                    *READOUT,
                    layer,
                    site,
                    score,
                    gain,
                    gain - wide,
                    gain + wide,
                    False,
                ]
            )
    columns = ["task", "split", "subset", "template", "pooling", "final_norm", "sink", "centering"]
    columns += ["layer", "site", "score", "gain", "ci_low", "ci_high", "tied_best"]
    table = pd.DataFrame(rows, columns=columns)
    blocks = len(next(iter(tasks.values()))) - 1
    manifest = {
        "kind": "evaluation",
        "status": "complete",
        "model": {"name": "made", "n_blocks": blocks, "weights_sha256": "w"},
        "failed": [],
        "warnings": [],
        "undefined": [],
    }
    return Evaluation(
        table.drop(columns=["gain", "ci_low", "ci_high", "tied_best"]),
        table,
        manifest,
        path or Path("nowhere"),
    )
