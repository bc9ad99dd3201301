"""The statistics on data whose truth is known: false positives, power, bias and coverage.

    python benchmarks/simulate.py picking [--trials 4000]       # `select` on measured scores (choose.claims)
    python benchmarks/simulate.py improving [--trials 4000]     # the interval of what `improve`'s judge says
    python benchmarks/simulate.py intervals [--trials 300]      # the metrics' intervals

Each writes benchmarks/results/simulated-NAME.csv.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common import commit, make_parser

from layerscope.choose import Candidate, Limits, Scores, SplitScores, decide
from layerscope.core.scores import DRAWS
from layerscope.core.statistics import Z95
from layerscope.metrics import Options, SiteVectors, estimate_vectors, get_metric, interval

RESULTS = Path(__file__).parent / "results"
LAYERS = 13
HUMP = 5.0 * np.exp(-0.5 * ((np.arange(LAYERS) - 7) / 2.5) ** 2)  # points, most in the middle
TRUTHS = {"flat": 0 * HUMP, "humped": HUMP - HUMP[-1]}


def scored(rng: np.random.Generator, truth: np.ndarray, items: int, tasks: int) -> Scores:
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
    return Scores(score, draws)


def picking(trials: int) -> Iterator[dict[str, object]]:
    """Yield moves away from the last layer, and what they promise, on flat and humped truths."""
    for name, curve in TRUTHS.items():
        for items, tasks, readouts in (
            *product((200,), (1, 10), (1, 6)),
            (1379, 1, 1),
            (1379, 1, 6),
        ):
            truth, last = np.tile(curve, (readouts, 1)), LAYERS - 1
            flat, candidates = truth.ravel(), [Candidate(())] * truth.size
            rng = np.random.default_rng([items, tasks, readouts])
            moves: list[tuple[float, bool, float, bool]] = []
            count = trials if name == "flat" else max(20, trials // 8)
            for trial in range(count):
                given = scored(rng, truth, items, tasks)
                split = SplitScores.of(given, np.full(truth.size, True), last, seed=trial)
                limits = Limits(lead=split.lead)
                result = decide(candidates, [given], last, limits, split.claim, split.noise)
                if result.chosen != last:
                    gain = result.claim.gain
                    true = float(flat[result.chosen] - flat[last])
                    inside = gain.low <= true <= gain.high
                    moves.append((gain.value - true, inside, true, gain.low > 0))
            moved = np.array(moves, dtype=float).reshape(-1, 4)
            bias = moved[:, 0]
            yield {
                "truth": name, "items": items, "tasks": tasks, "readouts": readouts, "trials": count,
                "moves": len(moved) / count, "bias": bias.mean(), "bias_se": bias.std() / max(1, len(bias)) ** 0.5,
                "coverage": moved[:, 1].mean(), "true_gain": moved[:, 2].mean(), "sure": moved[:, 3].mean(),
            }  # fmt: skip


def improving(trials: int) -> Iterator[dict[str, object]]:
    """The rule of `improve`: the best candidate, if the interval of its gain, made for all gains at
    once, is above zero."""
    for name, curve in TRUTHS.items():
        for items, readouts in ((200, 1), (200, 12), (600, 12)):
            truth, last = np.tile(curve, (readouts, 1)), LAYERS - 1
            flat = truth.ravel()
            rng, told = np.random.default_rng([items, readouts, 3]), []
            for _ in range(trials if name == "flat" else max(20, trials // 4)):
                given = scored(rng, truth, items, 1)
                best = given.best()
                gain = given.gain_of_pick(best, last, np.full(truth.size, True))
                true = float(flat[best] - flat[last])
                told.append((gain.low > 0, gain.value - true, gain.low <= true <= gain.high))
            moved, bias, held = np.array(told, dtype=float).T
            yield {
                "truth": name, "items": items, "readouts": readouts, "trials": len(told), "moves": moved.mean(),
                "coverage": held.mean(), "bias_of_moves": bias[moved > 0].mean() if moved.any() else float("nan"),
                "coverage_of_moves": held[moved > 0].mean() if moved.any() else float("nan"),
            }  # fmt: skip


SPECTRAL = (
    *("dataset_entropy", "effective_rank", "entropy_rank", "rankme"),
    *("nesum", "alpha_req", "anisotropy", "intrinsic_dimension"),
)
VIEWED = ("infonce", "lidar", "dime")


def intervals(trials: int) -> Iterator[dict[str, object]]:
    """How often a metric's 95 % interval holds the mean value of such data, and how wide it is
    beside the true spread."""
    prompts, width = 120, 24
    shape = np.arange(1, width + 1) ** -0.5

    def rows(rng: np.random.Generator, kind: str) -> np.ndarray:
        if kind == "heavy tails":
            return rng.standard_t(3, (prompts, width)) * shape
        z = rng.standard_normal((prompts, width)) * shape
        if kind == "one feature dominates":
            z[:, 0] *= 8
        return z

    for kind in ("normal", "one feature dominates", "heavy tails"):
        for name in (*SPECTRAL, *VIEWED):
            rng, found = np.random.default_rng(5), []
            for _ in range(trials if name != "dime" else max(20, trials // 4)):
                z = rows(rng, kind)
                if name in VIEWED:
                    z = z[:, None] + 0.5 * rng.standard_normal((prompts, 4, width)) * shape
                vectors = torch.from_numpy(z)
                if name in VIEWED:
                    site = SiteVectors(vectors[:, 0], vectors)
                else:
                    site = SiteVectors(vectors)
                estimate = estimate_vectors(get_metric(name), site, Options())
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


PARTS = {"picking": (picking, 4000), "improving": (improving, 4000), "intervals": (intervals, 300)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--trials", type=int)
    given = parser.parse_args()
    run, trials = PARTS[given.part]
    rows = []
    for row in run(given.trials or trials):
        rows.append({**row, "commit": commit()})
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        place = RESULTS / f"simulated-{given.part}.csv"
        pd.DataFrame(rows).round(4).to_csv(place, index=False)


if __name__ == "__main__":
    main()
