"""The judges of an improvement: an encoder, labels or pairs, an object, or the model itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.choose import Candidate, weigh_by_reliability
from layerscope.choose.consistency import (
    VIEWS,
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    make_views,
)
from layerscope.choose.decide import weight_of_labels
from layerscope.choose.judges import (
    TEXTS,
    Judge,
    Neighborhoods,
    cosines,
    scores_of_items,
    similarities,
    text_weights,
)
from layerscope.choose.label_scores import LABELS_SHARE, score_labels
from layerscope.choose.labels import Labeled
from layerscope.core.identity import ModelIdentity
from layerscope.core.plugins import PluginError
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.core.templates import POOLINGS
from layerscope.data.records import lack_words
from layerscope.errors import (
    DownloadError,
    LayerscopeError,
    NonFiniteStatesError,
    OfflineError,
    UnknownNameError,
)
from layerscope.improving.candidates import (
    QUERIES,
    Chosen,
    Reader,
    Run,
    StoredCandidates,
    is_constant,
)
from layerscope.improving.request import SearchTexts
from layerscope.models import LoadedModel, catalogue, load
from layerscope.models.load import source_at_commit
from layerscope.models.source import check_name
from layerscope.progress import Progress

NONE = "none"
DEFAULT_JUDGE = "minilm-l6"
LABELED = "labeled"
"""The view of the labeled texts; their vectors are centered as those of the sample are."""

LONG = 40
"""Mean tokens above which a text is more than a sentence, which prompts for one word may not
suit."""

TOP = 10
"""Documents that a reader looks at."""

NDCG = f"nDCG@{TOP}"
AGREEMENT = "agreement"

_MOST_UNKNOWN = 0.1
_ENCODER_LENGTH = 256

JudgeOption = str | LoadedModel | Judge
"""A model's name or a loaded model to agree with, `none`, or an object with a method `judge`."""


@dataclass(frozen=True)
class Agreement:
    """A judge by the agreement of candidates with reference neighbors."""

    reference: Neighborhoods

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Score every candidate by the mean agreement over the texts."""
        rows = []
        for candidate in candidates.candidates:
            similarity = candidates.similarity(candidate)
            row = np.full(len(candidates.texts), np.nan, dtype=np.float32)
            if similarity is not None:
                similarity = similarity.to(self.reference.near.device)
                row = self.reference.agreement(similarity).cpu().numpy()
            rows.append(row)
        return scores_of_items(AGREEMENT, np.stack(rows), seed)


@dataclass(frozen=True)
class RankingJudge:
    """A judge by how queries rank documents: by one measure, on some of the queries.

    `reference` has the neighbors among the documents of every query, for the measure `agreement`.
    """

    name: str
    search: SearchTexts
    places: np.ndarray
    reference: Neighborhoods | None = None

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Score every candidate by the mean over the queries; resamples keep the share of pairs."""
        items = np.stack([self._items(candidates, item) for item in candidates.candidates])
        paired = self.search.paired[self.places]
        groups = [group for group in (self.places[paired], self.places[~paired]) if len(group)]
        weights = [
            len(group) * text_weights(len(group), seed + i) for i, group in enumerate(groups)
        ]
        count = len(self.places) if self.name == AGREEMENT else int(paired.sum())
        items = items[:, np.concatenate(groups)[:count]].astype(np.float64)
        draws = items @ np.concatenate(weights, axis=1)[:, :count].T / count
        return Scores(items.mean(axis=1), draws, self.name)

    def _items(self, candidates: StoredCandidates, candidate: Candidate) -> np.ndarray:
        """Return the measure of every query (queries,); NaN where it says nothing."""
        similarity = candidates.similarity(candidate)
        if similarity is None:
            return np.full(len(self.search.queries), np.nan)
        if self.reference is not None:
            similarity = similarity.float().to(self.reference.near.device)
            return self.reference.agreement(similarity).cpu().numpy()
        return ranking_scores(similarity.cpu().numpy(), self.search.relevant)


