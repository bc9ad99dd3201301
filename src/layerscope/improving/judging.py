"""The judges of an improvement: an encoder, a few labels, an object, or the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from layerscope.choose import weigh_by_reliability
from layerscope.choose.judges.agreement import Neighborhoods
from layerscope.choose.judges.base import TEXTS, Judge, scores_of_items
from layerscope.choose.judges.consistency import (
    VIEWS,
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    make_views,
)
from layerscope.choose.labels.read import Labeled
from layerscope.choose.labels.scores import LABELS_SHARE, score_labels
from layerscope.core.identity import ModelIdentity
from layerscope.core.plugins import PluginError
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.errors import DownloadError, LayerscopeError, OfflineError, UnknownNameError
from layerscope.improving.candidates import StoredCandidates
from layerscope.improving.sample import knows_language, own_readout, unknown_share
from layerscope.models import LoadedModel, catalogue, load
from layerscope.models.load import at_commit
from layerscope.models.source import check_name, resolve

NONE = "none"
PARTS_OF = 100
"""Texts whose parts are read for a second opinion, at most; and at most a fifth of the sample."""

LABELED = "labeled"
"""The view of the labeled texts; their vectors are centered as those of the sample are."""

LONG = 40
"""Mean tokens above which a text is more than a sentence, which prompts for one word may not
suit."""

JudgeOption = str | LoadedModel | Judge
"""A model's name or a loaded model to agree with, `none`, or an object with a method `judge`."""


@dataclass(frozen=True)
class Judges:
    """The sources that score candidates. With none of the three, the model judges itself.

    - `encoder`: a sentence encoder that candidates should agree with, read by `encoder_readout`.
    - `labels`: a few labeled examples.
    - `custom`: an object with a method `judge`.
    """

    encoder: LoadedModel | None = None
    encoder_readout: Readout = field(default_factory=Readout)
    labels: Labeled | None = None
    custom: Judge | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_model_alone(self) -> bool:
        """Return whether the model judges itself."""
        return self.encoder is None and self.labels is None and self.custom is None

    @property
    def name(self) -> str:
        """Return the judges in words."""
        if self.is_model_alone:
            return "the model's own consistency"
        names = []
        if self.labels is not None:
            names.append(f"{len(self.labels)} labeled examples")
        if self.encoder is not None:
            names.append(f"agreement with {self.encoder.name}")
        if self.custom is not None:
            names.append(f"the judge {self.custom.name}")
        return " and ".join(names)

    @property
    def score_name(self) -> str:
        """Return the name of the score."""
        if self.is_model_alone:
            return "agreement with the most consistent readouts"
        if self.labels is not None and self.custom is not None:
            return f"labels and {self.custom.name}, standardized"
        if self.labels is not None:
            together = "labels and agreement, standardized"
            return "score on your labels" if self.encoder is None else together
        if self.encoder is not None:
            return f"agreement with {self.encoder.name}"
        assert self.custom is not None
        return f"score of {self.custom.name}"

    @property
    def trained_encoder(self) -> str | None:
        """Return the name of an encoder that was trained for embeddings, and judges."""
        if self.encoder is None or not self.encoder.identity.get("sentence_encoder"):
            return None
        return self.encoder.name

    @property
    def reads_parts(self) -> bool:
        """Return whether parts of the texts have to be read."""
        return self.is_model_alone or (self.custom is not None and bool(self.custom.views))

    @property
    def takes_second_opinion(self) -> bool:
        """Return whether recognizing texts by their parts counts as well."""
        return not self.is_model_alone and self.custom is None

    def eligible(self, readouts: Sequence[Readout], tokens: float) -> list[bool] | None:
        """Return which readouts may be chosen; None for all of them.

        The most consistent readouts are those that keep the words of a text, whatever they mean.
        So where the model judges itself on sentences, only centered prompts are eligible, and heads
        that learn from them: the prompts agree about meaning.
        """
        if not self.is_model_alone or tokens > LONG:
            return None
        return [
            readout.centering == HEAD
            or (readout.template != "plain" and readout.centering == "corpus")
            for readout in readouts
        ]

    def views(self, texts: Sequence[str], seed: int) -> dict[str, Sequence[str]]:
        """Return the texts that have to be read, by the name of their view."""
        views: dict[str, Sequence[str]] = {TEXTS: texts}
        if self.reads_parts:
            views |= make_views(texts, seed)
        if self.labels is not None:
            views[LABELED] = self.labels.texts
        return views

    def score(
        self, candidates: StoredCandidates, reference: Neighborhoods | None, seed: int
    ) -> tuple[Scores, ...]:
        """Return the scores of each source. `reference` has the neighbors to agree with."""
        scores = []
        if self.labels is not None:
            scores.append(
                score_labels(
                    self.labels,
                    candidates.readouts,
                    candidates.layers,
                    lambda readout: np.asarray(candidates.vectors(readout, LABELED)),
                    seed,
                )
            )
        if reference is not None:
            scores.append(agreement_scores(candidates, reference, seed))
        if self.custom is not None:
            scores.append(ask(self.custom, candidates, seed))
        return tuple(scores)

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """Return the sources' scores as one; labels count more."""
        weighted = list(scores)
        if self.labels is not None:
            weighted[0] = replace(weighted[0], weight=LABELS_SHARE)
        return weigh_by_reliability(weighted)


