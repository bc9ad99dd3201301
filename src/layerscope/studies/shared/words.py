"""How studies put numbers into words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from layerscope.core.sites import layer_ranges
from layerscope.core.statistics import Interval

MOVES = {1: "rises", -1: "falls", 0: "does not clearly move"}
DIFFERS = {1: "higher", -1: "lower", 0: "not clearly different"}
THAN = {1: " than that of", -1: " than that of", 0: " from that of"}  # what follows `DIFFERS`


def name_layers(numbers: Iterable[int]) -> str:
    """Layers as ranges.

    >>> name_layers([2]), name_layers([1, 2, 4])
    ('layer 2', 'layers 1–2, 4')
    """
    given = sorted(set(numbers))
    return f"layer{'s' * (len(given) != 1)} {', '.join(layer_ranges(given))}"


def join_words(words: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    given = list(words)
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}" if given else ""


def where_clear(each: Sequence[Interval], up: str, down: str) -> str:
    """Words that say at which layers a change is clear, and at which it is largest.

    >>> where_clear([Interval(0.1, -1, 1), Interval(2, 1, 3), Interval(-1, -2, -0.5)], "higher", "lower")
    'clearly higher at layer 1 and lower at layer 2 of 2; most at layer 1, +2.00 (+1.00 to +3.00).'
    """
    signs = {sign: [layer for layer, mean in enumerate(each) if mean.sign == sign] for sign in (1, -1)}
    where = " and ".join(f"{word} at {name_layers(signs[sign])}" for sign, word in ((1, up), (-1, down)) if signs[sign])
    if not where:
        return "at no single layer is the change clear."
    sizes = [abs(mean.value) if mean.value == mean.value else -1.0 for mean in each]
    most = sizes.index(max(sizes))
    return f"clearly {where} of {len(each) - 1}; most at layer {most}, {each[most]}."


def unlike(kept: Interval, dropped: Interval, words: Mapping[int, str]) -> str:
    """What a number does without the sink token, where that is not what it does with it; `words` are by sign.

    >>> unlike(Interval(1, 0.5, 2), Interval(-1, -2, -0.5), MOVES)
    ' (falls without the sink token)'
    """
    return "" if kept.sign == dropped.sign else f" ({words[dropped.sign]} without the sink token)"


def sentence(text: str) -> str:
    """A text that starts with a capital letter."""
    return text[0].upper() + text[1:]


def in_short(answer: str) -> str:
    """The first sentence of a verdict."""
    return f"In short: {answer}."
