"""The values that go into a decision among candidates, and the decision itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from layerscope.core.readout import Readout
from layerscope.core.statistics import Interval

Transform = Literal["none", "refit", "train"]


@dataclass(frozen=True)
class Candidate:
    """One way to get vectors from a model.

    - `blocks`: the blocks that run, in order. Those of layer k are 0 … k − 1.
    - `transform`: `refit` where the weights of kept blocks were fitted to stand for removed ones,
      `train` where they were trained to.
    - `readout`: how states become a vector; None for the model's own pipeline.
    - `cost`: tokens × blocks that run, relative to the baseline.
    - `blocked`: why the candidate may not be chosen; empty if it may.
    """

    blocks: tuple[int, ...]
    transform: Transform = "none"
    readout: Readout | None = None
    cost: float = 1.0
    blocked: str = ""

    @property
    def layer(self) -> int:
        """The layer that is read, where the first blocks run."""
        return len(self.blocks)


def layers_of(
    readout: Readout, layers: Sequence[int], costs: Sequence[float], blocked: str = ""
) -> list[Candidate]:
    """Return a candidate for every layer under a readout."""
    return [
        Candidate(tuple(range(layer)), readout=readout, cost=float(cost), blocked=blocked)
        for layer, cost in zip(layers, costs, strict=True)
    ]


@dataclass(frozen=True)
class Limits:
    """What a choice has to keep.

    - `budget`: the largest cost.
    - `keep`: the smallest score, as a share of the baseline's. The cheapest candidate that keeps it
      is chosen.
    - `tolerance`: how far below the best score a cheaper candidate may be.
    - `errors`: the same in standard errors of the difference.
    - `ties`: whether all candidates that are tied with the best are near enough as well.
    - `same_readout`: whether the tolerance counts from the best of all candidates, whatever it costs,
      and a cheaper one has to have its readout. Otherwise from the best within the budget.
    - `lead`: how much the choice has to lead the baseline by; else the baseline stays.
    - `stay`: whether the baseline stays where the claim is weak.
    """

    budget: float | None = None
    keep: float | None = None
    tolerance: float = 0.0
    errors: float = 0.0
    ties: bool = False
    same_readout: bool = False
    lead: float | None = None
    stay: bool = False


@dataclass(frozen=True)
class Claim:
    """What a source says of one candidate beside another.

    - `gain`: how much the candidate scores above the other, with a 95 % interval.
    - `risk`: the chance that the gain is below zero; None where it is not known.
    - `weak`: why the gain cannot be relied on; empty if it can.
    """

    source: str
    before: float
    after: float
    gain: Interval
    risk: float | None = None
    weak: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the source, the two scores and the interval as plain values."""
        return {
            "source": self.source,
            "before": self.before,
            "after": self.after,
            "interval": [self.gain.low, self.gain.high],
        }
