"""The evidence for a choice: what was measured of it and of the reading that a user has today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

Range = tuple[float, float]


@dataclass(frozen=True)
class Change:
    """A measure before and after, with the 95 % interval of the gain."""

    before: float
    after: float
    interval: Range


@dataclass(frozen=True)
class NeighborShares:
    """The shares of the right nearest neighbors that two readings find.

    `judge` names the encoder that says which neighbors are right. It is empty where the model's
    most consistent readings say so together.
    """

    judge: str
    before: float
    after: float


@dataclass(frozen=True)
class Cheaper:
    """The cheapest candidate that cannot be told from the best one."""

    readout: str
    layer: int
    relative_cost: float


@dataclass(frozen=True)
class Training:
    """A student compared with the head that it began with, and with today's reading.

    `head`, `student` and `today` are agreements with the teacher on `checked` texts that nothing
    was fitted on. `over_head` and `over_today` are 95 % intervals of the student's gains. `curve`
    has the steps at which the student was measured on other texts, and its agreement there.
    """

    teacher: str
    blocks: int
    steps: int
    texts: int
    seed: int
    checked: int
    head: float
    student: float
    today: float
    over_head: Range
    over_today: Range
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def is_better(self) -> bool:
        """Return whether the student clearly beats its head and today's reading."""
        return self.over_head[0] > 0 and self.over_today[0] > 0


@dataclass(frozen=True)
class SearchEvidence:
    """Measures of a search on queries that did not choose, and how both sides are read.

    `own` is the nDCG of the encoder `judge` itself, where there are pairs.
    """

    measures: dict[str, Change]
    queries: int
    documents: int
    judge: str
    own: float | None
    prompts: dict[str, str]
    readout: str
    query: str


@dataclass(frozen=True)
class Evidence:
    """The evidence for one choice, as the manifest of an improvement stores it.

    - `judge`, `score_name`: the sources that scored candidates, and their score, in words.
    - `before`, `after`, `interval`: the score of today's reading and of the choice, and the 95 %
      interval of the gain. `readout_gain` and `layer_gain` are its two parts.
    - `candidates`, `near`, `tied`: how many were scored, score practically the same as the best,
      and cannot be told from it. `cheaper` is the cheapest of the last.
    - `relative_cost`: computation per text, relative to today's.
    - `teacher`: the prompt that a head learned from. `screened`: the best score of each template.
    - `texts_per_second`: of `today`, of the choice (`now`), and of the judging encoder.
    """

    judge: str
    today: str
    kept_default: bool
    score_name: str = ""
    before: float | None = None
    after: float | None = None
    interval: Range | None = None
    readout_gain: float | None = None
    layer_gain: float | None = None
    candidates: int = 0
    near: int = 0
    tied: int = 1
    cheaper: Cheaper | None = None
    relative_cost: float | None = None
    teacher: str | None = None
    training: Training | None = None
    neighbors: NeighborShares | None = None
    changed_neighbors: float = 0.0
    encoder: str | None = None
    texts_per_second: dict[str, float] = field(default_factory=dict)
    screened: dict[str, float] = field(default_factory=dict)
    search: SearchEvidence | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the evidence that a manifest holds."""
        names = {one.name for one in fields(cls)}
        known = {name: value for name, value in values.items() if name in names}
        for name, build in _NESTED.items():
            if known.get(name) is not None:
                known[name] = build(**known[name])
        return cls(**known)

    @property
    def change(self) -> Change:
        """Return the score before and after with the interval of the gain."""
        assert self.before is not None
        assert self.after is not None
        assert self.interval is not None
        return Change(self.before, self.after, self.interval)


def _build_search(measures: Mapping[str, Any], **values: Any) -> SearchEvidence:
    changes = {name: Change(**change) for name, change in measures.items()}
    return SearchEvidence(changes, **values)


_NESTED: dict[str, Callable[..., Any]] = {
    "cheaper": Cheaper,
    "training": Training,
    "neighbors": NeighborShares,
    "search": _build_search,
}
