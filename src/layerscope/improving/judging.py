"""Which judge is asked, and what it says: an encoder, the model's own consistency, a few labels, or labels and an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import Readout
from layerscope.errors import DownloadError, LayerscopeError, OfflineError
from layerscope.improving.grid import StoredCandidates, by_template
from layerscope.improving.reading import Reader, encoder_vectors, knows_language, own_readout, unknown_share
from layerscope.models import LoadedModel, load
from layerscope.models.source import resolve
from layerscope.progress import Progress
from layerscope.selection.judges.agreement import Agreement
from layerscope.selection.judges.base import TEXTS, Judgment, combined
from layerscope.selection.judges.consistency import SelfConsistency, consistency_items, make_views
from layerscope.selection.judges.few_labels import FewLabels
from layerscope.selection.labels.read import Labeled

NONE = "none"
CHECKED = 100
"""Texts on whose parts a choice is checked before it is made."""


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
        return " and ".join(parts) or "self-consistency, then agreement with the consensus of the most consistent readouts"

    @property
    def score_name(self) -> str:
        """What its score is."""
        if self.labels is not None:
            return "score on your labels" if self.encoder is None else "labels and agreement, standardized"
        return f"agreement with {self.encoder.name}" if self.encoder is not None else "agreement with the consensus"

    @property
    def needs_views(self) -> bool:
        """Whether parts of the texts must be read."""
        return self.encoder is None and self.labels is None

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
            labeled = StoredCandidates(reader.spaces, readouts, reader.layers, {TEXTS: self.labels.texts}, prompts)
            bar.begin("judging by labels|readouts", len(readouts))
            found.append(FewLabels(self.labels).judge(labeled, seed=seed, advance=bar.advance))
        if self.encoder is not None:
            vectors = encoder_vectors(self.encoder, reader.store, sample, self.encoder_readout, bar)
            bar.begin("judging|readouts", len(readouts))
            found.append(Agreement(vectors, self.encoder.name).judge(candidates, seed=seed, advance=bar.advance))
        if not found:
            bar.begin("judging|readouts", len(readouts))
            found.append(SelfConsistency().judge(candidates, seed=seed, advance=bar.advance))
        return combined(found)


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
        folder = resolve(judge, offline=offline).path
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


@dataclass(frozen=True)
class Check:
    """How well texts are recognized by their parts (mean reciprocal rank, 0 to 1): today, as chosen, and by the judge."""

    before: float
    after: float
    worse: bool
    judge: float | None
    judge_worse: bool


def check_choice(
    panel: Panel, reader: Reader, default: Readout, chosen: tuple[Readout, int], sample: Sequence[str],
    prompts: Sequence[str], seed: int, bar: Progress,
) -> Check:  # fmt: skip
    """An opinion that is independent of the judge: a choice that recognizes texts worse than the default is not to be trusted."""
    texts = list(sample[:CHECKED])
    views = {TEXTS: texts, **make_views(texts, seed)}
    every = list(dict.fromkeys(text for some in views.values() for text in some))
    both = list(dict.fromkeys([default, chosen[0]]))
    reader.read(by_template(both, prompts), every, bar, "checking the choice")
    items = consistency_items(StoredCandidates(reader.spaces, both, reader.layers, views, prompts))[:2].mean(0)
    before, after = items[0, -1], items[both.index(chosen[0]), reader.layers.index(chosen[1])]
    judge = None
    if panel.encoder is not None:
        judge = _recognized(panel, reader, views, bar)
    return Check(
        float(before.mean()),
        float(after.mean()),
        _clearly_below(after, before),
        None if judge is None else float(judge.mean()),
        judge is not None and _clearly_below(judge, before),
    )


def _recognized(panel: Panel, reader: Reader, views: dict[str, list[str]], bar: Progress) -> np.ndarray:
    assert panel.encoder is not None
    sizes = [len(texts) for texts in views.values()]
    flat = [text for texts in views.values() for text in texts]
    vectors = encoder_vectors(panel.encoder, reader.store, flat, panel.encoder_readout, bar)
    parts = dict(zip(views, np.split(vectors, np.cumsum(sizes)[:-1]), strict=True))

    class _One:
        readouts: Sequence[Readout] = (Readout(),)
        layers: Sequence[int] = (0,)

        def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
            return parts[view][None]

    return consistency_items(_One())[:2].mean(0)[0, 0]


def _clearly_below(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the first is below the second by two standard errors, text by text."""
    difference = first - second
    return bool(difference.mean() < -2 * difference.std() / np.sqrt(len(difference)))
