"""The judges of an improvement: an encoder, a few labels, an object, or the model itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.choose import weigh_by_reliability
from layerscope.choose.judges.agreement import Neighborhoods, similarities
from layerscope.choose.judges.base import TEXTS, Judge, scores_of_items
from layerscope.choose.judges.consistency import (
    VIEWS,
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    make_views,
)
from layerscope.choose.label_scores import LABELS_SHARE, score_labels
from layerscope.choose.labels import Labeled
from layerscope.core.identity import ModelIdentity
from layerscope.core.plugins import PluginError
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.data.records import lack_words
from layerscope.errors import (
    DownloadError,
    LayerscopeError,
    NonFiniteStatesError,
    OfflineError,
    UnknownNameError,
)
from layerscope.improving.candidates import StoredCandidates
from layerscope.improving.reader import Chosen, Reader
from layerscope.models import LoadedModel, catalogue, load
from layerscope.models.load import at_commit
from layerscope.models.source import check_name, resolve
from layerscope.progress import Progress
from layerscope.vectors import VectorStore

NONE = "none"
DEFAULT_JUDGE = "minilm-l6"
LABELED = "labeled"
"""The view of the labeled texts; their vectors are centered as those of the sample are."""

LONG = 40
"""Mean tokens above which a text is more than a sentence, which prompts for one word may not
suit."""

_MOST_UNKNOWN = 0.1
_ENCODER_LENGTH = 256

JudgeOption = str | LoadedModel | Judge
"""A model's name or a loaded model to agree with, `none`, or an object with a method `judge`."""


@dataclass(frozen=True)
class Agreement:
    """A judge by the agreement of candidates with reference neighbors."""

    reference: Neighborhoods
    name: str = "agreement"
    views: tuple[str, ...] = ()

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Score every candidate by the mean agreement over the texts."""
        rows = []
        for readout in candidates.readouts:
            for layer in candidates.layers:
                cosines = candidates.similarity(readout, layer)
                row = np.full(len(candidates.texts), np.nan, dtype=np.float32)
                if cosines is not None:
                    cosines = cosines.to(self.reference.near.device)
                    row = self.reference.agreement(cosines).cpu().numpy()
                rows.append(row)
        return scores_of_items(self.name, np.stack(rows), seed)


@dataclass(frozen=True)
class LabelJudge:
    """A judge by a few labeled examples, whose texts are a view of the candidates."""

    labels: Labeled

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Return the scores of the candidates on the examples."""
        return score_labels(
            self.labels,
            candidates.readouts,
            candidates.layers,
            lambda readout: candidates.vectors(readout, LABELED),
            seed,
        )


@dataclass(frozen=True)
class CheckedJudge:
    """A judge of the user's. Wrong scores become an error that names it."""

    user_judge: Judge

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Return the judge's scores."""
        name = self.user_judge.name
        try:
            scores = self.user_judge.judge(candidates, seed=seed)
            shape = np.shape(scores.values)
        except LayerscopeError:
            raise
        except Exception as error:
            raise PluginError(
                f"the judge {name!r} failed: {type(error).__name__}: {error}."
            ) from error
        count = len(candidates.readouts) * len(candidates.layers)
        if shape != (count,) or (scores.draws is not None and len(scores.draws) != count):
            raise PluginError(
                f"the judge {name!r} must return Scores with {count} values, one for each layer "
                f"under each readout, and draws ({count}, resamples) or none; its values have the "
                f"shape {shape}."
            )
        return replace(scores, source=scores.source or name)


@dataclass(frozen=True)
class Judges:
    """The sources that score candidates. With none of the three, the model judges itself.

    - `encoder`: a sentence encoder that candidates should agree with, read as it reads itself.
    - `labels`: a few labeled examples.
    - `custom`: an object with a method `judge`.
    """

    encoder: Chosen | None = None
    labels: Labeled | None = None
    custom: Judge | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_model_alone(self) -> bool:
        """Return whether the model judges itself."""
        return self.encoder is None and self.labels is None and self.custom is None

    @property
    def encoder_name(self) -> str:
        """Return the name of the encoder; empty where there is none."""
        return "" if self.encoder is None else self.encoder.model.name

    @property
    def name(self) -> str:
        """Return the judges in words."""
        names = []
        if self.labels is not None:
            names.append(f"{len(self.labels)} labeled examples")
        if self.encoder is not None:
            names.append(f"agreement with {self.encoder_name}")
        if self.custom is not None:
            names.append(f"the judge {self.custom.name}")
        return " and ".join(names) or "the model's own consistency"

    @property
    def score_name(self) -> str:
        """Return the name of the score."""
        if self.is_model_alone:
            return "agreement with the most consistent readouts"
        if self.labels is None:
            return self.name.replace("the judge", "score of")
        if self.encoder is None and self.custom is None:
            return "score on your labels"
        other = "agreement" if self.custom is None else self.custom.name
        return f"labels and {other}, standardized"

    @property
    def trained_encoder(self) -> str | None:
        """Return the name of an encoder that was trained for embeddings, and judges."""
        if self.encoder is None or not self.encoder.model.identity.get("sentence_encoder"):
            return None
        return self.encoder_name

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

    def open(self, candidates: StoredCandidates, seed: int, bar: Progress) -> tuple[Judge, ...]:
        """Return the judges of candidates; where labels judge, they are the first."""
        judges: list[Any] = []
        if self.labels is not None:
            judges.append(LabelJudge(self.labels))
        if self.encoder is not None:
            encoded = encode_by_judge(self.encoder, candidates.texts, bar)
            judges.append(Agreement(Neighborhoods.of(similarities(encoded))))
        if self.custom is not None:
            judges.append(CheckedJudge(self.custom))
        if self.is_model_alone:
            ranks = added_ranks(consistency_items(candidates), seed).values
            judges.append(
                Agreement(Neighborhoods.of(consensus(candidates, best_candidates(ranks))))
            )
        return tuple(judges)

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """Return the scores of all judges as one; labels count more."""
        weighted = list(scores)
        if self.labels is not None:
            weighted[0] = replace(weighted[0], weight=LABELS_SHARE)
        return weigh_by_reliability(weighted)


