"""Which judge is asked, and what it says: an encoder, an object with a method `judge`, the model's
own consistency, and a few labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.identity import ModelIdentity
from layerscope.core.plugins import PluginError
from layerscope.core.readout import HEAD, Readout
from layerscope.errors import DownloadError, LayerscopeError, OfflineError, UnknownNameError
from layerscope.improving.grid import StoredCandidates, by_template
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, with_heads
from layerscope.improving.sample import (
    Reader,
    encoder_vectors,
    knows_language,
    own_readout,
    unknown_share,
)
from layerscope.models import LoadedModel, catalogue, load
from layerscope.models.load import at_commit
from layerscope.models.source import check_name, resolve
from layerscope.progress import Progress
from layerscope.selection.judges.agreement import Agreement, Neighborhoods, similarities
from layerscope.selection.judges.base import TEXTS, Judge, combined, scored_by_items
from layerscope.selection.judges.consistency import (
    VIEWS,
    SelfConsistency,
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    make_views,
)
from layerscope.selection.judges.few_labels import LABELS_SHARE, FewLabels
from layerscope.selection.labels.read import Labeled

NONE = "none"
PARTS_OF = 100
"""Texts whose parts are read for a second opinion, at most; at most a fifth of the sample, so that
it costs little."""

LABELED = "labeled"
"""The view of the labeled texts: vectors of them, centered as those of the sample are."""

LONG = 40
"""Mean tokens above which a text is more than a sentence, and prompts that ask for one word may not
suit it."""


JudgeGiven = str | LoadedModel | Judge
"""What `improve(judge=…)` takes: a model's name or a loaded model to agree with, `none`, or an
object with a method `judge`."""


def find_judge(given: JudgeGiven | None) -> JudgeGiven:
    """Return the judge that is meant: `none` (self-consistency, or the labels alone), a model's
    name, a loaded model, or a judge."""
    if given is None:
        return NONE
    if isinstance(given, LoadedModel):
        return given
    if not isinstance(given, str):
        if isinstance(given, type) or not isinstance(given, Judge):
            raise LayerscopeError(
                "a judge is a model's name, a loaded model, or an object with name, summary, views and a method `judge`, "
                f"not {given!r:.60}."
            )
        return _check_views(given)
    if given != NONE:
        try:
            check_name(given)
        except UnknownNameError as error:
            raise UnknownNameError("judge", given, [NONE, *catalogue()], _FORMS) from error
    return given


_FORMS = "A judge is none, or a sentence encoder: one of the catalogue, a folder, or a hub id org/name[@revision]."


def _check_views(judge: Judge) -> Judge:
    for view in judge.views:
        if view not in (TEXTS, *VIEWS):
            raise UnknownNameError(
                f"view, which the judge {judge.name!r} asks for", view, [TEXTS, *VIEWS]
            )
    return judge


@dataclass
class Panel:
    """Everything that judges: an encoder or none, labels or none, a judge of its own kind or none.

    `own` is a judge that was given as an object, or the model's self-consistency where nothing else
    judges.
    """

    encoder: LoadedModel | None
    encoder_readout: Readout
    labels: Labeled | None
    notes: list[str] = field(default_factory=list)
    own: Judge | None = None

    def __post_init__(self) -> None:
        if self.own is None and self.encoder is None and self.labels is None:
            self.own = SelfConsistency()

    @property
    def alone(self) -> bool:
        """Whether the model judges itself."""
        return isinstance(self.own, SelfConsistency)

    @property
    def name(self) -> str:
        """Who judges, in words."""
        parts = []
        if self.labels is not None:
            parts.append(f"{len(self.labels)} labeled examples")
        if self.encoder is not None:
            parts.append(f"agreement with {self.encoder.name}")
        if self.own is not None:
            parts.append(
                "the model's own consistency" if self.alone else f"the judge {self.own.name}"
            )
        return " and ".join(parts)

    @property
    def trained_encoder(self) -> str | None:
        """The encoder that judges, if it was trained for embeddings: it may serve the user better
        than what it judges."""
        trained = self.encoder is not None and self.encoder.identity.get("sentence_encoder")
        return self.encoder.name if self.encoder is not None and trained else None

    @property
    def score_name(self) -> str:
        """What its score is."""
        if self.labels is not None:
            if self.own is not None:
                return f"labels and {self.own.name}, standardized"
            return (
                "score on your labels"
                if self.encoder is None
                else "labels and agreement, standardized"
            )
        if self.encoder is not None:
            return f"agreement with {self.encoder.name}"
        assert self.own is not None
        return (
            "agreement with the most consistent readouts"
            if self.alone
            else f"score of {self.own.name}"
        )

    @property
    def needs_views(self) -> bool:
        """Whether parts of the texts must be read."""
        return self.own is not None and bool(self.own.views)

    @property
    def takes_second_opinion(self) -> bool:
        """Whether recognizing texts by their parts counts as well: next to an encoder or labels;
        other judges decide alone."""
        return self.own is None

    def eligible(self, readouts: Sequence[Readout], tokens: float) -> list[bool] | None:
        """Which readouts may be chosen; None: all.

        Without an encoder and labels the most consistent readouts are those that keep the words of
        a text, whatever they mean. So, for texts about as long as a sentence, the prompts alone are
        eligible, centered, and heads that learn from them: the prompts' consensus is about meaning.
        """
        if not self.alone or tokens > LONG:
            return None
        return [
            readout.centering == HEAD
            or (readout.template != "plain" and readout.centering == "corpus")
            for readout in readouts
        ]

    def texts(self, sample: Sequence[str], seed: int) -> dict[str, Sequence[str]]:
        """The views of a sample that are read."""
        return {TEXTS: sample, **(make_views(sample, seed) if self.needs_views else {})}

    def judge(
        self,
        reader: Reader,
        readouts: Sequence[Readout],
        sample: Sequence[str],
        seed: int,
        bar: Progress,
        label: str,
    ) -> ScoredCandidates:
        """Read what is missing, and score every candidate."""
        wanted = by_template(readouts)
        views = self.texts(sample, seed)
        every = [text for texts in views.values() for text in texts]
        if self.labels is not None:
            every += self.labels.texts
        reader.read(wanted, list(dict.fromkeys(every)), bar, label)

        def asked(
            judge: Judge, views: Mapping[str, Sequence[str]], doing: str = "judging"
        ) -> ScoredCandidates:
            bar.begin(f"{doing}|readouts", len(readouts))
            return ask(
                judge,
                StoredCandidates(
                    reader.spaces, readouts, reader.layers, views, advance=bar.advance
                ),
                seed,
            )

        found = []
        if self.labels is not None:
            both = {TEXTS: sample, LABELED: self.labels.texts}
            found.append(asked(FewLabels(self.labels, view=LABELED), both, "judging by labels"))
        if self.encoder is not None:
            encoded = self.encoded(reader, sample, bar)
            assert encoded is not None
            self.reference = Agreement(encoded)
            found.append(asked(self.reference, views))
        if self.own is not None:
            found.append(asked(self.own, views))
        self._said = found
        return _all_said(found)

    def encoded(self, reader: Reader, texts: Sequence[str], bar: Progress) -> np.ndarray | None:
        """The encoder's vectors of texts; None without one."""
        if self.encoder is None:
            return None
        return encoder_vectors(self.encoder, reader.store, texts, self.encoder_readout, bar)

    def found(
        self, candidates: StoredCandidates, places: Mapping[str, tuple[Readout, int]]
    ) -> dict[str, Any] | None:
        """The share of the texts' nearest neighbors, by the encoder or the consensus, that
        candidates find, by their names.

        None where nobody says which neighbors are right. A head's are found by heads that were not
        fitted on the texts.
        """
        if self.encoder is not None:
            reference, who = self.reference.reference, self.encoder.name
        elif self.alone:
            reference, who = _consensus(candidates, self._said[0]), ""
        else:
            return None
        shares: dict[str, Any] = {"by": who}
        for name, (readout, layer) in places.items():
            place = list(candidates.layers).index(layer)
            if readout.centering == HEAD and candidates.heads is not None:
                cosines: Any = candidates.heads.similarities(place)
            else:
                vectors = candidates.vectors(readout)[place]
                cosines = similarities(vectors) if np.isfinite(vectors).all() else None
            if cosines is None:
                return None
            shares[name] = float(
                reference.overlap(torch.as_tensor(cosines, device=reference.near.device)).mean()
            )
        return shares

    def judge_heads(
        self,
        reader: Reader,
        readouts: Sequence[Readout],
        heads: Heads,
        sample: Sequence[str],
        seed: int,
        bar: Progress,
    ) -> ScoredCandidates:
        """The candidates judged last, and heads besides: by the same judges, on texts that no head
        was fitted on."""
        layers, found = reader.layers, []
        views = {
            **self.texts(sample, seed),
            **({} if self.labels is None else {LABELED: self.labels.texts}),
        }
        candidates = StoredCandidates(reader.spaces, readouts, layers, views, heads)
        bar.begin("heads|layers", len(layers))
        for said in self._said:
            if said.judge == FewLabels.name and self.labels is not None:
                found.append(
                    ask(FewLabels(self.labels, view=LABELED), candidates.only([HEAD_READOUT]), seed)
                )
            elif (
                self.own is not None and not self.alone
            ):  # its scores may depend on what it is asked about
                return ask(self.own, candidates.only([*readouts, HEAD_READOUT]), seed)
            else:
                reference = (
                    self.reference.reference
                    if self.encoder is not None
                    else _consensus(candidates, said)
                )
                items = np.full((1, len(layers), len(sample)), np.nan, dtype=np.float32)
                for place in range(len(layers)):
                    similar = heads.similarities(place)
                    if similar is not None:
                        items[0, place] = reference.agreement(
                            torch.as_tensor(similar, device=reference.near.device)
                        ).cpu()
                    bar.advance(1)
                found.append(scored_by_items(said.judge, items, seed))
        return _all_said(
            [with_heads(one, other) for one, other in zip(self._said, found, strict=True)]
        )


