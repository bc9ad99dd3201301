"""Trials as a tidy table, with the points that the figure shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.metrics.intervals import RESAMPLES
from layerscope.studies.inequalities import matrices, pooled, theorem5
from layerscope.studies.inequalities.base import Trial

COLUMNS = ["theorem", "version", "statement", "kind", "search", "metric", "x"]
COLUMNS += ["value", "ci_low", "ci_high", "n", "violations", "holds", "counterexample"]
_POINTS = 60  # matrices of each kind that are drawn
_SIZES = (2, 4, 8, 16, 32)  # prompts N, at D = 16
_DRAWS = 40


def tabulate(trials: Sequence[Trial], seed: int) -> pd.DataFrame:
    """`margin` rows are the trials (value: the tightest margin, n: checks); `point` and `dataset_entropy` rows are drawn."""
    rows: list[dict[str, Any]] = [
        {
            "theorem": t.statement.theorem, "version": t.statement.version, "statement": t.statement.text, "kind": t.kind,
            "search": t.search, "metric": "margin", "value": t.margin, "n": t.checks, "violations": t.violations,
            "holds": t.holds, "counterexample": t.counterexample,
        }
        for t in trials
    ]  # fmt: skip
    return pd.DataFrame([*rows, *_ranks(seed), *_pooled(seed)], columns=COLUMNS)


def _ranks(seed: int) -> list[dict[str, Any]]:
    """Entropy rank (x) and effective rank (value) of some matrices of each kind."""
    rows = []
    for k, kind in enumerate(matrices.KINDS):
        for i in range(_POINTS):
            z = matrices.draw_matrix(kind, np.random.default_rng([seed, k, i]))["z"]
            x = math.exp(matrices.renyi(matrices.shares(z), 1.0))
            rows.append(
                {"theorem": "Theorem 1", "kind": kind, "metric": "point", "x": x, "value": matrices.effective_rank(z), "n": 1}
            )
    return rows


def _pooled(seed: int) -> list[dict[str, Any]]:
    """S_2 of N prompts (x) with and without the trace, for maximal and minimal prompt entropy: the mean over draws."""
    rows, width = [], 16
    for n in _SIZES:
        found: dict[tuple[str, str], list[float]] = {}
        for i in range(_DRAWS):
            rng = np.random.default_rng([seed, n, i])
            rotated = theorem5.draw(f"N={n}, D={width}", rng)["q"]
            equal = matrices.unit(rng.normal(size=(n, width)))
            for name, q in (("Theorem 5", rotated), ("Theorem 6", equal)):
                for version in ("printed", "trace divided"):
                    value = -math.log(pooled.collisions(q, divided=version == "trace divided"))
                    found.setdefault((name, version), []).append(value)
        for (name, version), values in found.items():
            drawn = np.random.default_rng([seed, n]).choice(values, (RESAMPLES, len(values))).mean(axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            rows.append(
                {
                    "theorem": name, "version": version, "kind": f"D={width}", "metric": "dataset_entropy", "x": n,
                    "value": float(np.mean(values)), "ci_low": float(low), "ci_high": float(high), "n": len(values),
                }
            )  # fmt: skip
    return rows
