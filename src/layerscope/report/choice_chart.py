"""A choice as charts: every layer under every readout by its score, and the score by the cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Figure
from layerscope.core.readout import DEFAULT_READOUT, HEAD, Readout, row_words
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.improving.decision import front
from layerscope.report.charts import COLORS, INK, altair, draw_ties

_POOLINGS = ["mean", "wmean", "last", "cls"]  # in this order; others follow
_COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_KINDS = {"plain text": (6, "circle"), "prompts": (0, "triangle"), "heads": (1, "square")}
"""The place in the palette and the shape of each kind of readout."""


def candidate_rows(run: Any) -> pd.DataFrame | None:
    """Return a row per candidate of an improvement that has a score; None if nothing was scored."""
    table: pd.DataFrame = run.table
    is_scored = np.isfinite(table["score"].astype(float))
    if not is_scored.any():
        return None
    best = front(table)
    on_front = set(zip(best["readout"], best["layer"], strict=True))
    order = {name: i for i, name in enumerate(sorted(set(table["readout"]), key=_order))}
    last = int(table["layer"].max())
    chosen = (chosen_readout(run), run.choice.layer)
    rows = []
    for row in table[is_scored].to_dict("records"):
        place = (str(row["readout"]), int(row["layer"]))
        role = ""
        if place == chosen:
            role = "chosen"
        elif place == (DEFAULT_READOUT, last):
            role = "today"
        is_open = row["eligible"] is True or row["eligible"] == 1
        is_tied = row["tied"] is True or row["tied"] == 1
        text, manner = row_words(place[0])
        label = f"head on {text}" if manner == HEAD else ", ".join(filter(None, (text, manner)))
        rows.append(
            {
                "order": order[place[0]],
                "readout": label if is_open else f"{label} *",
                "kind": _kind(text, manner),
                "layer": place[1],
                "score": row["score"],
                "low": row[INTERVAL[0]],
                "high": row[INTERVAL[1]],
                "cost": row["cost"],
                "tied": is_tied,
                "open": is_open,
                "front": place in on_front,
                "place": role,
                "words": _words(row, label, role, is_open, is_tied),
            }
        )
    return pd.DataFrame(rows).sort_values(["order", "layer"], ignore_index=True)


def chosen_readout(run: Any) -> str:
    """Return the chosen readout as the table names it: of a search, both sides' readouts."""
    if "chosen" in run.table:
        names = run.table["readout"][run.table["chosen"].astype(bool)]
        if len(names):
            return str(names.iloc[0])
    return str(run.choice.readout)


def _order(name: str) -> tuple[Any, ...]:
    """Return a sort key: plain text, prompts, heads; within each, the unmodified mean first."""
    readout = Readout(*name.rsplit("/", 4))
    pooling = _POOLINGS.index(readout.pooling) if readout.pooling in _POOLINGS else len(_POOLINGS)
    details = (pooling, readout.pooling, readout.final_norm, readout.centering != "none")
    return readout.centering == HEAD, readout.template != "plain", readout.template, *details


def _kind(text: str, manner: str) -> str:
    if manner == HEAD:
        return "heads"
    return "plain text" if text == "plain text" else "prompts"


def _words(row: dict[Any, Any], label: str, role: str, is_open: bool, is_tied: bool) -> str:
    """Return a candidate with its score, cost and state, for a tooltip."""
    score = f"{row['score']:.3f}"
    low, high = row[INTERVAL[0]], row[INTERVAL[1]]
    if np.isfinite(low) and low != high:
        score += f" [{low:.3f}, {high:.3f}]"
    parts = [f"layer {row['layer']}, {label}", score]
    if np.isfinite(row["cost"]):
        parts.append(f"{row['cost']:.2f} × today's computation")
    if role:
        parts.append(role)
    if is_tied:
        parts.append("cannot be told from the best")
    if not is_open:
        parts.append("cannot be chosen")
    return " · ".join(parts)


def plot_choice(run: Any) -> Figure:
    """Return the picture of an improvement: both charts side by side."""
    rows = candidate_rows(run)
    if rows is None:
        raise LayerscopeError(
            f"{run.name}: no layers and readouts were compared, so that there is nothing to draw."
        )
    library = altair()
    unit = run.evidence.score_name
    heat = heat_chart(rows, unit).properties(width=max(220, 14 * rows["layer"].nunique()))
    costs = cost_chart(rows, unit, budget_of(run)).properties(width=360, height=300)
    pair = library.hconcat(heat, costs, spacing=30).resolve_scale(color="independent")
    title = library.TitleParams(run.name, anchor="start", offset=14)
    return pair.configure_legend(labelLimit=0).configure_view(stroke=None).properties(title=title)


