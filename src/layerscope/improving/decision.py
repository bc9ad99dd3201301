"""The description of a decision: the choice with its table, and the evidence for it.

The rule by which a candidate is chosen is `decide_by_judge` in `choose/decide.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import pandas as pd

from layerscope.choose import Candidate, Decision, Scores, layers_of
from layerscope.choose.choice import Choice
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL
from layerscope.exporting.cutting import needs_filler
from layerscope.improving.judging import Judges
from layerscope.improving.reader import Reader

Range = tuple[float, float]


@dataclass(frozen=True)
class Change:
    """A measure before and after, with the 95 % interval of the gain."""

    before: float
    after: float
    interval: Range


@dataclass(frozen=True)
class NeighborShares:
    """The shares of the right nearest neighbors that today's reading and the chosen one find.

    `judge` names the encoder that says which neighbors are right. It is empty where the model's
    most consistent readings say so together.
    """

    judge: str
    before: float
    after: float


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
    - `near`: how many candidates score practically the same as the best.
    - `certainty`: the share of resamples that lead to the same choice. `runner_up` is the choice
      that most of the others lead to: readout and layer.
    - `relative_cost`: computation per text, relative to today's.
    - `encoder`: the judging encoder, if it was trained for embeddings.
    - `teacher`: the prompt that a head learned from.
    - `texts_per_second`: of `today`, of the choice (`now`), and of the judging encoder.
    """

    judge: str
    kept_default: bool
    score_name: str = ""
    before: float | None = None
    after: float | None = None
    interval: Range | None = None
    readout_gain: float | None = None
    layer_gain: float | None = None
    near: int = 0
    certainty: float | None = None
    runner_up: tuple[str, int] | None = None
    relative_cost: float | None = None
    encoder: str | None = None
    teacher: str | None = None
    training: Training | None = None
    neighbors: NeighborShares | None = None
    texts_per_second: dict[str, float] = field(default_factory=dict)
    search: SearchEvidence | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the evidence that a manifest holds."""
        nested: dict[str, Any] = {}
        if values.get("training"):
            nested["training"] = Training(**values["training"])
        if values.get("neighbors"):
            nested["neighbors"] = NeighborShares(**values["neighbors"])
        if values.get("search"):
            search = values["search"]
            measures = {name: Change(**change) for name, change in search["measures"].items()}
            nested["search"] = SearchEvidence(**{**search, "measures": measures})
        # a stranger may have added others
        names = [item.name for item in fields(cls)]
        recorded = {name: values[name] for name in names if name in values}
        return cls(**{**recorded, **nested})

    @property
    def change(self) -> Change:
        """Return the score before and after with the interval of the gain."""
        assert self.before is not None
        assert self.after is not None
        assert self.interval is not None
        return Change(self.before, self.after, self.interval)


COLUMNS = ["readout", "layer", "site", "score", *INTERVAL, "tied", "chosen", "cost", "eligible"]


@dataclass(frozen=True)
class Outcome:
    """A choice and the evidence for it."""

    choice: Choice
    evidence: Evidence


def candidate_costs(
    reader: Reader, readouts: Sequence[Readout], tokens: dict[str, float]
) -> np.ndarray:
    """Return the costs of candidates (readouts, layers) from the mean tokens of each template."""
    counts = [tokens[readout.template] for readout in readouts]
    fillers = [needs_filler(reader.model, readout.final_norm) for readout in readouts]
    return relative_costs(counts, reader.layers, fillers)


def relative_costs(
    tokens: Sequence[float], layers: Sequence[int], fillers: Sequence[bool]
) -> np.ndarray:
    """Return what each candidate costs (readouts, layers) relative to today: tokens × blocks.

    `tokens` are the mean tokens per text under each readout; the first readout is the default.
    `fillers` says of which readouts an export runs a block more, of zeros.
    """
    blocks = np.asarray(layers) + np.asarray(fillers, dtype=np.float64)[:, None]
    share = np.asarray(tokens)[:, None] / tokens[0]
    return share * np.maximum(blocks, 0.5) / max(layers)  # the embeddings alone are not free


def make_candidates(
    readouts: Sequence[Readout],
    layers: Sequence[int],
    costs: np.ndarray,
    suited: Sequence[bool] | None = None,
    usable: np.ndarray | None = None,
) -> list[Candidate]:
    """Return a candidate for every layer under every readout, readout by readout.

    Readouts that are not `suited` to the texts are blocked, unless no other candidate is `usable`.
    """
    suits = np.full(len(readouts), True) if suited is None else np.asarray(suited)
    if usable is not None and not (np.repeat(suits, len(layers)) & usable).any():
        suits = np.full(len(readouts), True)
    candidates: list[Candidate] = []
    for i, readout in enumerate(readouts):
        blocked = "" if suits[i] else "not suited to the texts"
        candidates += layers_of(readout, layers, costs[i], blocked)
    return candidates


def baseline_of(candidates: Sequence[Candidate]) -> int:
    """Return the place of the last layer under the default readout."""
    places = [i for i, candidate in enumerate(candidates) if candidate.readout == Readout()]
    return max(places, key=lambda place: candidates[place].layer)


def describe(
    decision: Decision, candidates: Sequence[Candidate], scores: Scores, judges: Judges
) -> Outcome:
    """Return a decision as a choice, with what the judges' scores say of it.

    They claim nothing in points, so that the choice has no gain. The interval of the evidence holds
    for whichever candidate is chosen. The gain has two parts: of the readout, at the last layer,
    and of the layer.
    """
    chosen = candidates[decision.chosen]
    baseline = baseline_of(candidates)
    last = candidates[baseline].layer
    places = {(candidate.readout, candidate.layer): i for i, candidate in enumerate(candidates)}
    before, middle, after = (
        float(scores.values[place])
        for place in (baseline, places[chosen.readout, last], decision.chosen)
    )
    choice = Choice(
        chosen.layer,
        chosen.readout_name,
        tied=decision.tied_layers,
        rule="improve",
        layers=last,
        reason=decision.weak,
        abstained=bool(decision.weak),
        before=before,
        after=after,
        table=_table(decision, candidates, scores),
    )
    resampled = decision.resample()
    runner_up = None
    if resampled is not None and resampled.runner_up is not None:
        second = candidates[resampled.runner_up]
        runner_up = (second.readout_name, second.layer)
    evidence = Evidence(
        judge=judges.name,
        kept_default=decision.chosen == baseline,
        score_name=judges.score_name,
        before=before,
        after=after,
        interval=(decision.claim.gain.low, decision.claim.gain.high),
        readout_gain=middle - before,
        layer_gain=after - middle,
        near=int(decision.near.sum()),
        certainty=None if resampled is None else resampled.certainty,
        runner_up=runner_up,
        relative_cost=chosen.cost,
        encoder=judges.trained_encoder,
    )
    return Outcome(choice, evidence)


def _table(decision: Decision, candidates: Sequence[Candidate], scores: Scores) -> pd.DataFrame:
    """Return one row per candidate, the best first."""
    low, high = scores.interval()
    table = pd.DataFrame(
        {
            "readout": [candidate.readout_name for candidate in candidates],
            "layer": [candidate.layer for candidate in candidates],
            "site": [site_of(candidate.layer) for candidate in candidates],
            "score": scores.values,
            INTERVAL[0]: low,
            INTERVAL[1]: high,
            "tied": decision.tied,
            "chosen": np.arange(len(candidates)) == decision.chosen,
            "cost": [candidate.cost for candidate in candidates],
            "eligible": [not candidate.blocked for candidate in candidates],
        }
    )
    return table.sort_values("score", ascending=False, na_position="last", ignore_index=True)


def front(table: pd.DataFrame) -> pd.DataFrame:
    """Return the eligible candidates that none beats at the same cost or less, the cheapest first."""
    table = table[table["eligible"].astype(bool)].dropna(subset=["score"])
    ordered = table.sort_values(["cost", "score"], ascending=[True, False])
    best_before = ordered["score"].shift().cummax().fillna(-np.inf)
    return ordered[ordered["score"] > best_before].reset_index(drop=True)
