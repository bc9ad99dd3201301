"""A run in a notebook: conventions, what it shows, and the core metrics by layer. All text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from layerscope.metrics import get_metric
from layerscope.profiling.valley import find_valley
from layerscope.report.terminal.profile import how_long, number, sparkline

if TYPE_CHECKING:
    from layerscope.profiling.run import Run


def run_html(run: Run) -> str:
    """A small self-contained fragment."""
    m = run.manifest
    valley = find_valley(run.table)
    lines = [
        f"<b>{escape(run.name)}</b> on {escape(str(m['corpus']['name']))}: {how_long(m)}, "
        f"final_norm <b>{escape(str(m['conventions']['final_norm']))}</b>, "
        f"{m['conventions']['views']} views",
    ]
    if valley is not None:
        lines.append(escape(valley.sentence()))
    lines += [f"<i>{escape(str(warning))}</i>" for warning in m["warnings"]]
    rows = []
    for name in run.table["metric"].unique():
        curve = run.curve(name)
        values = curve["value"].to_numpy()
        cells = [escape(get_metric(name).info.title), f"<code>{sparkline(values)}</code>"]
        cells += [number(float(values[0])), number(float(values[-1]))]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>metric</th><th>embed → last layer</th><th>first</th><th>last</th></tr>"
    return "<p>" + "<br>".join(lines) + f"</p><table>{head}{''.join(rows)}</table>"