def _consensus(candidates: StoredCandidates, said: ScoredCandidates) -> Neighborhoods:
    """What the most consistent candidates say of the texts, as when they were judged."""
    return Neighborhoods.of(consensus(candidates, best_candidates(said.facts["alone"])))


def _all_said(found: Sequence[ScoredCandidates]) -> ScoredCandidates:
    return combined(
        found, [LABELS_SHARE if judgment.judge == FewLabels.name else 1.0 for judgment in found]
    )


def ask(judge: Judge, candidates: StoredCandidates, seed: int) -> ScoredCandidates:
    """What a judge says; an error that names the judge where it fails or answers with something
    else than scores."""
    try:
        said = judge.judge(candidates, seed=seed)
    except LayerscopeError:
        raise
    except Exception as error:
        raise PluginError(
            f"the judge {judge.name!r} failed: {type(error).__name__}: {error}."
        ) from error
    shape = (len(candidates.readouts), len(candidates.layers))
    score: Any = getattr(said, "score", None)
    draws: Any = getattr(said, "draws", None)
    if np.shape(score) != shape or (draws is not None and np.shape(draws)[:-1] != shape):
        raise PluginError(
            f"the judge {judge.name!r} must return ScoredCandidates with a score per readout and layer, of shape {shape}, "
            f"and draws of that shape with one more axis or none at all; it returned {type(said).__name__} with shapes "
            f"{np.shape(score)} and {np.shape(draws)}."
        )
    candidates.finish()
    names = [readout.name for readout in candidates.readouts]
    return replace(
        said, judge=said.judge or judge.name, readouts=names, layers=list(candidates.layers)
    )


