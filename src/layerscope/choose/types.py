"""The values that go into a decision among candidates, and the decision itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from layerscope.core.readout import Readout

Transform = Literal["none", "refit"]


@dataclass(frozen=True)
class Candidate:
    """One way to get vectors from a model.

    - `blocks`: the blocks that run, in order.
    - `transform`: `refit` where the weights of kept blocks were fitted to stand for removed ones.
    - `readout`: how states become a vector; None for the model's own pipeline.
    - `cost`: tokens × blocks that run, relative to the baseline.
    - `blocked`: why the candidate may not be chosen; empty if it may.
    """

    blocks: tuple[int, ...]
    transform: Transform = "none"
    readout: Readout | None = None
    cost: float = 1.0
    blocked: str = ""


@dataclass(frozen=True)
class Scores:
    """What one source says of every candidate.

    `values` has one number a candidate (NaN where there is none); `draws` has the same under
    resamples, the same resamples for all candidates: (candidates, resamples).
    """

    source: str
    values: np.ndarray
    draws: np.ndarray
    weight: float = 1.0


@dataclass(frozen=True)
class Limits:
    """What a choice has to keep.

    - `budget`: the largest cost.
    - `keep`: the smallest score, as a share of the baseline's. The cheapest candidate that keeps it
      is chosen.
    - `tolerance`: how far below the best expected score a cheaper candidate may be.
    """

    budget: float | None = None
    keep: float | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class Claim:
    """What one source says of the choice beside the baseline, with a 95 % interval of the change."""

    source: str
    before: float
    after: float
    interval: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Decision:
    """The candidate that was chosen, as a place in the list of candidates.

    `best` has the highest expected score of all that may be chosen; `expected` has every
    candidate's expected score; `kept` says whether the limit `keep` could be held.
    """

    chosen: int
    best: int
    baseline: int
    expected: np.ndarray
    claim: Claim
    kept: bool = True