def ranking_scores(similarity: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """Return nDCG@10 for each query, as trec_eval and mteb; NaN without a relevant document.

    >>> ndcg = ranking_scores(np.array([[0.9, 0.5, 0.1]]), np.array([[0, 1, 0]]))
    >>> round(float(ndcg[0]), 3)  # the second place counts 1 / log2(3)
    0.631
    """
    top = min(TOP, relevant.shape[1])
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :top]
    discounts = 1 / np.log2(np.arange(top) + 2)
    gained = np.take_along_axis(relevant, order, axis=1)
    ideal = -np.sort(-relevant, axis=1)[:, :top] @ discounts
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((gained @ discounts) / ideal)


@dataclass(frozen=True)
class LabelJudge:
    """A judge by a few labeled examples, whose texts are a view of the candidates."""

    labels: Labeled

    def judge(self, candidates: StoredCandidates, *, seed: int = 0) -> Scores:
        """Return the scores of all layers under each readout; all have heads, or none has."""
        items = candidates.candidates

        def vectors(readout: Readout) -> np.ndarray:
            layers = [item for item in items if item.readout == readout]
            return np.stack([candidates.vectors(item, LABELED) for item in layers])

        readouts = list(dict.fromkeys(item.readout for item in items if item.readout is not None))
        layers = [item.layer for item in items if item.readout == readouts[0]]
        return score_labels(self.labels, readouts, layers, vectors, seed)


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
        count = len(candidates.candidates)
        if shape != (count,) or (scores.draws is not None and len(scores.draws) != count):
            raise PluginError(
                f"the judge {name!r} must return Scores with {count} values, one for each "
                f"candidate, and draws ({count}, resamples) or none; its values have the shape "
                f"{shape}."
            )
        return replace(scores, source=scores.source or name)


@dataclass(frozen=True)
class Judges:
    """The sources that score candidates. With none of them, the model judges itself.

    - `encoder`: a sentence encoder that candidates should agree with, read as it reads itself.
    - `labels`: a few labeled examples.
    - `search`: queries, documents, and the pairs of them that belong together, if any.
    - `custom`: an object with a method `judge`.
    """

    encoder: Chosen | None = None
    labels: Labeled | None = None
    search: SearchTexts | None = None
    custom: Judge | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_model_alone(self) -> bool:
        """Return whether the model judges itself."""
        sources = (self.encoder, self.labels, self.search, self.custom)
        return all(source is None for source in sources)

    @property
    def encoder_name(self) -> str:
        """Return the name of the encoder; empty where there is none."""
        return "" if self.encoder is None else self.encoder.model.name

    @property
    def has_pairs(self) -> bool:
        """Return whether documents are known that belong to queries."""
        return self.search is not None and bool(self.search.paired.any())

    @property
    def name(self) -> str:
        """Return the judges in words."""
        names = []
        if self.labels is not None:
            names.append(f"{len(self.labels)} labeled examples")
        if self.search is not None and self.has_pairs:
            names.append(f"{self.search.facts['pairs']['used']} pairs")
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
        if self.has_pairs:
            return NDCG
        if self.labels is None:
            return self.name.replace("the judge", "score of")
        if self.encoder is None and self.custom is None:
            return "score on your labels"
        partner = "agreement" if self.custom is None else self.custom.name
        return f"labels and {partner}, standardized"

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
        return self.custom is None and self.search is None and not self.is_model_alone

    def eligible(self, candidate: Candidate, tokens: float) -> bool:
        """Return whether a candidate may be chosen for texts of so many tokens.

        The most consistent readouts are those that keep the words of a text, whatever they mean.
        So where the model judges itself on sentences, only centered prompts are eligible, and heads
        that learn from them: the prompts agree about meaning.
        """
        readout = candidate.readout
        if not self.is_model_alone or tokens > LONG or candidate.transform == "head":
            return True
        return readout is not None and readout.template != "plain" and readout.centering == "corpus"

    def views(self, texts: Sequence[str], seed: int) -> dict[str, Sequence[str]]:
        """Return the texts that have to be read, by the name of their view."""
        views: dict[str, Sequence[str]] = {TEXTS: texts}
        if self.reads_parts:
            views |= make_views(texts, seed)
        if self.labels is not None:
            views[LABELED] = self.labels.texts
        if self.search is not None:
            views[QUERIES] = self.search.queries
        return views

    def open(self, candidates: StoredCandidates, seed: int, bar: Progress) -> tuple[Any, ...]:
        """Return the judges of candidates; labels and pairs are the first."""
        judges: list[Any] = []
        if self.labels is not None:
            judges.append(LabelJudge(self.labels))
        if self.search is not None:
            choosing, _ = self.search.halves(seed)
            return tuple(self.measures(self.search, choosing, bar))
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

    def measures(
        self, search: SearchTexts, places: np.ndarray, bar: Progress
    ) -> list[RankingJudge]:
        """Return a judge for each measure of a search on some queries, the most telling first."""
        judges = []
        if self.has_pairs:
            judges.append(RankingJudge(NDCG, search, places))
        if self.encoder is not None:
            reference = Neighborhoods.of(cosines(*encode_sides(self.encoder, search, bar)))
            judges.append(RankingJudge(AGREEMENT, search, places, reference))
        return judges

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """Return the scores of all judges as one; labels and pairs count more."""
        weighted = list(scores)
        if self.labels is not None:
            weighted[0] = replace(weighted[0], weight=weight_of_labels(len(self.labels)))
        elif self.has_pairs:
            weighted[0] = replace(weighted[0], weight=LABELS_SHARE)
        return weigh_by_reliability(weighted)