def make_panel(
    judge: JudgeGiven,
    labels: Labeled | None,
    model: LoadedModel,
    texts: Sequence[str],
    offline: bool,
) -> Panel:
    """Open the judge; an error or a note where it cannot judge this model or these texts."""
    if judge == NONE:
        return Panel(None, Readout(), labels)
    folder = None
    if isinstance(judge, LoadedModel):
        encoder = judge
    elif isinstance(judge, str):
        try:
            encoder = load(judge, offline=offline)
        except (OfflineError, DownloadError) as error:
            raise type(error)(
                f"the judge: {error} Or judge without an encoder: judge='none'."
            ) from error
        folder = resolve(at_commit(judge, encoder), offline=offline).path
    else:
        return Panel(None, Readout(), labels, own=judge)
    if ModelIdentity.of(encoder.identity).same_as(ModelIdentity.of(model.identity)):
        raise LayerscopeError(
            f"the judge {encoder.name!r} is the model itself, and would agree with what it does already. Give another sentence "
            "encoder (judge='minilm-l6'), or let the model judge itself by its consistency (judge='none')."
        )
    panel = Panel(encoder, own_readout(folder, encoder.width), labels)
    if not knows_language(encoder, texts[:200]):
        share = unknown_share(encoder, texts[:200])
        panel.notes.append(
            f"{encoder.name} does not know {share:.0%} of the words of these texts, and is not asked: another language? "
            "The model is judged by its own consistency instead."
        )
        return Panel(None, Readout(), labels, panel.notes)
    if not encoder.identity.get("sentence_encoder"):
        panel.notes.append(
            f"the judge {encoder.name} is not a sentence encoder: its opinion of neighbors may be worth little."
        )
    return panel


