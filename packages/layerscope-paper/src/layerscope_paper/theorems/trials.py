"""Statements, the random matrices that they are tried on, and the climb to a violation.

The quantities (entropy, effective rank) are written in plain numpy, independently of
`layerscope.metrics`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]  # matrices, distributions and settings of a statement
Rng = np.random.Generator

SLACK = 1e-9  # a margin below −SLACK is a violation; above it, rounding
_SHOWN = 40  # the largest array of a counterexample that is stored in full
KINDS = (
    "gaussian",
    "power law",
    "low rank",
    "one huge row",
    "near-duplicate rows",
    "orthonormal",
    "two by two",
    "sparse",
)


@dataclass(frozen=True)
class Statement:
    """An inequality; `margin` is the distance of a case from breaking it (negative: it breaks it).

    `draw(kind, rng)` makes a case; `nudge(case, rng, step)` makes a similar one, and is None where
    the statement is about random draws. `share` is the share of random draws that may fall outside,
    for statements with a probability. A costly statement is checked on one of `every` cases.
    """

    theorem: str
    version: str  # "printed", "corrected", …
    text: str
    kinds: tuple[str, ...]
    draw: Callable[[str, Rng], Case]
    margin: Callable[[Case], float]
    nudge: Callable[[Case, Rng, float], Case] | None = None
    share: float = 0.0
    every: int = 1


@dataclass
class Trial:
    """The outcome of one kind of case under one search."""

    statement: Statement
    kind: str
    search: str  # "random" or "adversarial"
    checks: int = 0
    violations: int = 0
    margin: float = np.inf
    worst: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True if no more cases broke it than the statement allows, with three standard deviations
        for chance."""
        allowed = self.statement.share * self.checks
        return bool(self.violations <= allowed + 3 * np.sqrt(allowed * (1 - self.statement.share)))

    def note(self, case: Case, margin: float, origin: Mapping[str, Any]) -> None:
        """Count one case, and store it if it is the worst so far."""
        self.checks += 1
        self.violations += margin < -SLACK
        if margin < self.margin:
            self.margin = margin
            self.worst = {**origin, "margin": margin, "case": describe(case)}

    @property
    def counterexample(self) -> str:
        """The worst violation as JSON: its seed and search, and the case itself if it is small.
        Empty where there is none."""
        return json.dumps(self.worst) if self.violations else ""


def describe(case: Case) -> dict[str, Any]:
    """Return a case as plain numbers; large arrays by their shape alone, since kind and seed make
    them again."""
    arrays = {name: np.asarray(value) for name, value in case.items()}
    return {
        name: np.round(array, 12).tolist() if array.size <= _SHOWN else {"shape": [*array.shape]}
        for name, array in arrays.items()
    }


def seeds(seed: int, statement: Statement, kind: str, number: int) -> list[int]:
    """Return the seed of a random case; the printed and the corrected version see the same
    cases."""
    return [seed, sum(statement.theorem.encode()), statement.kinds.index(kind), number]


def search(statement: Statement, kind: str, starts: int, seed: int, steps: int = 0) -> Trial:
    """Try random cases of one kind; from each, take `steps` small changes, and keep each that
    brings it nearer to a violation."""
    trial = Trial(statement, kind, "adversarial" if steps else "random")
    for start in range(starts):
        origin = seeds(seed, statement, kind, start)
        case = statement.draw(kind, np.random.default_rng(origin))
        best = statement.margin(case)
        step = 0.3
        trial.note(case, best, {"kind": kind, "seed": origin} | ({"climbed": 0} if steps else {}))
        rng = np.random.default_rng([*origin, 1])
        for number in range(1, steps + 1):
            assert statement.nudge is not None
            changed = statement.nudge(case, rng, step)
            margin = statement.margin(changed)
            trial.note(changed, margin, {"kind": kind, "seed": origin, "climbed": number})
            if margin < best:
                case = changed
                best = margin
                step = min(1.0, step * 1.3)
            else:
                step = max(1e-6, step * 0.93)
    return trial


def draw_matrix(kind: str, rng: Rng) -> Case:
    """Return {"z": a random matrix of 2 to 24 rows and columns}."""
    n, d = (2, 2) if kind == "two by two" else (int(x) for x in rng.integers(2, 25, size=2))
    z = rng.normal(size=(n, d))
    if kind == "power law":
        u, _, v = np.linalg.svd(z, full_matrices=False)
        z = (u * np.arange(1, min(n, d) + 1) ** -rng.uniform(0.2, 3.0)) @ v
    elif kind == "low rank":
        r = int(rng.integers(1, min(n, d) + 1))
        z = rng.normal(size=(n, r)) @ rng.normal(size=(r, d))
    elif kind == "one huge row":
        z[0] *= 10 ** rng.uniform(1, 3)
    elif kind == "near-duplicate rows":
        z = z[:1] + 10 ** rng.uniform(-5, -1) * z
    elif kind == "orthonormal":
        u, _, v = np.linalg.svd(z, full_matrices=False)
        z = u @ v
    elif kind == "sparse":
        z *= rng.random((n, d)) < 0.2
        z[0, 0] += 1.0  # never all zero
    return {"z": z}


def nudge_matrix(case: Case, rng: Rng, step: float) -> Case:
    """Return the matrix, a little changed."""
    z = case["z"]
    return {**case, "z": z + step * np.linalg.norm(z) / np.sqrt(z.size) * rng.normal(size=z.shape)}


def shares(z: np.ndarray) -> np.ndarray:
    """Return p_i = λ_i(Z Zᵀ) / tr, descending."""
    squares = np.linalg.svd(z, compute_uv=False) ** 2
    return np.asarray(squares / squares.sum())


def renyi(p: np.ndarray, alpha: float) -> float:
    """Return S_α of shares, in nats."""
    p = p[p > 0]
    if alpha == 1:
        return float(-(p * np.log(p)).sum())
    if alpha == np.inf:
        return float(-np.log(p.max()))
    top = p.max()  # taken out, so that large α does not underflow
    return float((np.log(((p / top) ** alpha).sum()) + alpha * np.log(top)) / (1 - alpha))


def effective_rank(z: np.ndarray) -> float:
    """Return exp of the entropy of σ_i / Σσ (Roy & Vetterli 2007)."""
    sigma = np.linalg.svd(z, compute_uv=False)
    return float(np.exp(renyi(sigma / sigma.sum(), 1.0)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