def check_judge(judge: JudgeOption | None) -> JudgeOption:
    """Return the judge that an option names; raise where it names none."""
    if judge is None:
        return NONE
    if isinstance(judge, LoadedModel):
        return judge
    if isinstance(judge, str):
        try:
            if judge != NONE:
                check_name(judge)
            return judge
        except UnknownNameError as error:
            forms = (
                "A judge is none, or a sentence encoder: one of the catalogue, a folder, or a hub "
                "id org/name[@revision]."
            )
            raise UnknownNameError("judge", judge, [NONE, *catalogue()], forms) from error
    if isinstance(judge, type) or not isinstance(judge, Judge):
        raise LayerscopeError(
            "a judge is a model's name, a loaded model, or an object with name, views and a method "
            f"`judge`, not {judge!r:.60}."
        )
    for view in judge.views:
        if view not in (TEXTS, *VIEWS):
            kind = f"view, which the judge {judge.name!r} asks for"
            raise UnknownNameError(kind, view, [TEXTS, *VIEWS])
    return judge


def make_judges(
    judge: JudgeOption,
    labels: Labeled | None,
    model: LoadedModel,
    texts: Sequence[str],
) -> Judges:
    """Open the judges; an encoder that does not know the texts is dropped with a note."""
    if judge == NONE:
        return Judges(labels=labels)
    folder = None
    if isinstance(judge, LoadedModel):
        encoder = judge
    elif isinstance(judge, str):
        try:
            encoder = load(judge)
        except (OfflineError, DownloadError) as error:
            raise type(error)(
                f"the judge: {error} Or judge without an encoder: judge='none'."
            ) from error
        folder = resolve(at_commit(judge, encoder)).path
    else:
        return Judges(labels=labels, custom=judge)
    if ModelIdentity.of(encoder.identity).same_as(ModelIdentity.of(model.identity)):
        raise LayerscopeError(
            f"the judge {encoder.name!r} is the model itself, and would agree with what it does "
            "already. Give another sentence encoder (judge='minilm-l6'), or let the model judge "
            "itself by its consistency (judge='none')."
        )
    if not knows_language(encoder, texts[:200]):
        share = unknown_share(encoder, texts[:200])
        note = (
            f"{encoder.name} does not know {share:.0%} of the words of these texts, and is not "
            "asked: another language? The model is judged by its own consistency instead."
        )
        return Judges(labels=labels, notes=(note,))
    notes: tuple[str, ...] = ()
    if not encoder.identity.get("sentence_encoder"):
        notes = (
            f"the judge {encoder.name} is not a sentence encoder: its opinion of neighbors may be "
            "worth little.",
        )
    return Judges(encoder, own_readout(folder, encoder.width), labels, notes=notes)


def find_consensus(candidates: StoredCandidates, seed: int) -> Neighborhoods:
    """Return the neighbors on which the most consistent candidates agree."""
    ranks = added_ranks(consistency_items(candidates), seed).values
    return Neighborhoods.of(consensus(candidates, best_candidates(ranks)))


def agreement_scores(candidates: StoredCandidates, reference: Neighborhoods, seed: int) -> Scores:
    """Return the agreement of every candidate with the reference, over the texts."""
    count = len(candidates.layers)
    shape = (len(candidates.readouts) * count, len(candidates.texts))
    items = np.full(shape, np.nan, dtype=np.float32)
    for row, readout in enumerate(candidates.readouts):
        for column in range(count):
            cosines = candidates.similarity(readout, column)
            if cosines is not None:
                agreement = reference.agreement(cosines.to(reference.near.device))
                items[row * count + column] = agreement.cpu()
    return scores_of_items("agreement", items, seed)


def append_rows(scores: Scores, more: Scores) -> Scores:
    """Return scores with those of further candidates after them."""
    draws = None
    if scores.draws is not None and more.draws is not None:
        draws = np.concatenate([scores.draws, more.draws])
    return replace(scores, values=np.concatenate([scores.values, more.values]), draws=draws)


def ask(judge: Judge, candidates: StoredCandidates, seed: int) -> Scores:
    """Return the scores of a judge object; raise an error that names it where it fails."""
    try:
        answer = judge.judge(candidates, seed=seed)
    except LayerscopeError:
        raise
    except Exception as error:
        raise PluginError(
            f"the judge {judge.name!r} failed: {type(error).__name__}: {error}."
        ) from error
    shape = (len(candidates.readouts) * len(candidates.layers),)
    values: Any = getattr(answer, "values", None)
    draws: Any = getattr(answer, "draws", None)
    if np.shape(values) != shape or (draws is not None and np.shape(draws)[:-1] != shape):
        raise PluginError(
            f"the judge {judge.name!r} must return Scores with {shape[0]} values, one for each "
            f"layer under each readout, and draws ({shape[0]}, resamples) or none at all; it "
            f"returned {type(answer).__name__} with shapes {np.shape(values)} and "
            f"{np.shape(draws)}."
        )
    return replace(answer, source=answer.source or judge.name)


def parts_of(count: int) -> int:
    """Return how many of the texts are read in parts for a second opinion."""
    return min(count, PARTS_OF, max(20, count // 5))


def prefers_plain_text(scores: Scores, readouts: Sequence[Readout]) -> bool:
    """Return whether the plain text scores higher than every prompt.

    Most weak judges prefer the plain text, good ones hardly ever.
    """
    rows = scores.values.reshape(len(readouts), -1)
    tops = np.where(np.isfinite(rows), rows, -np.inf).max(axis=1)
    is_plain = np.array([readout.template == "plain" for readout in readouts])
    best_prompt = tops[~is_plain].max(initial=-np.inf)
    return bool(np.isfinite(best_prompt) and tops[is_plain].max() > best_prompt)
