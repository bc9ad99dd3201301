"""From a choice to a model that encodes: its mean, its head or its student, fitted on as many texts
as the time allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.json import read_json
from layerscope.core.readout import HEAD
from layerscope.errors import DataError
from layerscope.improving.choose import SCREEN
from layerscope.improving.chosen import CENTERING, COUNT, Chosen
from layerscope.improving.cost import ReadingCost
from layerscope.improving.fitting import (
    MOST_FITTED,
    Fitted,
    Taught,
    center,
    read_taught,
    texts_to_fit_on,
)
from layerscope.improving.grid import StoredCandidates, offered
from layerscope.improving.heads import MOST_NUMBERS, Heads, Teacher
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.judging import Panel
from layerscope.improving.record import Settings
from layerscope.improving.sample import Reader, Sample
from layerscope.improving.speed import encoder_seconds
from layerscope.improving.student import MINUTES, train_student
from layerscope.loggers import OnRows
from layerscope.progress import Progress, announce
from layerscope.selection.labels.read import Labeled
from layerscope.store import atomic


def check_trainable(sample: Sample) -> None:
    """Refuse to train on fewer texts than a head takes, before anything is read."""
    texts = len(sample.texts)
    if texts < LEAST_TEXTS:
        more = "Give more" if sample.total < LEAST_TEXTS else f"Set sample={LEAST_TEXTS} or more"
        raise DataError(
            f"{texts} texts are too few to train on: it takes {LEAST_TEXTS}. {more}, or leave out train=."
        )


@dataclass
class Maker:
    """Makes what was chosen: what a fit reads, its limits in texts and time, and where a stopped
    one left its work."""

    reader: Reader
    sample: Sample
    labels: Labeled | None
    settings: Settings
    panel: Panel
    cost: ReadingCost
    bar: Progress
    notes: list[str]
    key: str
    work: Path | None = None
    on_rows: OnRows | None = None

    def fit(self, chosen: Chosen, candidates: StoredCandidates, heads: Heads | None) -> Chosen:
        """The chosen readout with its head or its mean."""
        if chosen.readout.centering == HEAD and heads is not None:
            taught = self._teach(heads.teacher, chosen.layer)
            return replace(chosen, fitted=taught.head(self.sample, self._labeled(chosen)))
        if chosen.readout.centering != "none":
            return replace(chosen, fitted=self._center(candidates, chosen))
        return chosen

    def train(
        self, heads: Heads, layer: int, today: Callable[[Sequence[str]], np.ndarray]
    ) -> tuple[Chosen, dict[str, Any]] | None:
        """A student of the blocks below a layer, and what came of its training; None where it is no
        better."""
        model, given = self.reader.model, self.settings.train
        taught = self._teach(heads.teacher, layer, together=True)
        found = train_student(
            model, layer, taught.texts, taught.plain, taught.target, max_length=self.reader.max_length,
            seed=self.settings.seed, minutes=self.settings.time or MINUTES, work=self.work, bar=self.bar,
            settings=given if isinstance(given, Mapping) else None, today=today, on_rows=self.on_rows,
        )  # fmt: skip
        if not found.better:
            self.notes.append(
                f"training did not help, and what was best before it is handed over: {found.outcome}."
            )
            return None
        reader = Reader(
            found.model,
            self.reader.store,
            self.reader.max_length,
            batch_size=self.reader.batch_size,
        )
        fitted = Fitted.of(self.sample, found.facts["texts"], found.head)
        facts = {**found.facts, "words": found.outcome, "teacher": taught.words}
        return Chosen(found.model, reader, HEAD_READOUT, layer, fitted), facts

    def _teach(self, teacher: Teacher, layer: int, together: bool = False) -> Taught:
        """What a head at a layer learns from; its teacher teaches `together` with others unless
        that costs texts."""
        prompts, own, width = (
            [teacher.readout],
            (HEAD_READOUT.template, layer),
            self.reader.model.width,
        )
        together = together and list(self.settings.templates) == offered(
            None, self.labels is not None
        )
        count = self._affordable(own, (teacher.readout.template, teacher.layer))
        if together:
            new = {
                one.template: one.kinds
                for one in teacher.together
                if one.template not in self.cost.tokens
            }
            self.cost.tokens.update(self.reader.tokens(list(new), self.sample.texts[:SCREEN]))
            self.cost.computed.update(self.reader.computed_tokens(new, self.sample.texts[:SCREEN]))
            many = self._affordable(
                own, *((one.template, teacher.layer) for one in teacher.together)
            )
            prompts = (
                teacher.together if many == count and count * width <= MOST_NUMBERS else prompts
            )
        count, prompted = self._kept(count, len(prompts))
        prompts = teacher.together[:prompted] if together else prompts
        self._announce(count)
        encode = partial(self.panel.encoded, self.reader, bar=self.bar)
        return read_taught(
            self.reader, teacher, prompts, encode, layer, self.sample, count, self.bar
        )

    def _labeled(self, chosen: Chosen) -> tuple[np.ndarray, np.ndarray] | None:
        """The plain vectors of texts with classes, which shape a head; pairs do not (it gains
        nothing)."""
        if self.labels is None or self.labels.kind != "classification":
            return None
        rows = self.reader.vectors_at(
            chosen.readout, chosen.layer, self.labels.sides[0], self.bar, "labeled texts"
        )
        classes = np.unique(self.labels.targets, return_inverse=True)[1]
        self.notes.append(
            f"{len(rows)} labels of {classes.max() + 1} classes shape the head; the scores are of heads without them."
        )
        return rows, classes

    def _center(self, candidates: StoredCandidates, chosen: Chosen) -> Fitted:
        """The mean that is subtracted."""
        count = self._kept(self._affordable((chosen.readout.template, chosen.layer)))[0]
        self._announce(count)
        scratch = None if self.work is None else self.work / CENTERING
        asked = None if self.settings.time is None else f"{self.settings.time:g} minutes"
        return center(
            self.reader,
            candidates,
            chosen.readout,
            chosen.layer,
            self.sample,
            count,
            self.bar,
            scratch,
            asked,
        )

    def _affordable(self, *parts: tuple[str, int]) -> int:
        """How many texts are read under templates, each up to a layer: the sample, and others if
        cheap."""
        sample, settings, blocks = self.sample, self.settings, self.reader.model.n_blocks
        each, computed = (
            sum(of[name] * max(layer, 1) / blocks for name, layer in parts)
            for of in (self.cost.tokens, self.cost.computed)
        )
        minutes = (
            MINUTES
            if settings.time is None and settings.trains and settings.center_on == "auto"
            else settings.time
        )
        if (
            minutes is not None and len(parts) > 1
        ):  # the encoder teaches as well, and takes its time
            computed += encoder_seconds(self.panel, sample.texts) / self.cost.speed
        tokens = None if minutes is None else 60 * minutes / self.cost.speed * each / computed
        count = texts_to_fit_on(settings.center_on, sample, self.cost.spent, each, tokens)
        if len(parts) > 1 and count > MOST_FITTED:  # of those that were drawn at random
            count = min(MOST_FITTED, len(sample.texts) + len(sample.more))
        return count

    def _announce(self, count: int) -> None:
        """Say how many texts a fit will read."""
        sample = self.sample
        if count > len(sample.texts):
            whole = "" if count == sample.total else " (center_on='all' takes all of them)"
            announce(self.bar, f"fitting on {count:,} of {sample.total:,} texts{whole}")

    def _kept(self, count: int, prompts: int = 1) -> tuple[int, int]:
        """The texts and prompts that a training of this kind, now stopped, began with; else these,
        kept for a later one."""
        if not self.settings.trains or self.work is None:
            return count, prompts
        known = read_json(self.work / COUNT) if (self.work / COUNT).is_file() else {}
        if known.get("key") == self.key:
            return known["count"], known["prompts"]
        atomic.write_json(self.work / COUNT, {"key": self.key, "count": count, "prompts": prompts})
        return count, prompts
