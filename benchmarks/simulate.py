"""The statistics on data whose truth is known: false positives, power, bias and coverage, before
and after.

    python benchmarks/simulate.py picking [--trials 4000]       # `select` on measured scores (layerscope.core.picking)
    python benchmarks/simulate.py picking --cells flat,200,1,6 --trials 12000 --seed 9 --out more.csv      # one row of it
    python benchmarks/simulate.py improving [--trials 4000]     # the interval of what `improve`'s judge says
    python benchmarks/simulate.py intervals [--trials 300]      # the metrics' intervals

Each writes benchmarks/results/simulated-NAME.csv. *Before* are the rules of version 0.2, kept here
to compare with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rows import commit

from layerscope.core.candidates import DRAWS, ScoredCandidates
from layerscope.core.picking import pick
from layerscope.core.statistics import Z95
from layerscope.metrics import get_metric, interval

RESULTS = Path(__file__).parent / "results"
LAYERS = 13
HUMP = 5.0  # points, in the middle


def scored(rng: np.random.Generator, truth: np.ndarray, items: int, tasks: int) -> ScoredCandidates:
    """Scores (points) of readouts × layers on so many items of each task, neighboring layers alike,
    and resamples of them."""
    shape, size = truth.shape, truth.size
    near = np.linalg.cholesky(
        0.9 ** np.abs(np.subtract.outer(np.arange(LAYERS), np.arange(LAYERS)))
    )
    score, spread = np.zeros(size), np.zeros((size, size))
    for _ in range(tasks):
        values = 30 * (rng.standard_normal((items, shape[0], LAYERS)) @ near.T).reshape(items, size)
        values += 35 * rng.standard_normal((items, 1))  # how hard an item is, for all candidates
        score += (truth.ravel() + values.mean(0)) / tasks
        spread += np.cov(values.T) / items / tasks**2
    draws = score[:, None] + np.linalg.cholesky(spread + 1e-9 * np.eye(size)) @ rng.standard_normal(
        (size, DRAWS)
    )
    return ScoredCandidates(score.reshape(shape), draws.reshape(*shape, DRAWS))


def before(
    given: ScoredCandidates, last: tuple[int, int]
) -> tuple[tuple[int, ...], float, float, float] | None:
    """Version 0.2: the mean lead of the winners of resamples was taken off; kept unless it lost in
    more than 20 % of them."""
    assert given.draws is not None
    best, flat = given.best(), given.draws.reshape(-1, DRAWS)
    winners = flat.argmax(0)
    price = max(0.0, float((flat[winners, np.arange(DRAWS)] - given.score.ravel()[winners]).mean()))
    moves = given.draws[best] - given.draws[last] - price
    if best == last or (np.sum(moves < 0) + 0.5) / (DRAWS + 1) > 0.2:
        return None
    low, high = np.quantile(moves, [0.025, 0.975])
    return best, float(given.score[best] - given.score[last]) - price, float(low), float(high)


def after(
    given: ScoredCandidates, last: tuple[int, int], seed: int
) -> tuple[tuple[int, ...], float, float, float] | None:
    """The rule of today."""
    found = pick(given, np.full(given.score.shape, True), lambda place: last, seed=seed)
    if not found.moved:
        return None
    gain = found.gain(found.place, last)
    return found.place, gain.value, gain.low, gain.high


def picking(trials: int, cells: Sequence[str] = (), seed: int = 0) -> Iterator[dict[str, object]]:
    """Moves away from the last layer, and what they promise, on flat and humped truths."""
    hump = HUMP * np.exp(-0.5 * ((np.arange(LAYERS) - 7) / 2.5) ** 2)
    for name, curve in (("flat", 0 * hump), ("humped", hump - hump[-1])):
        for items, tasks, readouts in (
            (200, 1, 1),
            (200, 1, 6),
            (200, 10, 1),
            (200, 10, 6),
            (1379, 1, 1),
            (1379, 1, 6),
        ):
            if cells and f"{name},{items},{tasks},{readouts}" not in cells:
                continue
            truth, last = np.tile(curve, (readouts, 1)), (0, LAYERS - 1)
            rng = np.random.default_rng([items, tasks, readouts, *([seed] if seed else [])])
            told: dict[str, list[tuple[float, bool, float, bool]]] = {"before": [], "after": []}
            count = trials if name == "flat" else max(20, trials // 8)
            for trial in range(count):
                given = scored(rng, truth, items, tasks)
                for rule, said in (
                    ("before", before(given, last)),
                    ("after", after(given, last, trial)),
                ):
                    if said is not None:
                        place, value, low, high = said
                        true = float(truth[place] - truth[last])
                        told[rule].append((value - true, low <= true <= high, true, low > 0))
            for rule, rows in told.items():
                moved = np.array(rows, dtype=float).reshape(-1, 4)
                bias = moved[:, 0]
                yield {
                    "truth": name, "items": items, "tasks": tasks, "readouts": readouts, "rule": rule, "trials": count,
                    "moves": len(moved) / count, "bias": bias.mean(), "bias_se": bias.std() / max(1, len(bias)) ** 0.5,
                    "coverage": moved[:, 1].mean(), "true_gain": moved[:, 2].mean(), "sure": moved[:, 3].mean(),
                }  # fmt: skip


def improving(trials: int) -> Iterator[dict[str, object]]:
    """The rule of `improve`: the best candidate, if the interval of its gain, made for all gains at
    once, is above zero."""
    hump = HUMP * np.exp(-0.5 * ((np.arange(LAYERS) - 7) / 2.5) ** 2)
    for name, curve in (("flat", 0 * hump), ("humped", hump - hump[-1])):
        for items, readouts in ((200, 1), (200, 12), (600, 12)):
            truth, last = np.tile(curve, (readouts, 1)), (0, LAYERS - 1)
            rng, told = np.random.default_rng([items, readouts, 3]), []
            for _ in range(trials if name == "flat" else max(20, trials // 4)):
                given = scored(rng, truth, items, 1)
                best = given.best()
                gain, true = (
                    given.gain_of_pick(best, last, np.full(truth.shape, True)),
                    float(truth[best] - truth[last]),
                )
                told.append((gain.low > 0, gain.value - true, gain.low <= true <= gain.high))
            moved, bias, held = np.array(told, dtype=float).T
            yield {
                "truth": name, "items": items, "readouts": readouts, "trials": len(told), "moves": moved.mean(),
                "coverage": held.mean(), "bias_of_moves": bias[moved > 0].mean() if moved.any() else float("nan"),
                "coverage_of_moves": held[moved > 0].mean() if moved.any() else float("nan"),
            }  # fmt: skip


SPECTRAL = (
    "dataset_entropy",
    "effective_rank",
    "entropy_rank",
    "rankme",
    "nesum",
    "alpha_req",
    "anisotropy",
    "intrinsic_dimension",
)
VIEWED = ("infonce", "lidar", "dime")


def intervals(trials: int) -> Iterator[dict[str, object]]:
    """How often a metric's 95 % interval holds the mean value of such data, and how wide it is
    beside the true spread."""
    prompts, width = 120, 24
    shape = np.arange(1, width + 1) ** -0.5

    def rows(rng: np.random.Generator, kind: str) -> np.ndarray:
        z = (
            rng.standard_t(3, (prompts, width))
            if kind == "heavy tails"
            else rng.standard_normal((prompts, width))
        )
        return (
            z
            * shape
            * np.where(np.arange(width) == 0, 8.0 if kind == "one feature dominates" else 1.0, 1.0)
        )

    for kind in ("normal", "one feature dominates", "heavy tails"):
        for name in (*SPECTRAL, *VIEWED):
            rng, found = np.random.default_rng(5), []
            for _ in range(trials if name != "dime" else max(20, trials // 4)):
                z = rows(rng, kind)
                if name in VIEWED:
                    z = z[:, None] + 0.5 * rng.standard_normal((prompts, 4, width)) * shape
                estimate = get_metric(name)().update(torch.from_numpy(z)).compute()
                low, high = interval(estimate)
                found.append((estimate.value, low, high))
            value, low, high = np.array(found).T
            held = (low <= value.mean()) & (value.mean() <= high)
            spread = 2 * Z95 * value.std(ddof=1)
            yield {
                "data": kind,
                "metric": name,
                "trials": len(value),
                "coverage": held.mean(),
                "width": (high - low).mean() / spread,
            }


PARTS = {
    "picking": (picking, 4000),
    "improving": (improving, 4000),
    "intervals": (intervals, 300),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--trials", type=int)
    parser.add_argument(
        "--cells", nargs="+", default=[], help="of picking: TRUTH,ITEMS,TASKS,READOUTS"
    )
    parser.add_argument("--seed", type=int, default=0, help="of picking: other data")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    run, trials = PARTS[given.part]
    rows = []
    more = {"cells": given.cells, "seed": given.seed} if given.part == "picking" else {}
    for row in run(given.trials or trials, **more):  # type: ignore[operator]
        rows.append({**row, "commit": commit()})
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        pd.DataFrame(rows).round(4).to_csv(
            given.out or RESULTS / f"simulated-{given.part}.csv", index=False
        )


if __name__ == "__main__":
    main()
