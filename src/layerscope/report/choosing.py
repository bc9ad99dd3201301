"""A choice as a chart: every layer under every readout by its score, and the score against its
cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import ChoiceGrid, Figure
from layerscope.core.readout import DEFAULT_READOUT, HEAD, Readout, row_words
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.improving.choose import front
from layerscope.report.charts import COLORS, INK, altair, draw_ties

_POOLINGS = ("mean", "wmean", "last", "cls")  # in this order; others follow
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_KINDS = {"plain text": (6, "circle"), "prompts": (0, "triangle"), "heads": (1, "square")}
"""The place in the palette and the shape of each kind of readout."""


def grid_of(run: Any) -> ChoiceGrid | None:
    """Return what an improvement chose from; None if nothing was judged."""
    table: pd.DataFrame = run.table
    if not len(table) or not np.isfinite(table["score"]).any():
        return None
    names = sorted(dict.fromkeys(table["readout"]), key=_order)
    layers = sorted({int(layer) for layer in table["layer"]})
    places = {
        (name, layer): (r, k) for r, name in enumerate(names) for k, layer in enumerate(layers)
    }

    def wide(column: str) -> np.ndarray:
        cells = table.pivot_table(
            index="readout", columns="layer", values=column, aggfunc="first", dropna=False
        )
        return cells.reindex(index=names, columns=layers).to_numpy()

    chosen = places.get((chosen_row(table, run.choice), run.choice.layer))
    if chosen is None:
        return None
    best = front(table)
    return ChoiceGrid(
        unit=run.evidence.score_name,
        rows=[row_words(name) for name in names],
        layers=layers,
        score=wide("score").astype(float),
        low=wide(INTERVAL[0]).astype(float),
        high=wide(INTERVAL[1]).astype(float),
        cost=wide("cost").astype(float),
        tied=wide("tied") == True,  # noqa: E712 - what a pivot leaves empty is not tied
        open=(wide("eligible") == True).any(1),  # noqa: E712
        chosen=chosen,
        today=places.get((DEFAULT_READOUT, layers[-1])),
        front=[
            places[str(name), int(layer)]
            for name, layer in zip(best["readout"], best["layer"], strict=True)
        ],
        budget=(run.manifest.get("config") or {}).get("budget"),
    )


def chosen_row(table: pd.DataFrame, choice: Any) -> str:
    """Return the chosen readout as the table names it: of a search, how both sides are read."""
    chosen: Any = table["readout"][table["chosen"].astype(bool)] if "chosen" in table else []
    return str(next(iter(chosen), choice.readout))


def _order(name: str) -> tuple[Any, ...]:
    """Return a sort key: plain text, prompts, heads; within each, the unmodified mean first."""
    readout = Readout(*name.rsplit("/", 4))
    pooling = _POOLINGS.index(readout.pooling) if readout.pooling in _POOLINGS else len(_POOLINGS)
    rest = (pooling, readout.pooling, readout.final_norm, readout.centering != "none")
    return readout.centering == HEAD, readout.template != "plain", readout.template, *rest


def groups(grid: ChoiceGrid) -> list[str]:
    """Return the kind of each row: plain text, a prompt, or a head."""
    return [
        "heads" if how == HEAD else "plain text" if read == "plain text" else "prompts"
        for read, how in grid.rows
    ]


def candidate_words(grid: ChoiceGrid, place: tuple[int, int]) -> str:
    """Return a candidate with its score, cost and state, for a tooltip."""
    parts = [place_words(grid, place), f"{grid.score[place]:.3f}"]
    low, high = grid.low[place], grid.high[place]
    if np.isfinite(low) and low != high:
        parts[-1] += f" [{low:.3f}, {high:.3f}]"
    if np.isfinite(grid.cost[place]):
        parts.append(f"{grid.cost[place]:.2f} × today's computation")
    states = {
        "chosen": place == grid.chosen,
        "today": place == grid.today,
        "not told from the best": bool(grid.tied[place]),
        "cannot be chosen": not grid.open[place[0]],
    }
    return " · ".join([*parts, *(name for name, holds in states.items() if holds)])


def place_words(grid: ChoiceGrid, place: tuple[int, int]) -> str:
    """Return a candidate's layer and readout in words."""
    return f"layer {grid.layers[place[1]]}, {row_label(grid.rows[place[0]])}"


def row_label(row: tuple[str, str]) -> str:
    """Return a readout in words.

    >>> row_label(("plain text", "mean")), row_label(("one-word prompt", "")), row_label(("plain text", "head"))
    ('plain text, mean', 'one-word prompt', 'head on plain text')
    """
    return f"head on {row[0]}" if row[1] == HEAD else ", ".join(filter(None, row))


def plot_choice(run: Any) -> Figure:
    """Return the picture of an improvement."""
    grid = grid_of(run)
    if grid is None:
        raise LayerscopeError(
            f"{run.name}: no layers and readouts were compared, so that there is nothing to draw."
        )
    return choice_picture(grid).properties(
        title={"text": run.name, "anchor": "start", "offset": 14}
    )


