"""The computation of a choice, announced before anything long begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.core.readout import Readout
from layerscope.exporting.cutting import needs_filler
from layerscope.improving.candidates import by_template
from layerscope.improving.choose import KEPT, SCREEN, relative_costs
from layerscope.improving.judging import Judges, parts_of
from layerscope.improving.sample import Reader, Sample
from layerscope.progress import Progress, announce


@dataclass(frozen=True)
class ReadingCost:
    """The tokens of texts under each template, and of the choice as a whole.

    - `tokens`: the mean tokens per text under each template.
    - `computed`: those of them that the model is run on; a shared beginning is read once.
    - `spent`: the tokens that the choice reads.
    - `seconds`: seconds per token, here and now.
    """

    tokens: dict[str, float]
    computed: dict[str, float]
    spent: float
    seconds: float

    def relative(self, reader: Reader, readouts: Sequence[Readout]) -> np.ndarray:
        """Return the costs of candidates (readouts, layers), relative to today's reading."""
        tokens = [self.tokens[readout.template] for readout in readouts]
        more = [needs_filler(reader.model, readout.final_norm) for readout in readouts]
        return relative_costs(tokens, reader.layers, reader.model.n_blocks, more)

    def with_prompts(
        self, reader: Reader, prompts: Sequence[Readout], texts: Sequence[str]
    ) -> ReadingCost:
        """Return the cost with further prompts counted."""
        new = {one.template: one.kinds for one in prompts if one.template not in self.tokens}
        return replace(
            self,
            tokens=self.tokens | reader.tokens(list(new), texts),
            computed=self.computed | reader.computed_tokens(new, texts),
        )


def estimate_reading(
    judges: Judges, reader: Reader, grid: Sequence[Readout], sample: Sample, bar: Progress
) -> ReadingCost:
    """Count tokens, time a few texts, and announce the choice."""
    kinds = by_template(grid)
    texts = sample.texts[:SCREEN]
    tokens = reader.tokens(list(kinds), texts)
    computed = reader.computed_tokens(kinds, texts)
    count = len(sample.texts)
    screened = SCREEN if count > SCREEN and len(kinds) > KEPT + 1 else count
    longest = max(tokens.values())
    spent = screened * sum(tokens.values())
    spent += (count - screened) * (tokens["plain"] + KEPT * longest)
    if judges.reads_parts:
        spent *= 2.7  # a text, most of it, and its halves
    if judges.takes_second_opinion:
        spent += parts_of(count) * 1.7 * longest
    slowest = max(tokens, key=lambda name: tokens[name])
    seconds = reader.seconds_per_token(slowest, texts)
    announce(
        bar,
        f"{len(grid) * len(reader.layers)} layers × readouts of {reader.model.name} on {count} of "
        f"{sample.total} texts, judged by {judges.name}",
    )
    return ReadingCost(tokens, computed, spent, seconds)
