"""`improve` for a search: how queries find documents best, each side read in its own way by one
layer of a model.

A folder of sentence-transformers has a prompt for each side and one pooling. So a *way* is a
template for each side, of two that end alike, read by the same pooling at the same layer; each side
is centered on its own mean, or mapped by a head after that. Half of the queries choose; whether
that is better than today, and by how much, the other half says (`core.picking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from layerscope.core.candidates import Place, ScoredCandidates
from layerscope.core.heads import Head, Ridge, make_target, unit
from layerscope.core.picking import Picking, pick
from layerscope.core.readout import HEAD, Readout
from layerscope.core.templates import SLOT, get_template
from layerscope.errors import LayerscopeError
from layerscope.exporting.cutting import needs_filler
from layerscope.improving.choose import decide, relative_costs
from layerscope.improving.chosen import Chosen
from layerscope.improving.fitting import Fitted
from layerscope.improving.grid import StoredCandidates, by_template
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.job import JOBS, ImproveJob, of_name
from layerscope.improving.judging import JudgeGiven, Panel, make_panel
from layerscope.improving.neighbors import changed_share, neighbor_table
from layerscope.improving.pairs import TOP, Asked, ranking_scores
from layerscope.improving.record import evidence_of, told
from layerscope.improving.result import Improved
from layerscope.improving.speed import compare_speeds
from layerscope.selection.choice import Choice
from layerscope.selection.judges.agreement import Neighborhoods
from layerscope.selection.judges.base import TEXTS, combined, text_weights
from layerscope.selection.judges.few_labels import LABELS_SHARE

NDCG, RECALL, AGREEMENT = f"nDCG@{TOP}", f"recall@{TOP}", "agreement"


class Way(NamedTuple):
    """How both sides are read."""

    query: Readout
    document: Readout

    @property
    def joined(self) -> Readout:
        """Both as one readout, to name a candidate by."""
        names = dict.fromkeys(readout.template for readout in self)
        return replace(self.document, template="+".join(names))


def make_ways(grid: Sequence[Readout]) -> list[Way]:
    """The readouts of a grid that go together, today's first: alike but for words before the
    text."""

    def end(readout: Readout) -> tuple[str, Readout]:
        return get_template(readout.template).pattern.split(SLOT)[1], replace(readout, template="")

    documents = [readout for readout in grid if not get_template(readout.template).queries]
    return [Way(one, other) for other in documents for one in grid if end(one) == end(other)]


@dataclass
class SearchJob(ImproveJob):
    """An improvement of a search; its sample is the documents."""

    asked: Asked = field(kw_only=True)

    def _choose(self, judge: JudgeGiven, out: Path | None, overwrite: bool) -> Improved:
        asked, layers, seed, budget = (
            self.asked,
            self.reader.layers,
            self.settings.seed,
            self.settings.budget,
        )
        panel = make_panel(
            judge, None, self.model, [*asked.queries[:100], *asked.documents[:100]], self.offline
        )
        self.notes += panel.notes
        if panel.encoder is None and not asked.paired.any():
            raise LayerscopeError(
                "a search is judged by a sentence encoder (judge='minilm-l6') or by pairs=: give one of them."
            )
        ways = make_ways(self._grid())
        self._read(panel, ways)
        measured = np.stack([self._of_way(way) for way in ways])
        halves = asked.halves(seed)
        teacher = self._teacher(panel, measured, ways, halves[0])
        if teacher is not None:
            found = (teacher.similarities(place) for place in range(len(layers)))
            count = len(asked.queries)
            mine = np.stack(
                [self._measure(None if one is None else one[:count, count:]) for one in found]
            )
            measured, ways = (
                np.concatenate([measured, mine[None]]),
                [*ways, Way(HEAD_READOUT, HEAD_READOUT)],
            )
        readouts = [way.joined for way in ways]
        tokens = self.reader.tokens(
            list({way.document.template: 0 for way in ways}), asked.documents[:200]
        )
        more = [needs_filler(self.model, way.document.final_norm) for way in ways]
        costs = relative_costs(
            [tokens[way.document.template] for way in ways], layers, self.model.n_blocks, more
        )
        said, every = self._said(panel, measured, halves[0], seed), np.full(costs.shape, True)
        choice = decide(
            said, readouts, layers, costs, budget, only=every
        )  # whether it is better, the other half says
        checked = self._parts(panel, measured, halves[1], seed)
        today, place = (
            (0, len(layers) - 1),
            (readouts.index(of_name(readouts, choice.readout)), layers.index(choice.layer)),
        )
        count = int(asked.paired[halves[1]].sum()) or len(halves[1])
        picked = confirm(checked, place, today, budget is not None and budget < 1, seed)
        if place != today and not picked.moved:
            only = ~every
            only[today] = True
            choice = decide(said, readouts, layers, costs, only=only)
            weak = f"on {count} queries that did not choose it, nothing is shown to be better than what you have"
            choice, place = replace(choice, reason=weak, abstained=True), today
        evidence = self._evidence(panel, choice, checked, picked, place, count)
        return self._hand_over(panel, ways[place[0]], choice, teacher, evidence, out, overwrite)

    def _read(self, panel: Panel, ways: Sequence[Way]) -> None:
        """Both sides under their templates, and the encoder's opinion of them."""
        texts = (self.asked.queries, self.asked.documents)
        self.encoded: list[np.ndarray] | None = None
        for some, kind, read in zip(
            texts, ("queries", "documents"), zip(*ways, strict=True), strict=True
        ):
            self.reader.read(
                by_template(read), some, self.bar, f"{self.model.name} reads {len(some)} {kind}"
            )
        self.sides = [
            StoredCandidates(self.reader.spaces, [], self.reader.layers, {TEXTS: some})
            for some in texts
        ]
        if panel.encoder is not None:
            self.encoded = [
                np.asarray(panel.encoded(self.reader, some, self.bar)) for some in texts
            ]
            self.reference = Neighborhoods.of(torch.as_tensor(_cosines(*self.encoded)))
        self.bar.begin("judging|ways", len(ways))

    def _of_way(self, way: Way) -> np.ndarray:
        """What is measured of a way at every layer."""
        found = (side.vectors(readout) for side, readout in zip(self.sides, way, strict=True))
        measured = np.stack([self._measure(_cosines(*both)) for both in zip(*found, strict=True)])
        self.bar.advance(1)
        return measured

    def _measure(self, similarity: np.ndarray | None) -> np.ndarray:
        """nDCG, recall and agreement (3, queries) of similarities (queries, documents); NaN where
        they say nothing."""
        count = len(self.asked.queries)
        if similarity is None or not np.isfinite(similarity).all():
            return np.full((3, count), np.nan)
        agreement = np.full(count, np.nan)
        if self.encoded is not None:
            agreement = self.reference.agreement(
                torch.as_tensor(similarity, dtype=torch.float32)
            ).numpy()
        return np.stack([*ranking_scores(similarity, self.asked.relevant), agreement])

    def _parts(
        self, panel: Panel, measured: np.ndarray, half: np.ndarray, seed: int
    ) -> dict[str, ScoredCandidates]:
        """What each measure says on some of the queries, the one that decides first; all on the
        same resamples."""
        paired, found = self.asked.paired[half], {}
        parts = [one for one in (half[paired], half[~paired]) if len(one)]
        drawn = np.concatenate(
            [len(one) * text_weights(len(one), seed + k) for k, one in enumerate(parts)], axis=1
        )
        for i, (name, count) in enumerate(
            ((NDCG, paired.sum()), (RECALL, paired.sum()), (AGREEMENT, len(half)))
        ):
            if count and (name != AGREEMENT or panel.encoder is not None):
                items = measured[:, :, i, np.concatenate(parts)[:count]].astype(np.float64)
                found[name] = ScoredCandidates(
                    items.mean(-1), items @ drawn[:, :count].T / count, judge=name
                )
        return found

    def _said(
        self, panel: Panel, measured: np.ndarray, half: np.ndarray, seed: int
    ) -> ScoredCandidates:
        """The score that chooses: pairs and the encoder, as far as there are such."""
        parts = self._parts(panel, measured, half, seed)
        shares = {NDCG: LABELS_SHARE, AGREEMENT: 1.0}
        return combined(
            [parts[name] for name in shares if name in parts],
            [shares[name] for name in shares if name in parts],
        )

    def _centered(self, readouts: Way, place: int) -> np.ndarray:
        """Queries, then documents, each centered on their own mean."""
        both = (replace(readout, centering="corpus") for readout in readouts)
        return np.concatenate(
            [side.vectors(readout)[place] for side, readout in zip(self.sides, both, strict=True)]
        )

    def _teacher(
        self, panel: Panel, measured: np.ndarray, ways: Sequence[Way], half: np.ndarray
    ) -> Heads | None:
        """Heads at every layer, taught by the best way that is not plain; None where none is better
        than today."""
        layers, readouts = self.reader.layers, [way.joined for way in ways]
        said = self._said(panel, measured, half, self.settings.seed)
        teacher = find_teacher(
            said, readouts, layers, "" if panel.encoder is None else panel.encoder.name
        )
        if teacher is None:
            return None
        self.prompted = self._centered(
            ways[readouts.index(teacher.readout)], layers.index(teacher.layer)
        )
        plain = Way(Readout(), Readout())
        return fit_heads(
            teacher,
            np.stack([self._centered(plain, place) for place in range(len(layers))]),
            self.prompted,
        )

    def _fitted(self, way: Way, layer: int, heads: Heads | None) -> list[Fitted | None]:
        """What is done to the vectors of each side."""
        if way.document.centering == "none":
            return [None, None]
        matrix, place = None, self.reader.layers.index(layer)
        if way.document.centering == HEAD and heads is not None:
            teachers = [self.prompted]
            if self.encoded is not None:
                teachers.append(np.concatenate([one - one.mean(0) for one in self.encoded]))
            matrix = Ridge(heads.raw[place], make_target(*teachers)).head().matrix
        fitted: list[Fitted | None] = []
        for kind, side, readout in zip(("queries", "documents"), self.sides, way, strict=True):
            fact = self.asked.facts[kind]
            whose = replace(self.sample, total=fact["distinct"], name=fact["name"])
            fitted.append(Fitted.of(whose, fact["read"], Head(side.mean(readout, layer), matrix)))
        return fitted

    def _evidence(
        self,
        panel: Panel,
        choice: Choice,
        checked: dict[str, ScoredCandidates],
        picked: Picking,
        place: Place,
        queries: int,
    ) -> dict[str, Any]:
        """What the queries that did not choose say of the choice."""
        today, name = (0, len(self.reader.layers) - 1), next(iter(checked))
        measures: dict[str, dict[str, Any]] = {}
        for i, (what, one) in enumerate(checked.items()):
            gain, before = picked.gain((i, *place), (i, *today)), float(one.score[today])
            measures[what] = {
                "before": before,
                "after": before + gain.value,
                "interval": [gain.low, gain.high],
            }
        middle = measures[name]["before"] + picked.gain((0, place[0], today[1]), (0, *today)).value
        judge, own = "" if panel.encoder is None else panel.encoder.name, None
        who = [f"{self.asked.facts['pairs']['used']} pairs"] * (NDCG in checked) + [
            f"agreement with {judge}"
        ] * bool(judge)
        evidence = {
            **evidence_of(panel, choice), "judge": " and ".join(who),
            "score_name": name if name == NDCG else f"agreement with {judge}", **measures[name],
            "readout_gain": middle - measures[name]["before"], "layer_gain": measures[name]["after"] - middle,
        }  # fmt: skip
        if self.encoded is not None and NDCG in checked:
            half = self.asked.halves(self.settings.seed)[1]
            own = float(
                np.nanmean(ranking_scores(_cosines(*self.encoded), self.asked.relevant)[0][half])
            )
        count = len(self.asked.documents)
        return evidence | {
            "search": {
                "measures": measures,
                "queries": queries,
                "documents": count,
                "judge": judge,
                "own": own,
            }
        }

    def _hand_over(
        self, panel: Panel, way: Way, choice: Choice, heads: Heads | None, evidence: dict[str, Any],
        out: Path | None, overwrite: bool,
    ) -> Improved:  # fmt: skip
        fitted = self._fitted(way, choice.layer, heads)
        query = Chosen(self.model, self.reader, way.query, choice.layer, fitted[0])
        asks = None if evidence["kept_default"] else query
        chosen = Chosen(self.model, self.reader, way.document, choice.layer, fitted[1], asks)
        today, texts = self._today(), self.asked.documents
        before = [side.raw(Readout(), self.model.n_blocks) for side in self.sides]
        after = [
            one.finished(side.raw(one.readout, choice.layer))
            for one, side in zip((query, chosen), self.sides, strict=True)
        ]
        speeds = compare_speeds(panel, today, chosen, texts)
        evidence |= {
            "teacher": heads.teacher.describe() if heads is not None and way.document.centering == HEAD else None,
            "speedup": speeds["now"] / speeds["today"], "texts_per_second": speeds, "encoder": panel.trained_encoder,
            "changed_neighbors": changed_share(before[1], after[1]),
        }  # fmt: skip
        prompts = {
            side: get_template(one.template).pattern
            for side, one in zip(("query", "document"), way, strict=True)
        }
        evidence["search"] |= {
            "prompts": prompts,
            "readout": way.joined.name,
            "query": way.query.name,
        }
        self._note_cuts(way.document)
        choice = told(
            replace(choice, readout=way.document.name),
            self.model,
            self.reader,
            evidence,
            self.notes,
        )
        sampled = {"texts": texts, "before": before[1], "after": after[1]}
        near = neighbor_table(
            self.asked.queries, before[0], after[0], among=(texts, before[1], after[1])
        )
        return self._finish(
            choice, choice.table, sampled, evidence, chosen, out, overwrite, None, near
        )


JOBS["search"] = SearchJob


def confirm(
    checked: Mapping[str, ScoredCandidates], place: Place, today: Place, forced: bool, seed: int
) -> Picking:
    """Whether a choice is better on these queries, by the first measure; places in the answer begin
    with a measure's number."""
    score, draws = (
        np.stack([getattr(one, what) for one in checked.values()]) for what in ("score", "draws")
    )
    only = np.zeros(score.shape, dtype=bool)
    only[(0, *place)] = True
    also = tuple(
        (i, *one) for i in range(len(checked)) for one in (place, (place[0], today[1]), today)
    )
    return pick(
        ScoredCandidates(score, draws), only, lambda _: (0, *today), also, forced=forced, seed=seed
    )


def _cosines(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return unit(queries) @ unit(documents).T
