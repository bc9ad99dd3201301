"""The values that go into a decision: candidates, limits, and the claim that results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from layerscope.core.readout import Readout
from layerscope.core.statistics import Interval
from layerscope.errors import InvalidValueError

Transform = Literal["none", "head", "refit", "train"]

TOLERANCE = 1.0
"""The points that a choice with fewer blocks may lose if no tolerance is given."""


@dataclass(frozen=True)
class Candidate:
    """One way to get vectors from a model.

    - `blocks`: the blocks that run, in order. Those of layer k are 0 … k − 1.
    - `transform`: `head` where a fitted linear map is applied to the vectors, `refit` where the
      weights of the remaining blocks were fitted to stand for removed ones, `train` where they were
      trained to.
    - `readout`: the function from states to a vector; None for the model's own pipeline.
    - `query`: that of the queries in a search; the readout is then that of the documents.
    - `cost`: tokens × blocks that run, relative to the baseline.
    - `blocked`: the reason why the candidate may not be chosen; empty if it may.
    """

    blocks: tuple[int, ...]
    transform: Transform = "none"
    readout: Readout | None = None
    query: Readout | None = None
    cost: float = 1.0
    blocked: str = ""

    @property
    def layer(self) -> int:
        """The layer that is read, where the first blocks run."""
        return len(self.blocks)

    @property
    def readout_name(self) -> str:
        """The name of the readout in tables; empty for the model's own pipeline.

        It joins the templates of a search, and ends with `head` where there is one.
        """
        readout = self.readout
        if readout is None:
            return ""
        if self.query is not None and self.query.template != readout.template:
            readout = replace(readout, template=f"{self.query.template}+{readout.template}")
        name = readout.name
        return f"{name.rpartition('/')[0]}/head" if self.transform == "head" else name


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
    """The limits of a choice.

    - `budget`: the largest cost.
    - `keep`: the smallest score, as a share of the baseline's. The cheapest candidate that reaches
      it is chosen.
    - `tolerance`: the distance below the best score at which a cheaper candidate may be.
    - `errors`: the same in standard errors of the difference.
    - `ties`: whether all candidates that are tied with the best are near enough as well.
    - `same_readout`: whether the tolerance counts from the best of all candidates, whatever it
      costs, and a cheaper one has to have its readout. Otherwise it counts from the best within
      the budget.
    - `lead`: the smallest lead over the baseline; with less the baseline stays.
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
    """A comparison of one candidate with another by one source.

    - `gain`: the candidate's score minus the other's, with a 95 % interval.
    - `risk`: the chance that the gain is below zero; None where it is not known.
    - `weak`: the reason why the gain cannot be relied on; empty if it can.
    """

    source: str
    before: float
    after: float
    gain: Interval
    risk: float | None = None
    weak: str = ""


def allowed_blocks(max_blocks: float | None, n_blocks: int) -> int:
    """Return the most blocks that may run; at least one.

    >>> allowed_blocks(0.5, 25)
    12
    """
    return n_blocks if max_blocks is None else max(1, math.floor(max_blocks * n_blocks + 1e-9))


def block_limits(max_blocks: float | None, tolerance: float | None, n_blocks: int) -> Limits:
    """Return the limits of a choice whose costs are shares of the blocks.

    Without a tolerance all candidates count as near that are tied with the best.
    """
    if max_blocks is not None and not 0 < max_blocks <= 1:
        raise InvalidValueError(
            "max_blocks is a share of the blocks above 0 and at most 1, such as 0.5, not "
            f"{max_blocks:g}."
        )
    if tolerance is not None and not tolerance >= 0:
        raise InvalidValueError(f"a tolerance is 0 points or more, not {tolerance:g}.")
    if max_blocks is None and tolerance is None:
        return Limits()
    return Limits(
        budget=allowed_blocks(max_blocks, n_blocks) / n_blocks,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        ties=tolerance is None,
        same_readout=True,
    )
