"""The report as text: what is shown, under which conventions, and the numbers that matter most."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from layerscope.metrics import metric_title
from layerscope.report.contents import Report
from layerscope.report.headline import kind_of
from layerscope.report.notices import convention_rows
from layerscope.report.sections.evaluation import scores_block
from layerscope.report.sections.profile import curves_block
from layerscope.report.sources import Block
from layerscope.report.text import curve_ends, sparkline

_MOST_ROWS = 60  # of a table of a study, probe or sweep


def markdown(report: Report) -> str:
    """GitHub-flavoured Markdown."""
    parts = [f"# {plain(report.headline.lead)}", ""]
    parts += [f"- {plain(text)}" for text in report.headline.points]
    parts += ["", "## Before you read the numbers", ""]
    parts += [
        f"- **{'Mind' if n.level == 'warn' else 'Note'}**, {plain(n.about)}: {plain(n.text)}"
        for n in report.notices
    ]
    for mark in report.marks:
        why = plain(mark.reason).removesuffix(".")
        parts.append(
            f"- The {kind_of(mark)} layer of {plain(mark.model)} is {mark.layer} of {mark.layers}: {why}."
        )
    parts += ["", "## Conventions", ""]
    runs = report.runs
    rows = [[row["name"], *row["values"]] for row in convention_rows(runs)]
    parts += _table(["", *(run.label for run in runs)], rows)
    for curves in report.curves:
        parts += ["", f"## Metrics of {plain(curves.label)}", *_tables(curves_block(curves))]
    for score in report.scores:
        parts += ["", f"## Scores of {plain(score.label)}", *_tables(scores_block(score))]
    for block in report.blocks:
        words = [f"- {plain(text)}" for text in block.told(report.headline.lead)]
        parts += ["", f"## {plain(block.title)}", "", *words, *_charts(block), *_tables(block)]
    for pair in report.correlations:
        score = report.scores[pair.scores]
        own = pair.table[
            (pair.table["readout"] == score.reference)
            & (pair.table["task"] == pair.table["task"].iloc[0])
        ]
        own = own.dropna(subset=["rho"]).sort_values("rho", key=abs, ascending=False)
        parts += ["", f"## Metric against score: {plain(report.curves[pair.curves].label)}", ""]
        rows = [
            [
                metric_title(r["metric"], r["sink"]),
                f"{r['rho']:+.2f}",
                _two(r["chance"]),
                _two(r["p"]),
                r["n"],
            ]
            for r in own.to_dict(orient="records")
        ]
        parts += _table(
            ["metric", "Spearman's ρ", "chance reaches", "p, all metrics", "layers"], rows
        )
        over = pair.over_tasks[pair.over_tasks["readout"] == score.reference]
        if not over.empty:
            parts += [
                "",
                f"The mean of the correlations with each of {int(over['tasks'].max())} tasks, drawn together:",
                "",
            ]
            rows = [
                [
                    metric_title(r["metric"], r["sink"]),
                    f"{r['value']:+.2f}",
                    _two(r["chance"]),
                    _two(r["p"]),
                ]
                for r in over.sort_values("value", key=abs, ascending=False).to_dict(
                    orient="records"
                )
            ]
            parts += _table(["metric", "mean ρ", "chance reaches", "p, all metrics"], rows)
    if report.over_models is not None and not report.over_models.table.empty:
        table = report.over_models.table
        parts += ["", f"## Metric against score, over {int(table['models'].max())} models", ""]
        parts += [
            "Does the place of a model's mean correlation among unrelated smooth curves differ from chance? "
            "A t-test over families of models (docs/correlation.md).",
            "",
        ]
        rows = [
            [
                metric_title(r["metric"]),
                f"{r['value']:+.2f}",
                f"{r['t']:.2f}",
                _two(r["p_adjusted"]),
                int(r["families"]),
            ]
            for r in table.to_dict(orient="records")
        ]
        parts += _table(["metric", "mean ρ", "t", "Holm p", "families"], rows)
    return "\n".join([*parts, "", f"Made by layerscope on {report.made}.", ""])


def _charts(block: Block) -> list[str]:
    """Each chart as sparklines."""
    parts: list[str] = []
    for chart in block.charts:
        rows = [
            [line.name, sparkline(line.values), *curve_ends(line.layers, line.values)]
            for line in chart.lines
        ]
        head = [
            f"{chart.title}, {chart.unit}".removesuffix(", "),
            "first → last layer",
            "lowest",
            "highest",
        ]
        parts += ["", *_table(head, rows)]
    return parts


def _tables(block: Block) -> list[str]:
    """Its tables, long ones in part; one without a title is what the section is about, and
    whole."""
    parts: list[str] = []
    for title, table in block.tables.items():
        most = _MOST_ROWS if title else len(table)
        parts += ["", *([f"### {plain(title)}", ""] if title else [])]
        parts += _table(list(table.columns), table.head(most).to_numpy().tolist())
        parts += ["", f"The first {most} of {len(table)} rows."] if len(table) > most else []
    return parts


def _two(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [
        "| " + " | ".join(cell if cell == "---" else plain(str(cell)) for cell in line) + " |"
        for line in lines
    ]


def plain(text: str) -> str:
    """Text that Markdown shows as it is, without markup or HTML."""
    return (
        re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", " ".join(text.split()))
        .replace("&", "&amp;")
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
    )
