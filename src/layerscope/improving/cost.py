"""What the choice will read and how long that takes, said before anything long begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerscope.core.formatting import format_duration
from layerscope.core.readout import Readout
from layerscope.improving.choose import KEPT, SCREEN
from layerscope.improving.grid import by_template
from layerscope.improving.judging import Panel, parts_of
from layerscope.improving.sample import Reader, Sample
from layerscope.improving.stages import announce
from layerscope.progress import Progress


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
    seconds: float
    """What the choice is expected to take; readings that are stored take nothing."""


def estimate_reading(
    panel: Panel, reader: Reader, grid: Sequence[Readout], sample: Sample, seed: int, bar: Progress
) -> ReadingCost:
    """Count tokens, time a few texts, and say how long the reading will take."""
    wanted, texts = by_template(grid), sample.texts
    tokens = reader.tokens(list(wanted), texts[:SCREEN])
    computed = reader.computed_tokens(wanted, texts[:SCREEN])
    views = 2.7 if panel.needs_views else 1.0  # a text, most of it, and its halves
    many = len(texts)
    first = (
        SCREEN if many > SCREEN and len(wanted) > KEPT + 1 else many
    )  # so many are read under every template
    missing = []
    early_views, views_of_all = (
        panel.texts(some, seed).values() for some in (texts[:first], texts)
    )
    for parts_read in (early_views, [view[first:] for view in views_of_all]):
        every = [text for view in parts_read for text in view]
        shares = {name: reader.missing_share(name, kinds, every) for name, kinds in wanted.items()}
        missing.append({name: computed[name] * shares[name] for name in wanted})
    totals = []  # all tokens, and those that the model has to be run on
    for early, late, whole in ((tokens, tokens, tokens), (*missing, computed)):
        read = first * sum(early.values()) + (many - first) * (
            late["plain"] + KEPT * max(late.values())
        )
        parts = (
            0
            if not panel.takes_second_opinion or not read
            else parts_of(many) * 1.7 * max(whole.values())
        )
        totals.append(views * read + parts)
    longest = max(tokens, key=lambda name: tokens[name])
    speed = reader.seconds_per_token(longest, texts[:SCREEN])
    seconds = totals[1] * speed
    announce(
        bar,
        f"about {format_duration(seconds)} of reading: {len(grid) * len(reader.layers)} layers × readouts of "
        f"{reader.model.name} on {many} of {sample.total} texts, judged by {panel.name}; judging and writing come on top",
    )
    return ReadingCost(tokens, computed, totals[0], speed, seconds)
