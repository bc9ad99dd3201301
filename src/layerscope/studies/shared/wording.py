"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Iterable


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges.

    >>> spans([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def layers(numbers: Iterable[int]) -> str:
    """Layers as ranges.

    >>> layers([2]), layers([1, 2, 4])
    ('layer 2', 'layers 1–2, 4')
    """
    given = sorted(set(numbers))
    return f"layer{'s' * (len(given) != 1)} {spans(given)}"


def lists(words: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> lists(["a", "b", "c"])
    'a, b and c'
    """
    given = list(words)
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}" if given else ""
