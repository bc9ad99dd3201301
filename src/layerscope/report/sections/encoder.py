"""Faster encoders on the page: what was kept, what each block is worth, and the front of cost and
agreement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerscope.blocks.words import facts, headline
from layerscope.core.charts import Figure
from layerscope.report.charts import plot_charts
from layerscope.report.sources import Block, Chart, Line, Section, of_run

if TYPE_CHECKING:
    from layerscope.blocks.result import FasterEncoder


def from_faster(run: FasterEncoder) -> Block:
    """The headline and its facts, two charts, and the tables."""
    lines = dict(facts(run.manifest))
    front = run.front.rename(
        columns={"count": "blocks", "blocks": "which", "ci_low": "from", "ci_high": "to"}
    )
    front = front.round(dict.fromkeys(("agreement", "from", "to", "neighbors"), 3))
    front["chosen"] = ["chosen" if chosen else "" for chosen in front["chosen"]]
    return Block(
        "encoder",
        f"A faster encoder: {run.name}",
        run.model,
        [f"{name[:1].upper()}{name[1:]}: {value}." for name, value in lines.items()],
        charts=charts(run),
        tables={"Candidates": front, "What each removal leaves": run.removals},
        facts={"kind": "encoder", "texts": run.manifest["texts"]["name"], **lines},
        lead=[f"{headline(run.manifest)}."],
        inline=["Candidates"],
        **of_run(run),
    )


def charts(run: FasterEncoder) -> list[Chart]:
    """What the removal of each single block costs, and the agreement by the blocks kept."""
    found = []
    first = run.removals[run.removals["step"] == 1].sort_values("block")
    if len(first):
        bars = Line("block", [f"{block}" for block in first["block"]], list(2 - first["closeness"]))
        found.append(
            Chart(
                "What removing one block costs",
                [bars],
                "closeness lost, of 2",
                "The correlation of all similarities with the whole encoder's plus the mean cosine "
                "to its vectors, 2 for the whole, after a quick refit.",
                x="block that is removed",
                bars=True,
            )
        )
    whole = run.front.iloc[:1]
    lines = []
    for name in ("as they are", "refitted"):
        rows = run.front.iloc[1:]
        rows = rows[rows["weights"] == name].sort_values("count")
        if len(rows):
            counts = [*rows["count"], *whole["count"]]
            values = [*rows["agreement"], *whole["agreement"]]
            low, high = ([*rows[end], 1.0] for end in ("ci_low", "ci_high"))
            lines.append(Line(name, counts, values, low, high))
    if lines:
        found.append(
            Chart(
                "Agreement with the whole encoder",
                lines,
                "correlation of similarities",
                "On texts that fitted nothing; bands are 95 %, texts resampled.",
                x="blocks kept",
            )
        )
    return found


def plot_faster(run: FasterEncoder) -> Figure:
    """Return both charts side by side."""
    first, _, second = headline(run.manifest).partition(": ")
    return plot_charts(charts(run), f"{first}, on {run.manifest['texts']['name']}", second)


SECTION = Section("encoder", from_faster)
