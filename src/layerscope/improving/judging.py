"""Which judge is asked, and what it says: an encoder, the model's own consistency, a few labels, or labels and an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import Readout
from layerscope.errors import DownloadError, LayerscopeError, OfflineError
from layerscope.improving.grid import StoredCandidates, by_template
from layerscope.improving.sample import Reader, encoder_vectors, knows_language, own_readout, unknown_share
from layerscope.models import LoadedModel, load
from layerscope.models.load import at_commit
from layerscope.models.source import resolve
from layerscope.progress import Progress
from layerscope.selection.judges.agreement import Agreement
from layerscope.selection.judges.base import TEXTS, Judgment, combined
from layerscope.selection.judges.consistency import SelfConsistency, added_ranks, consistency_items, make_views
from layerscope.selection.judges.few_labels import LABELS_SHARE, FewLabels
from layerscope.selection.labels.read import Labeled

NONE = "none"
PARTS_OF = 100
"""Texts whose parts are read for a second opinion, at most; at most a fifth of the sample, so that it costs little."""

LABELED = "labeled"
"""The view of the labeled texts: vectors of them, centered as those of the sample are."""

LONG = 40
"""Mean tokens above which a text is no sentence any more, and prompts that ask for one word may not be for it."""


@dataclass
class Panel:
    """Everything that judges: an encoder or none, labels or none."""

    encoder: LoadedModel | None
    encoder_readout: Readout
    labels: Labeled | None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Who judges, in words."""
        parts = []
        if self.labels is not None:
            parts.append(f"{len(self.labels)} labeled examples")
        if self.encoder is not None:
            parts.append(f"agreement with {self.encoder.name}")
        return " and ".join(parts) or "the model's own consistency"

    @property
    def score_name(self) -> str:
        """What its score is."""
        if self.labels is not None:
            return "score on your labels" if self.encoder is None else "labels and agreement, standardized"
        return (
            f"agreement with {self.encoder.name}" if self.encoder is not None else "agreement with the most consistent readouts"
        )

    @property
    def needs_views(self) -> bool:
        """Whether parts of the texts must be read."""
        return self.encoder is None and self.labels is None

    def eligible(self, readouts: Sequence[Readout], tokens: float) -> list[bool] | None:
        """Which readouts may be chosen; None: all.

        Without an encoder and labels the most consistent readouts are those that keep the words of a text, whatever they mean.
        So, for texts about as long as a sentence, the prompts alone are eligible, centered: their consensus is about meaning.
        """
        if self.encoder is not None or self.labels is not None or tokens > LONG:
            return None
        return [readout.template != "plain" and readout.centering == "corpus" for readout in readouts]

    def texts(self, sample: Sequence[str], seed: int) -> dict[str, Sequence[str]]:
        """The views of a sample that are read."""
        return {TEXTS: sample, **(make_views(sample, seed) if self.needs_views else {})}

    def judge(
        self, reader: Reader, readouts: Sequence[Readout], sample: Sequence[str], prompts: Sequence[str],
        seed: int, bar: Progress, label: str,
    ) -> Judgment:  # fmt: skip
        """Read what is missing, and score every candidate."""
        wanted = by_template(readouts, prompts)
        views = self.texts(sample, seed)
        every = [text for texts in views.values() for text in texts]
        if self.labels is not None:
            every += self.labels.texts
        reader.read(wanted, list(dict.fromkeys(every)), bar, label)
        candidates = StoredCandidates(reader.spaces, readouts, reader.layers, views, prompts)
        found = []
        if self.labels is not None:
            views = {TEXTS: sample, LABELED: self.labels.texts}
            labeled = StoredCandidates(reader.spaces, readouts, reader.layers, views, prompts)
            bar.begin("judging by labels|readouts", len(readouts))
            found.append(FewLabels(self.labels, view=LABELED).judge(labeled, seed=seed, advance=bar.advance))
        if self.encoder is not None:
            vectors = encoder_vectors(self.encoder, reader.store, sample, self.encoder_readout, bar)
            bar.begin("judging|readouts", len(readouts))
            found.append(Agreement(vectors, self.encoder.name).judge(candidates, seed=seed, advance=bar.advance))
        if not found:
            bar.begin("judging|readouts", len(readouts))
            found.append(SelfConsistency().judge(candidates, seed=seed, advance=bar.advance))
        return combined(found, [LABELS_SHARE if judgment.judge == FewLabels.name else 1.0 for judgment in found])


def make_panel(
    judge: str | LoadedModel, labels: Labeled | None, model: LoadedModel, texts: Sequence[str], offline: bool
) -> Panel:
    """Open the judge; an error or a note where it cannot judge this model or these texts."""
    if judge == NONE or judge is None:
        return Panel(None, Readout(), labels)
    folder = None
    if isinstance(judge, LoadedModel):
        encoder = judge
    else:
        try:
            encoder = load(judge, offline=offline)
        except (OfflineError, DownloadError) as error:
            raise type(error)(f"the judge: {error} Or judge without an encoder: --judge none.") from error
        folder = resolve(at_commit(judge, encoder), offline=offline).path
    if ModelIdentity.of(encoder.identity).same_as(ModelIdentity.of(model.identity)):
        raise LayerscopeError(
            f"the judge {encoder.name!r} is the model itself, and would agree with what it does already. Give another sentence "
            "encoder (--judge minilm-l6), or let the model judge itself by its consistency (--judge none)."
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
        panel.notes.append(f"the judge {encoder.name} is no sentence encoder: its opinion of neighbors may be worth little.")
    return panel


def parts_of(count: int) -> int:
    """How many of so many texts are read in parts for a second opinion."""
    return min(count, PARTS_OF, max(20, count // 5))


def second_opinion(
    reader: Reader, readouts: Sequence[Readout], template: str, sample: Sequence[str], prompts: Sequence[str],
    seed: int, bar: Progress,
) -> Judgment:  # fmt: skip
    """How well the readouts of one template recognize some of the texts by their parts; undefined for all others."""
    texts = list(sample[: parts_of(len(sample))])
    views = {TEXTS: texts, **make_views(texts, seed)}
    every = list(dict.fromkeys(text for some in views.values() for text in some))
    own = [i for i, readout in enumerate(readouts) if readout.template == template]
    asked = [readouts[i] for i in own]
    reader.read(by_template(asked, prompts), every, bar, f"a second opinion: parts of {len(texts)} texts under {template}")
    judgment = added_ranks(consistency_items(StoredCandidates(reader.spaces, asked, reader.layers, views, prompts)), seed)
    assert judgment.draws is not None
    score = np.full((len(readouts), len(reader.layers)), np.nan)
    draws = np.full((*score.shape, judgment.draws.shape[-1]), np.nan)
    score[own], draws[own] = judgment.score, judgment.draws
    return Judgment(judgment.judge, score, draws, judgment.facts)


def goes_by_words(judgment: Judgment, readouts: Sequence[Readout]) -> bool:
    """Whether the judge likes the plain text better than every prompt: most weak judges do, good ones hardly ever."""
    tops = [
        max((float(np.nanmax(judgment.score[i])) for i in rows if judgment.defined[i].any()), default=np.nan)
        for rows in (
            [i for i, readout in enumerate(readouts) if readout.template == "plain"],
            [i for i, readout in enumerate(readouts) if readout.template != "plain"],
        )
    ]
    return bool(tops[0] > tops[1])