def parts_of(count: int) -> int:
    """How many of so many texts are read in parts for a second opinion."""
    return min(count, PARTS_OF, max(20, count // 5))


def second_opinion(
    reader: Reader,
    readouts: Sequence[Readout],
    template: str,
    sample: Sequence[str],
    seed: int,
    bar: Progress,
) -> ScoredCandidates:
    """How well the readouts of one template recognize some of the texts by their parts; undefined
    for all others."""
    texts = list(sample[: parts_of(len(sample))])
    views = {TEXTS: texts, **make_views(texts, seed)}
    every = list(dict.fromkeys(text for some in views.values() for text in some))
    own = [
        i
        for i, readout in enumerate(readouts)
        if readout.template == template and readout.centering != HEAD
    ]
    asked = [readouts[i] for i in own]
    reader.read(
        by_template(asked),
        every,
        bar,
        f"a second opinion: parts of {len(texts)} texts under {template}",
    )
    judgment = added_ranks(
        consistency_items(StoredCandidates(reader.spaces, asked, reader.layers, views)), seed
    )
    assert judgment.draws is not None
    score = np.full((len(readouts), len(reader.layers)), np.nan)
    draws = np.full((*score.shape, judgment.draws.shape[-1]), np.nan)
    score[own], draws[own] = judgment.score, judgment.draws
    return replace(judgment, score=score, draws=draws)


def prefers_plain_text(judgment: ScoredCandidates, readouts: Sequence[Readout]) -> bool:
    """Whether the judge likes the plain text better than every prompt: most weak judges do, good
    ones hardly ever."""
    tops = [
        max(
            (float(np.nanmax(judgment.score[i])) for i in rows if judgment.defined[i].any()),
            default=np.nan,
        )
        for rows in (
            [i for i, readout in enumerate(readouts) if readout.template == "plain"],
            [i for i, readout in enumerate(readouts) if readout.template != "plain"],
        )
    ]
    return bool(tops[0] > tops[1])
