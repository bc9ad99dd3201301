"""What the choice will read, said before anything long begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerscope.core.readout import Readout
from layerscope.improving.choose import KEPT, SCREEN
from layerscope.improving.grid import by_template
from layerscope.improving.judging import Panel, parts_of
from layerscope.improving.sample import Reader, Sample
from layerscope.progress import Progress, announce


@dataclass(frozen=True)
class ReadingCost:
    """What texts cost under each template, and the choice as a whole."""

    tokens: dict[str, float]
    """The mean tokens per text under each template."""
    computed: dict[str, float]
    """Those of them that the model is run on: what a template puts before every text is read
    once."""
    spent: float
    """The tokens that the choice reads."""
    speed: float
    """Seconds per token here and now."""


def estimate_reading(
    panel: Panel, reader: Reader, grid: Sequence[Readout], sample: Sample, bar: Progress
) -> ReadingCost:
    """Count tokens, time a few texts, and say what will be read."""
    wanted, texts = by_template(grid), sample.texts
    tokens = reader.tokens(list(wanted), texts[:SCREEN])
    computed = reader.computed_tokens(wanted, texts[:SCREEN])
    views = 2.7 if panel.needs_views else 1.0  # a text, most of it, and its halves
    many = len(texts)
    first = (
        SCREEN if many > SCREEN and len(wanted) > KEPT + 1 else many
    )  # so many are read under every template
    longest = max(tokens.values())
    read = first * sum(tokens.values()) + (many - first) * (tokens["plain"] + KEPT * longest)
    parts = parts_of(many) * 1.7 * longest if panel.takes_second_opinion else 0
    speed = reader.seconds_per_token(max(tokens, key=lambda name: tokens[name]), texts[:SCREEN])
    announce(
        bar,
        f"{len(grid) * len(reader.layers)} layers × readouts of {reader.model.name} on {many} of {sample.total} texts, "
        f"judged by {panel.name}",
    )
    return ReadingCost(tokens, computed, views * read + parts, speed)
