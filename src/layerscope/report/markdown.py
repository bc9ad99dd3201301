"""The report as text: what is shown, under which conventions, and the numbers that matter most."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from layerscope.core.sites import layer_ranges
from layerscope.core.statistics import Interval
from layerscope.metrics import metric_title
from layerscope.report.contents import Report
from layerscope.report.headline import kind_of
from layerscope.report.notices import convention_rows
from layerscope.report.sections.profile import curve_of
from layerscope.report.sources import Block, Curves, Scores
from layerscope.report.text import curve_ends, number, sparkline

_MOST_ROWS = 60  # of a table of a study, probe or sweep


def markdown(report: Report) -> str:
    """GitHub-flavoured Markdown."""
    parts = [f"# {plain(report.headline.lead)}", ""]
    parts += [f"- {plain(text)}" for text in report.headline.points]
    parts += ["", "## Before you read the numbers", ""]
    parts += [f"- **{'Mind' if n.level == 'warn' else 'Note'}**, {plain(n.about)}: {plain(n.text)}" for n in report.notices]
    for mark in report.marks:
        why = plain(mark.reason).removesuffix(".")
        parts.append(f"- The {kind_of(mark)} layer of {plain(mark.model)} is {mark.layer} of {mark.layers}: {why}.")
    parts += ["", "## Conventions", ""]
    runs = report.runs
    rows = [[row["name"], *row["values"]] for row in convention_rows(runs)]
    parts += _table(["", *(run.label for run in runs)], rows)
    for curves in report.curves:
        parts += ["", f"## Metrics of {plain(curves.label)}", "", *_metrics(curves)]
    for score in report.scores:
        parts += ["", f"## Scores of {plain(score.label)}", "", *_scores(score)]
    for block in report.blocks:
        parts += [
            "",
            f"## {plain(block.title)}",
            "",
            *(f"- {plain(text)}" for text in block.told(report.headline.lead)),
            *_block(block),
        ]
    for pair in report.correlations:
        score = report.scores[pair.scores]
        own = pair.table[(pair.table["readout"] == score.reference) & (pair.table["task"] == pair.table["task"].iloc[0])]
        own = own.dropna(subset=["rho"]).sort_values("rho", key=abs, ascending=False)
        parts += ["", f"## Metric against score: {plain(report.curves[pair.curves].label)}", ""]
        rows = [
            [metric_title(r["metric"], r["sink"]), f"{r['rho']:+.2f}", _two(r["chance"]), _two(r["p"]), r["n"]]
            for r in own.to_dict(orient="records")
        ]
        parts += _table(["metric", "Spearman's ρ", "chance reaches", "Holm p", "layers"], rows)
        over = pair.over_tasks[pair.over_tasks["readout"] == score.reference]
        if not over.empty:
            parts += ["", f"The mean of the correlations with each of {int(over['tasks'].max())} tasks, drawn together:", ""]
            rows = [
                [metric_title(r["metric"], r["sink"]), f"{r['value']:+.2f}", _two(r["chance"]), _two(r["p"])]
                for r in over.sort_values("value", key=abs, ascending=False).to_dict(orient="records")
            ]
            parts += _table(["metric", "mean ρ", "chance reaches", "Holm p"], rows)
    if report.over_models is not None and not report.over_models.table.empty:
        table = report.over_models.table
        parts += ["", f"## Metric against score, over {int(table['models'].max())} models", ""]
        parts += [
            "Does the place of a model's mean correlation among unrelated smooth curves differ from chance? "
            "A t-test over families of models (docs/correlation.md).",
            "",
        ]
        rows = [
            [metric_title(r["metric"]), f"{r['value']:+.2f}", f"{r['t']:.2f}", _two(r["p_adjusted"]), int(r["families"])]
            for r in table.to_dict(orient="records")
        ]
        parts += _table(["metric", "mean ρ", "t", "Holm p", "families"], rows)
    return "\n".join([*parts, "", f"Made by layerscope on {report.made}.", ""])


def _metrics(curves: Curves) -> list[str]:
    rows = []
    for name in dict.fromkeys(curves.table["metric"]):
        for sink in ("keep", "drop"):
            curve = curve_of(curves, name, sink).dropna(subset=["value"])
            if curve.empty:
                continue
            values = curve["value"].to_numpy()
            ends = curve_ends(curve["layer"], values)
            rows.append([metric_title(name, sink), sparkline(values), *ends, number(float(values[-1]))])
    return _table(["metric", "first → last layer", "lowest", "highest", "last"], rows)


def _scores(score: Scores) -> list[str]:
    rows = []
    for readout in score.readouts:
        scored = score.table[score.table["readout"] == readout].dropna(subset=["score"])
        for task, group in scored.groupby("task", sort=False):
            top = group.iloc[int(group["score"].argmax())]
            last = group.iloc[int(group["layer"].argmax())]
            found = Interval.from_row(top, "gain").scaled(100)
            gain = f"{found.value:+.1f}" if math.isfinite(found.value) else "–"
            gain += found.ends() if found.low != found.high else ""
            tied = ", ".join(layer_ranges([int(k) for k in group.loc[group["tied"], "layer"]]))
            rows.append([task, readout, f"{100 * last['score']:.2f}", f"{100 * top['score']:.2f}", int(top["layer"]), gain, tied])
    return _table(["task", "readout", "last", "best", "layer", "gain over last [95 %]", "tied"], rows)


def _block(block: Block) -> list[str]:
    """Its charts as sparklines, then its tables, long ones in part."""
    parts: list[str] = []
    for chart in block.charts:
        rows = [[line.name, sparkline(line.values), *curve_ends(line.layers, line.values)] for line in chart.lines]
        parts += [
            "",
            *_table([f"{chart.title}, {chart.unit}".removesuffix(", "), "first → last layer", "lowest", "highest"], rows),
        ]
    for title, table in block.tables.items():
        parts += ["", f"### {plain(title)}", "", *_table(list(table.columns), table.head(_MOST_ROWS).to_numpy().tolist())]
        parts += ["", f"The first {_MOST_ROWS} of {len(table)} rows."] if len(table) > _MOST_ROWS else []
    return parts


def _two(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell if cell == "---" else plain(str(cell)) for cell in line) + " |" for line in lines]


def plain(text: str) -> str:
    """Text that Markdown shows as it is, without markup or HTML."""
    return (
        re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", " ".join(text.split()))
        .replace("&", "&amp;")
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
    )
