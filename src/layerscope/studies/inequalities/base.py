"""What a statement is, and how it is tried: on random cases of several kinds, then by climbing towards a violation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]  # what a statement is about: matrices, distributions, settings
Rng = np.random.Generator

SLACK = 1e-9  # a margin below this is a violation; above it, rounding
_SHOWN = 40  # numbers of a counter-example that are kept in full


@dataclass(frozen=True)
class Statement:
    """An inequality: `margin` says by how much a case fulfils it (negative: by how much it breaks it).

    `draw(kind, rng)` makes a case; `nudge(case, rng, step)` makes one near it, and is None where the statement is about random
    draws, which nobody may choose. `share` is the share of random draws that may fall outside, for statements with a probability.
    """

    theorem: str
    version: str  # "printed", "corrected", …
    text: str
    kinds: tuple[str, ...]
    draw: Callable[[str, Rng], Case]
    margin: Callable[[Case], float]
    nudge: Callable[[Case, Rng, float], Case] | None = None
    share: float = 0.0
    every: int = 1  # one of so many of the checks asked for: costly cases are fewer


@dataclass
class Trial:
    """What came of one kind of case under one search."""

    statement: Statement
    kind: str
    search: str  # "random" or "adversarial"
    checks: int = 0
    violations: int = 0
    margin: float = np.inf
    worst: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether no more cases broke it than the statement allows (with room for chance where it allows any)."""
        allowed = self.statement.share * self.checks
        return self.violations <= allowed + 3 * np.sqrt(allowed * (1 - self.statement.share)) if allowed else not self.violations

    def note(self, case: Case, margin: float, where: Mapping[str, Any]) -> None:
        """Count one case; keep it if it is the worst so far."""
        self.checks += 1
        self.violations += margin < -SLACK
        if margin < self.margin:
            self.margin, self.worst = margin, {**where, "margin": margin, "case": describe(case)}

    @property
    def counterexample(self) -> str:
        """The worst violation as JSON: how it was drawn, and the case itself where it is small. Empty where there is none."""
        return json.dumps(self.worst) if self.violations else ""


def describe(case: Case) -> dict[str, Any]:
    """A case as plain numbers; large arrays by their shape alone, since kind and seed make them again."""
    out: dict[str, Any] = {}
    for name, value in case.items():
        array = np.asarray(value)
        if array.ndim == 0:
            out[name] = array.item()
        else:
            out[name] = np.round(array, 12).tolist() if array.size <= _SHOWN else {"shape": list(array.shape)}
    return out


def seeds(seed: int, statement: Statement, kind: str, number: int) -> list[int]:
    """What a random case is drawn from; the same for the printed and the corrected version, so that they see the same cases."""
    return [seed, sum(statement.theorem.encode()), statement.kinds.index(kind), number]


def try_random(statement: Statement, kind: str, checks: int, seed: int) -> Trial:
    """A number of random cases of one kind."""
    trial = Trial(statement, kind, "random")
    for number in range(checks):
        origin = seeds(seed, statement, kind, number)
        case = statement.draw(kind, np.random.default_rng(origin))
        trial.note(case, statement.margin(case), {"kind": kind, "seed": origin})
    return trial


def climb(statement: Statement, kind: str, starts: int, steps: int, seed: int) -> Trial:
    """Start from random cases and keep every small change that brings the statement nearer to being false."""
    assert statement.nudge is not None
    trial = Trial(statement, kind, "adversarial")
    for start in range(starts):
        origin = seeds(seed, statement, kind, start)
        rng = np.random.default_rng([*origin, 1])
        case = statement.draw(kind, np.random.default_rng(origin))
        best, step = statement.margin(case), 0.3
        trial.note(case, best, {"kind": kind, "seed": origin, "climbed": 0})
        for number in range(1, steps + 1):
            other = statement.nudge(case, rng, step)
            margin = statement.margin(other)
            trial.note(other, margin, {"kind": kind, "seed": origin, "climbed": number})
            if margin < best:
                case, best, step = other, margin, min(1.0, step * 1.3)
            else:
                step = max(1e-6, step * 0.93)
    return trial
