"""Colours, dashes and markers of models: the same family has the same colour in every figure and on every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Okabe & Ito 2008: told apart by people with any colour vision
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
# The same hues, shifted until lines are clear on white and on near-black
ON_LIGHT = ["#0072B2", "#C85800", "#00855F", "#B0568A", "#2C8CC9", "#A87400", "#3A3A3A"]
ON_DARK = ["#4BA3DB", "#F08A4B", "#3CC79B", "#E29BC3", "#8CCBF2", "#F0B840", "#D8D8D8"]

_FAMILIES = {
    "llama": 0,
    "gpt_neox": 1,
    "bert": 2,
    "mamba": 3,
    "gpt2": 4,
    "gemma": 5,
    "gemma2": 5,
    "gemma3": 5,
    "mamba2": 3,
    "roberta": 2,
    "mpnet": 2,
    "modernbert": 2,
    "eurobert": 2,
    "pythia": 1,
    "llm2vec": 0,
    "llama3": 0,
}
DASHES = ["", "9 4", "2 4", "9 3 2 3", "14 4"]
MARKERS = ["circle", "square", "triangle", "diamond", "cross"]


@dataclass(frozen=True)
class Style:
    """How one run is drawn; `colour` is a place in the palettes."""

    colour: int
    dash: str
    marker: str


def family_colour(family: str) -> int | None:
    """The place of a family in the palette, or None for one without a colour of its own."""
    name = family.lower().replace("-", "_")
    return next((place for known, place in _FAMILIES.items() if name == known), None)


def styles(runs: Sequence[tuple[str, str]]) -> list[Style]:
    """A style for each (family, model). A second model of a family takes a free colour; a second run of a model another dash.

    >>> [s.colour for s in styles([("llama", "a"), ("bert", "b"), ("llama", "a")])]
    [0, 2, 0]
    """
    taken: dict[str, int] = {}
    seen: dict[str, int] = {}
    out = []
    reserved = [place for place in dict.fromkeys(family_colour(family) for family, _ in runs) if place is not None]
    for family, model in runs:
        if model not in taken:
            own = family_colour(family)
            if own is None or own in taken.values():
                free = [i for i in range(len(COLOURS)) if i not in taken.values()]
                own = next((i for i in free if i not in reserved), free[0] if free else len(taken) % len(COLOURS))
            taken[model] = own
        run = seen.get(model, 0)
        seen[model] = run + 1
        marker = MARKERS[list(taken).index(model) % len(MARKERS)]
        out.append(Style(taken[model], DASHES[run % len(DASHES)], marker))
    return out


def line_style(dash: str) -> object:
    """A dash as matplotlib writes it."""
    return "-" if not dash else (0, tuple(float(part) / 2 for part in dash.split()))