def budget_of(run: Any) -> float | None:
    """Return the largest cost that was allowed."""
    budget: float | None = (run.manifest.get("config") or {}).get("budget")
    return budget


def heat_chart(rows: pd.DataFrame, unit: str) -> Figure:
    """Return every layer under every readout by its score."""
    library = altair()
    order = library.EncodingSortField("order", op="min")
    axis = library.Axis(labelAngle=0, labelOverlap=True)
    across = library.X("layer:O", title="layer", axis=axis)
    down = library.Y("readout:N", sort=order, title=None, axis=library.Axis(labelLimit=300))
    legend = library.Legend(orient="top", gradientLength=160)
    scale = library.Scale(scheme="blues")
    base = library.Chart(rows).encode(x=across, y=down, tooltip="words:N", description="words:N")
    cells = base.mark_rect().encode(
        color=library.Color("score:Q", title=unit, scale=scale, legend=legend),
        opacity=library.condition("datum.open", library.value(1), library.value(0.45)),
    )
    legend = library.Legend(title=None, orient="bottom", symbolSize=90)
    title = library.TitleParams("Every layer under every readout", anchor="start")
    return library.layer(cells, draw_ties(base), _points(rows, across, down, legend)).properties(
        height=18 * rows["readout"].nunique(), title=title
    )


def cost_chart(rows: pd.DataFrame, unit: str, budget: float | None) -> Figure:
    """Return the score of every candidate by its cost."""
    library = altair()
    across = library.X(
        "cost:Q",
        title="cost per text, × today's computation",
        scale=library.Scale(type="log", nice=False, padding=10),
        axis=library.Axis(values=_COSTS, format="~g"),
    )
    up = library.Y("score:Q", title=unit, scale=library.Scale(zero=False))
    kinds = [name for name in _KINDS if name in set(rows["kind"])]
    colors = library.Scale(domain=kinds, range=[COLORS[_KINDS[name][0]] for name in kinds])
    shapes = library.Scale(domain=kinds, range=[_KINDS[name][1] for name in kinds])
    legend = library.Legend(title=None, orient="bottom", symbolOpacity=1)
    base = library.Chart(rows).encode(x=across, y=up, tooltip="words:N", description="words:N")
    points = base.mark_point(filled=True, size=22).encode(
        color=library.Color("kind:N", scale=colors, legend=legend),
        shape=library.Shape("kind:N", scale=shapes, legend=legend),
        opacity=library.condition("datum.open", library.value(0.5), library.value(0.18)),
    )
    ties = base.transform_filter("datum.tied").mark_point(
        filled=False, size=40, strokeWidth=1, color=INK, opacity=1
    )
    best = base.transform_filter("datum.front").mark_line(
        interpolate="step-after", color=INK, strokeWidth=1.4
    )
    layers = [points, ties, best]
    if budget is not None:
        limit = library.Chart(pd.DataFrame({"cost": [budget], "words": ["budget"]}))
        limit = limit.encode(x="cost:Q")
        text = limit.mark_text(align="left", dx=4, fontSize=10, color=INK)
        layers.append(limit.mark_rule(strokeDash=[4, 3], color=INK))
        layers.append(text.encode(y=library.value(6), text="words:N"))
    marked = library.Chart(rows[rows["place"] != ""]).encode(x=across, y=up)
    layers.append(marked.mark_rule(color=INK).encode(y="low:Q", y2="high:Q"))
    layers.append(_points(rows, across, up, None))
    name = marked.mark_text(align="left", dx=9, fontWeight="bold", color=INK)
    layers.append(name.encode(text="place:N"))
    figure = library.layer(*layers).resolve_scale(shape="independent", color="independent")
    return figure.properties(title=library.TitleParams("What it costs", anchor="start"))


def _points(rows: pd.DataFrame, across: Any, up: Any, legend: Any) -> Figure:
    """Return the marks of the baseline and of the choice."""
    library = altair()
    shapes = library.Scale(domain=["today", "chosen"], range=["diamond", "circle"])
    marked = library.Chart(rows[rows["place"] != ""]).encode(
        x=across, y=up, tooltip="words:N", description="words:N"
    )
    point = marked.mark_point(filled=True, fill="white", stroke=INK, size=90, opacity=1)
    return point.encode(shape=library.Shape("place:N", scale=shapes, legend=legend))