def check_judge(judge: JudgeOption | None) -> JudgeOption:
    """Return the judge that an option names; raise where it names none."""
    if judge is None or isinstance(judge, LoadedModel):
        return judge or NONE
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
    reader: Reader,
    texts: Sequence[str],
) -> Judges:
    """Open the judges; an encoder that does not know the texts is dropped with a note."""
    if judge == NONE:
        return Judges(labels=labels)
    if judge == DEFAULT_JUDGE and lack_words(texts):
        note = (
            f"{DEFAULT_JUDGE} is not used: it was trained on sentences, and most of these texts "
            "are hardly made of words."
        )
        return Judges(labels=labels, notes=(note,))
    if not isinstance(judge, str | LoadedModel):
        return Judges(labels=labels, custom=judge)
    folder = None
    if isinstance(judge, LoadedModel):
        encoder = judge
    else:
        try:
            encoder = load(judge)
        except (OfflineError, DownloadError) as error:
            raise type(error)(
                f"the judge: {error} Or judge without an encoder: judge='none'."
            ) from error
        folder = resolve(at_commit(judge, encoder)).path
    if ModelIdentity.of(encoder.identity).same_as(ModelIdentity.of(reader.model.identity)):
        raise LayerscopeError(
            f"the judge {encoder.name!r} is the model itself, and would agree with what it does "
            "already. Give another sentence encoder (judge='minilm-l6'), or let the model judge "
            "itself by its consistency (judge='none')."
        )
    share = unknown_share(encoder, texts[:200])
    if share > _MOST_UNKNOWN:
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
    reading = read_as_itself(encoder, folder, reader.store)
    return Judges(reading, labels, notes=notes)


def read_as_itself(encoder: LoadedModel, folder: Path | None, store: VectorStore) -> Chosen:
    """Return a sentence encoder with its own readout at its last layer."""
    reader = Reader(encoder, store, _ENCODER_LENGTH)
    return Chosen(reader, own_readout(folder), encoder.n_blocks)


def encode_by_judge(encoder: Chosen, texts: Sequence[str], bar: Progress) -> np.ndarray:
    """Return the judging encoder's vectors (texts, D); refuse it where they say nothing."""
    name = encoder.model.name
    advice = "Give another sentence encoder (judge=), or judge without one: judge='none'."
    try:
        vectors = encoder.reader.vectors(
            encoder.readout, encoder.layer, texts, bar, f"{name}, the judge"
        )
    except NonFiniteStatesError as error:
        problem = str(error).partition(" for ")[0]
        raise LayerscopeError(
            f"the judge {name} cannot be used: {problem}. Its weights may be damaged. {advice}"
        ) from error
    if np.ptp(vectors, axis=0).max() <= 1e-6 * np.abs(vectors).max():
        raise LayerscopeError(
            f"the judge {name} cannot be used: it gives all texts the same vector. {advice}"
        )
    return vectors


def unknown_share(model: LoadedModel, texts: Sequence[str]) -> float:
    """Return the share of a model's tokens of texts that stand for something unknown to it."""
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    if unknown is None:
        return 0.0
    ids = [i for row in model.tokenize(list(texts)).ids for i in row]
    return ids.count(unknown) / max(1, len(ids))


def knows_language(model: LoadedModel, texts: Sequence[str]) -> bool:
    """Return whether a model knows nearly all words of the texts."""
    return unknown_share(model, texts) <= _MOST_UNKNOWN


def own_readout(folder: Path | None) -> Readout:
    """Return how a sentence encoder reads texts itself, by the pooling module of its folder.

    It is the mean where the folder does not say.
    """
    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return Readout()
    config = json.loads(file.read_text(encoding="utf-8"))
    # the mean last: some configs name it beside another
    for name, pooling in reversed(POOLINGS.all().items()):
        mode = str(pooling.sentence_transformers)
        short = mode.removesuffix("_token").removesuffix("_tokens")
        if config.get(f"pooling_mode_{mode}") or config.get("pooling_mode") == short:
            return Readout(pooling=name)
    return Readout()
