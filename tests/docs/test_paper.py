"""docs/paper.md claim by claim: every number beside an item of `atlas reproduce` is one that the command gives."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from layerscope.atlas.reproduce import Row, items, reproduce

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?")


def claims() -> list[tuple[str, str, str]]:
    """(claim, what is found, item) of every row whose item is recomputed from the published data."""
    cells = [
        [cell.strip() for cell in line.strip("|\n ").split("|")] for line in PAGE.read_text().splitlines() if line[:1] == "|"
    ]
    return [
        (row[0], row[1], re.findall(r"`(\w+)`", row[2])[0]) for row in cells if len(row) == 3 and row[2].strip("`") in items()
    ]


@cache
def said(item: str) -> tuple[tuple[Row, ...], frozenset[str]]:
    """The rows of an item and every number in them: values, also in per cent, rounded in all ways, and those of notes."""
    rows = tuple(reproduce(item, "both" if item == "table2" else "english"))
    values = [v for row in rows for v in (row.ours, row.printed, row.tasks, row.power) if v is not None]
    text = " ".join(f"{row.model} {row.column} {row.note}" for row in rows) + " " + items()[item].claim
    values += [float(n.replace("−", "-").replace(",", "")) for n in NUMBER.findall(text)]
    # how many rows have a verdict, and out of how many
    for verdict in {row.verdict for row in rows}:
        values.append(sum(row.verdict == verdict for row in rows))
    return rows, frozenset(f"{abs(v) * scale:.{digits}f}" for v in values for scale in (1, 100) for digits in (0, 1, 2))


def test_there_are_claims() -> None:
    assert len(claims()) > 20


LONG = ("fig3", "fig8", "fig9")  # thousands of surrogates


@pytest.mark.parametrize(
    ("claim", "found", "item"),
    [
        pytest.param(*each, id=f"{each[2]}-{each[0][:40]}", marks=[pytest.mark.slow] if each[2] in LONG else [])
        for each in claims()
    ],
)
def test_a_claim_says_what_the_command_says(claim: str, found: str, item: str) -> None:
    rows, numbers = said(item)
    without_layers = re.sub(r"\d+ of \d+|0\.\d+ to 0\.\d+ depth", "", found)
    missing = [n for n in NUMBER.findall(without_layers) if n.strip("+−-").replace(",", "") not in numbers]
    assert not missing, f"{missing} of {found!r}"
    verdicts = {row.verdict for row in rows}
    for word in ("not supported", "not shown"):
        if word in found:
            assert word in verdicts
    if found.startswith("supported"):
        assert "supported" in verdicts
