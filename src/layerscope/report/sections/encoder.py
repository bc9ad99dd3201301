"""Faster encoders on the page: what was kept, what each block is worth, and the front of cost and
agreement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerscope.blocks.words import facts, headline
from layerscope.core.charts import Chart, Figure, Line
from layerscope.report.charts import plot_charts
from layerscope.report.section import Section

if TYPE_CHECKING:
    from layerscope.blocks.result import FasterEncoder


def section(run: FasterEncoder) -> Section:
    """Return the headline and its facts, two charts, and the tables."""
    lines = dict(facts(run.manifest))
    names = {"count": "blocks", "blocks": "which", "ci_low": "from", "ci_high": "to"}
    front = run.front.rename(columns=names)
    front = front.round(dict.fromkeys(("agreement", "from", "to", "neighbors"), 3))
    front["chosen"] = ["chosen" if chosen else "" for chosen in front["chosen"]]
    return Section.of(
        run,
        f"A faster encoder: {run.name}",
        [f"{name[:1].upper()}{name[1:]}: {value}." for name, value in lines.items()],
        model=run.model,
        charts=charts(run),
        tables={"Candidates": front, "What each removal leaves": run.removals},
        facts={"kind": "encoder", "texts": run.manifest["texts"]["name"], **lines},
        lead=[f"{headline(run.manifest)}."],
        inline=["Candidates"],
    )


def charts(run: FasterEncoder) -> list[Chart]:
    """Return what the removal of each single block costs, and the agreement by the blocks kept."""
    panels = []
    single = run.removals[run.removals["step"] == 1].sort_values("block")
    if len(single):
        loss = Line(
            "block", [str(block) for block in single["block"]], list(2 - single["closeness"])
        )
        says = (
            "The correlation of all similarities with the whole encoder's plus the mean cosine to "
            "its vectors, 2 for the whole, after a quick refit."
        )
        panels.append(
            Chart(
                "What removing one block costs",
                [loss],
                "closeness lost, of 2",
                says,
                x="block that is removed",
                bars=True,
            )
        )
    lines = []
    for name in ("as they are", "refitted"):
        rows = run.front.iloc[1:]
        rows = rows[rows["weights"] == name].sort_values("count")
        if len(rows):
            whole = run.front.iloc[0]
            counts = [*rows["count"], whole["count"]]
            values = [*rows["agreement"], whole["agreement"]]
            low = [*rows["ci_low"], 1.0]
            high = [*rows["ci_high"], 1.0]
            lines.append(Line(name, counts, values, low, high))
    if lines:
        panels.append(
            Chart(
                "Agreement with the whole encoder",
                lines,
                "correlation of similarities",
                "On texts that fitted nothing; bands are 95 %, texts resampled.",
                x="blocks kept",
            )
        )
    return panels


def plot_faster(run: FasterEncoder) -> Figure:
    """Return both charts side by side."""
    title, _, subtitle = headline(run.manifest).partition(": ")
    return plot_charts(charts(run), f"{title}, on {run.manifest['texts']['name']}", subtitle)