@dataclass(frozen=True)
class Scored:
    """Candidates with their scores: of each judge, and `total` of all together.

    `tokens` are the mean tokens per text under each template.
    """

    candidates: StoredCandidates
    judges: tuple[Any, ...]
    sources: tuple[Scores, ...]
    total: Scores
    tokens: dict[str, float]
    notes: tuple[str, ...] = ()


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


def make_judges(run: Run) -> Judges:
    """Open the judges; an encoder that does not know the texts is dropped with a note."""
    judge = run.request.judge
    search = run.search
    texts: Sequence[str] = run.sample.texts
    if search is not None:
        texts = (*search.queries[:100], *search.documents[:100])
    judges = _open_judge(Judges(labels=run.labels, search=search), judge, run.reader, texts)
    if search is not None:
        judges = replace(judges, custom=None)  # its scores would be of the texts alone
        if judges.encoder is None and not judges.has_pairs:
            raise LayerscopeError(
                "a search is judged by a sentence encoder (judge='minilm-l6') or by pairs=: give "
                "one of them."
            )
    return judges


def _open_judge(judges: Judges, judge: JudgeOption, reader: Reader, texts: Sequence[str]) -> Judges:
    """Add the judge that an option names, or a note why it is not used."""
    if judge == NONE:
        return judges
    if judge == DEFAULT_JUDGE and lack_words(texts):
        note = (
            f"{DEFAULT_JUDGE} is not used: it was trained on sentences, and most of these texts "
            "are hardly made of words."
        )
        return replace(judges, notes=(note,))
    if not isinstance(judge, str | LoadedModel):
        return replace(judges, custom=judge)
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
        folder = source_at_commit(judge, encoder).path
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
        return replace(judges, notes=(note,))
    reading = Chosen(
        Reader(encoder, reader.store, _ENCODER_LENGTH), own_readout(folder), encoder.n_blocks
    )
    return replace(judges, encoder=reading)


def encode_sides(
    encoder: Chosen, search: SearchTexts, bar: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Return the judging encoder's vectors of queries and of documents."""
    queries = encode_by_judge(encoder, search.queries, bar)
    return queries, encode_by_judge(encoder, search.documents, bar)


def encode_by_judge(encoder: Chosen, texts: Sequence[str], bar: Progress) -> np.ndarray:
    """Return the judging encoder's vectors (texts, D); refuse it where they say nothing."""
    name = encoder.model.name
    try:
        vectors = encoder.reader.vectors(
            encoder.readout, encoder.layer, texts, bar, f"{name}, the judge"
        )
    except NonFiniteStatesError as error:
        raise LayerscopeError(f"the judge {name} cannot be used: {error}") from error
    if is_constant(vectors):
        raise LayerscopeError(
            f"the judge {name} cannot be used: it gives all texts the same vector. Give another "
            "sentence encoder (judge=), or judge without one: judge='none'."
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
