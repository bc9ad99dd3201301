"""docs/paper.md claim by claim, read against what the commands gave.

Every number beside an item of `layerscope-paper reproduce` is one that the command gives. What lies beyond the
paper is read against the results that are kept.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from layerscope_paper.atlas.reproduce import Row, items, reproduce

PACKAGE = Path(__file__).parents[1]
PAGE, RESULTS = PACKAGE / "docs" / "paper.md", PACKAGE / "results"
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?")


def claims() -> list[tuple[str, str, str]]:
    """(claim, what is found, item) of every row whose item is recomputed from the published
    data."""
    cells = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in PAGE.read_text().splitlines()
        if line[:1] == "|"
    ]
    return [
        (row[0], row[1], re.findall(r"`(\w+)`", row[2])[0])
        for row in cells
        if len(row) == 3 and row[2].strip("`") in items()
    ]


@cache
def said(item: str) -> tuple[tuple[Row, ...], frozenset[str]]:
    """The rows of an item and every number in them: values, also in per cent, rounded in all ways,
    and those of notes."""
    rows = tuple(reproduce(item, "both" if item == "table2" else "english"))
    values = [
        v for row in rows for v in (row.ours, row.printed, row.tasks, row.power) if v is not None
    ]
    text = (
        " ".join(f"{row.model} {row.column} {row.note}" for row in rows) + " " + items()[item].claim
    )
    values += [float(n.replace("−", "-").replace(",", "")) for n in NUMBER.findall(text)]
    # how many rows have a verdict, and out of how many
    for verdict in {row.verdict for row in rows}:
        values.append(sum(row.verdict == verdict for row in rows))
    return rows, frozenset(
        f"{abs(v) * scale:.{digits}f}" for v in values for scale in (1, 100) for digits in (0, 1, 2)
    )


def test_there_are_claims() -> None:
    assert len(claims()) > 20


LONG = ("fig3", "fig8", "fig9")  # thousands of surrogates


@pytest.mark.parametrize(
    ("claim", "found", "item"),
    [
        pytest.param(
            *each,
            id=f"{each[2]}-{each[0][:40]}",
            marks=[pytest.mark.slow] if each[2] in LONG else [],
        )
        for each in claims()
    ],
)
def test_a_claim_says_what_the_command_says(claim: str, found: str, item: str) -> None:
    rows, numbers = said(item)
    without_layers = re.sub(r"\d+ of \d+|0\.\d+ to 0\.\d+ depth", "", found)
    missing = [
        n for n in NUMBER.findall(without_layers) if n.strip("+−-").replace(",", "") not in numbers
    ]
    assert not missing, f"{missing} of {found!r}"
    verdicts = {row.verdict for row in rows}
    for word in ("not supported", "not shown"):
        if word in found:
            assert word in verdicts
    if found.startswith("supported"):
        assert "supported" in verdicts


def beyond() -> dict[str, str]:
    """The answers of the second table, by the studies that they link."""
    rows = [
        line.split("|")
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and "](studies/" in line
    ]
    return {
        f"{re.findall('studies/(.*?).md', row[2] + row[-2])[0]} {row[1].strip()}": row[2]
        for row in rows
    }


@pytest.mark.parametrize(
    "place", [key for key in beyond() if not key.startswith(("alpha", "theory"))]
)
def test_what_lies_beyond_the_paper_has_results_that_hold_its_numbers(place: str) -> None:
    study, found = place.split()[0], beyond()[place]
    kept = (RESULTS / f"{study}.md").read_text()
    numbers = {n.strip("+−-") for n in NUMBER.findall(kept)}
    near = {f"{float(n.replace(',', '')):.{digits}f}" for n in numbers for digits in (0, 1, 2)}
    told = re.sub(r"\([^()]*arXiv[^()]*\)|\]\([^)]*\)|\d+ of \d+", "", found)
    assert not [n for n in NUMBER.findall(told) if n.strip("+−-") not in near], found


def test_gains_of_readout_and_layer_match_the_factorial_results() -> None:
    kept = (RESULTS / "factorial.md").read_text()
    text, answer = (
        PAGE.read_text(),
        next(v for k, v in beyond().items() if k.startswith("factorial")),
    )
    clear = {
        name: int(count)
        for name, count in re.findall(r"(mean|head) (\d)", re.search("In short.*", kept)[0])
    }  # type: ignore[index]
    models = int(re.search(r"models of (\d)", kept)[1])  # type: ignore[index]
    assert (
        f"in {WORDS[clear['head']]} of {WORDS[models]} models, in {WORDS[clear['mean']]} by the mean"
        in answer
    )
    assert (
        f"it holds in {WORDS[clear['mean']]} by the mean and in {WORDS[clear['head']]} by a learned head"
        in " ".join(text.split())
    )
    ratios, prompts = [], []
    for model in ("smollm2", "gemma3"):
        readout, layer = (
            float(re.search(rf"{model}.*over the baseline.*{part} \+([\d.]+)", kept)[1])  # type: ignore[index]
            for part in ("readout", "layer")
        )
        ratios.append(readout / layer)
        prompts.append(float(re.search(rf"read by prompt.*{model}\S+ \+([\d.]+)", kept)[1]))  # type: ignore[index]
    least, most = sorted(ratios)
    assert (
        f"gains {WORDS[round(least)]} to {WORDS[round(most)]} times as much as the layer"
        in " ".join(text.split())
    )
    assert f"+{min(prompts):.1f} to +{max(prompts):.1f}" in text


def test_sentences_on_compression_match_their_table() -> None:
    rows = pd.read_csv(RESULTS / "interventions/summary.csv")
    rows = rows[(rows["objective"] == "ar") & (rows["arm"] == "compress")].set_index("quantity")
    answer = next(v for k, v in beyond().items() if k.startswith("penalties"))
    assert "five strengths: the stronger, the higher the loss, no score higher" in answer
    doses = pd.read_csv(RESULTS / "doses/summary.csv").set_index(["quantity", "arm"])
    assert doses.loc[("held_out_loss", "compress, per step of strength"), "low"] > 0
    compressed = doses[doses.index.get_level_values("arm").str.startswith("compress")]
    assert len(compressed.loc["held_out_loss"]) == 6
    scored = [
        name
        for name in set(doses.index.get_level_values("quantity"))
        if re.match("probe|similarity|found_again", name)
    ]
    assert len(scored) == 6
    assert not (compressed.loc[scored, "low"] > 0).any()
    single = doses.loc[scored].drop(["none"], level="arm")
    single = single[~single.index.get_level_values("arm").str.contains("per step")]
    assert (len(single), (single["high"] < 0).sum(), (single["low"] > 0).sum()) == (60, 4, 0)
    none = doses.xs("none", level="arm")["value"]
    page = (PACKAGE / "docs/studies/penalties.md").read_text()
    assert f"{none['sink_heads']:.0f} % of the heads" in page
    assert "heads with a sink 52 %" in (RESULTS / "doses/longer.txt").read_text()
    assert f"{none['first_longest']:.1f} times as long" in page
    assert rows.loc["held_out_loss", "difference_low"] > 0
    scores = rows[
        rows.index.str.contains("probe|similarity|found_again") & ~rows.index.str.contains("layer")
    ]
    assert not (scores["difference_low"] > 0).any()


def test_counts_of_robustness_match_their_table() -> None:
    decoder = (RESULTS / "robustness.md").read_text().split("## A sentence encoder")[0]
    changed = [
        line for line in decoder.splitlines() if line.startswith(("| found again", "| TREC:"))
    ]
    clear = sum("**+" in line for line in changed)
    answer = next(v for k, v in beyond().items() if k.startswith("robustness"))
    assert f"{clear} of {len(changed)} cases" in answer