def choice_picture(grid: ChoiceGrid) -> Figure:
    """Return both charts of a choice side by side."""
    library = altair()
    heat = heat_chart(grid).properties(width=max(220, 14 * len(grid.layers)))
    costs = cost_chart(grid).properties(width=360, height=300)
    both = library.hconcat(heat, costs, spacing=30).resolve_scale(color="independent")
    return both.configure_legend(labelLimit=0).configure_view(stroke=None)


def heat_chart(grid: ChoiceGrid) -> Figure:
    """Return every layer under every readout by its score."""
    library = altair()
    rows = _rows(grid)
    labels = list(dict.fromkeys(rows["readout"]))
    across = library.X("layer:O", title="layer", axis=library.Axis(labelAngle=0, labelOverlap=True))
    down = library.Y(
        "readout:N",
        sort=library.EncodingSortField("order", op="min"),
        title=None,
        axis=library.Axis(labelLimit=300),
    )
    color = library.Color(
        "score:Q", title=grid.unit, scale=library.Scale(scheme="blues"),
        legend=library.Legend(orient="top", gradientLength=160),
    )  # fmt: skip
    opacity = library.condition("datum.open", library.value(1), library.value(0.45))
    base = library.Chart(rows).encode(x=across, y=down, tooltip="words:N", description="words:N")
    cells = base.mark_rect().encode(color=color, opacity=opacity)
    return library.layer(cells, draw_ties(base), *_marked(rows, across, down)).properties(
        height=18 * len(labels),
        title=library.TitleParams("Every layer under every readout", anchor="start"),
    )


def cost_chart(grid: ChoiceGrid) -> Figure:
    """Return the score of every candidate against its cost."""
    library = altair()
    rows = _rows(grid)
    across = library.X(
        "cost:Q", title="cost per text, × today's computation",
        scale=library.Scale(type="log", nice=False, padding=10),
        axis=library.Axis(values=_TICKS, format="~g"),
    )  # fmt: skip
    up = library.Y("score:Q", title=grid.unit, scale=library.Scale(zero=False))
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
    front = base.transform_filter("datum.front").mark_line(
        interpolate="step-after", color=INK, strokeWidth=1.4
    )
    layers = [points, ties, front]
    if grid.budget is not None:
        limit = library.Chart(pd.DataFrame({"cost": [grid.budget], "words": ["budget"]}))
        rule = limit.mark_rule(strokeDash=[4, 3], color=INK).encode(x="cost:Q")
        text = limit.mark_text(align="left", dx=4, fontSize=10, color=INK)
        layers += [rule, text.encode(x="cost:Q", y=library.value(6), text="words:N")]
    layers += _marked(rows, across, up, words=True)
    title = library.TitleParams("What it costs", anchor="start")
    return (
        library.layer(*layers)
        .resolve_scale(shape="independent", color="independent")
        .properties(title=title)
    )


def _marked(rows: pd.DataFrame, across: Any, other: Any, words: bool = False) -> list[Figure]:
    """Return the marks of today's reading and of the chosen one, with their interval and name."""
    library = altair()
    marked = library.Chart(rows[rows["place"] != ""]).encode(
        x=across, y=other, tooltip="words:N", description="words:N"
    )
    shapes = library.Scale(domain=["today", "chosen"], range=["diamond", "circle"])
    legend = library.Legend(title=None, orient="bottom", symbolSize=90)
    point = marked.mark_point(filled=True, fill="white", stroke=INK, size=90, opacity=1)
    shape = library.Shape("place:N", scale=shapes, legend=None if words else legend)
    layers = [point.encode(shape=shape)]
    if words:
        interval = marked.mark_rule(color=INK).encode(y="low:Q", y2="high:Q")
        text = marked.mark_text(align="left", dx=9, fontWeight="bold", color=INK).encode(
            text="place:N"
        )
        layers = [interval, *layers, text]
    return layers


def _rows(grid: ChoiceGrid) -> pd.DataFrame:
    """Return a row per candidate with a score, the front in its order."""
    kinds = groups(grid)
    order = {place: i for i, place in enumerate(grid.front)}
    rows = []
    for r, label in enumerate(grid.rows):
        for k, layer in enumerate(grid.layers):
            if not np.isfinite(grid.score[r, k]):
                continue
            place = "today" if (r, k) == grid.today else "chosen" if (r, k) == grid.chosen else ""
            rows.append(
                {
                    "order": r,
                    "readout": row_label(label) + ("" if grid.open[r] else " *"),
                    "kind": kinds[r],
                    "layer": layer,
                    "score": grid.score[r, k],
                    "low": grid.low[r, k],
                    "high": grid.high[r, k],
                    "cost": grid.cost[r, k],
                    "tied": bool(grid.tied[r, k]),
                    "open": bool(grid.open[r]),
                    "front": (r, k) in order,
                    "place": place,
                    "words": candidate_words(grid, (r, k)),
                }
            )
    return pd.DataFrame(rows)
