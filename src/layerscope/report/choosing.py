"""A choice as a picture: every layer under every readout by its score, and the score against what
it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerscope.core.charts import ChoiceGrid
from layerscope.core.readout import DEFAULT_READOUT, HEAD, Readout, row_words
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.improving.choose import front
from layerscope.report.drawing import COLORS, escape_math, new_figure, plain_log_axis, style_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POOLINGS = ("mean", "wmean", "last", "cls")  # in this order; others follow
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
TODAY, CHOSEN = "D", "o"  # matplotlib's markers, as on the page: a diamond and a circle


def grid_of(run: Any) -> ChoiceGrid | None:
    """What an improvement chose from; None where nothing was judged."""
    table: pd.DataFrame = run.table
    if not len(table) or not np.isfinite(table["score"]).any():
        return None
    names = sorted(dict.fromkeys(table["readout"]), key=_order)
    layers = sorted({int(layer) for layer in table["layer"]})
    places = {
        (name, layer): (r, k) for r, name in enumerate(names) for k, layer in enumerate(layers)
    }

    def wide(column: str) -> np.ndarray:
        found = table.pivot_table(
            index="readout", columns="layer", values=column, aggfunc="first", dropna=False
        )
        return found.reindex(index=names, columns=layers).to_numpy()

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
    """The chosen readout as the table names it: of a search, how both sides are read."""
    found: Any = table["readout"][table["chosen"].astype(bool)] if "chosen" in table else []
    return str(next(iter(found), choice.readout))


def _order(name: str) -> tuple[Any, ...]:
    """Sort key: plain text, prompts, heads; within each, the unmodified mean first."""
    readout = Readout(*name.rsplit("/", 4))
    pooling = _POOLINGS.index(readout.pooling) if readout.pooling in _POOLINGS else len(_POOLINGS)
    rest = (pooling, readout.pooling, readout.final_norm, readout.centering != "none")
    return readout.centering == HEAD, readout.template != "plain", readout.template, *rest


def groups(grid: ChoiceGrid) -> list[str]:
    """What each row is in the chart of costs: plain text, a prompt, or a head."""
    return [
        "heads" if how == HEAD else "plain text" if read == "plain text" else "prompts"
        for read, how in grid.rows
    ]


def place_words(grid: ChoiceGrid, place: tuple[int, int]) -> str:
    """A candidate in words."""
    return f"layer {grid.layers[place[1]]}, {row_label(grid.rows[place[0]])}"


def row_label(row: tuple[str, str]) -> str:
    """A readout in words.

    >>> row_label(("plain text", "mean")), row_label(("one-word prompt", "")), row_label(("plain text", "head"))
    ('plain text, mean', 'one-word prompt', 'head on plain text')
    """
    return f"head on {row[0]}" if row[1] == HEAD else ", ".join(filter(None, row))


def plot_choice(run: Any) -> Figure:
    """The picture of an improvement, as a figure."""
    grid = grid_of(run)
    if grid is None:
        raise LayerscopeError(
            f"{run.name}: no layers and readouts were compared, so that there is nothing to draw."
        )
    figure = grid_figure(grid)
    figure.suptitle(escape_math(run.name), fontsize=9)
    return figure


def grid_figure(grid: ChoiceGrid) -> Figure:
    """The same without a title."""
    figure = new_figure(11.0, choice_height(grid))
    draw_choice(figure, grid)
    return figure


def choice_height(grid: ChoiceGrid) -> float:
    """Inches that it takes."""
    return max(3.6, 1.6 + 0.2 * len(grid.rows))


def draw_choice(figure: Any, grid: ChoiceGrid) -> None:
    """Layers × readouts by score beside score by cost, with what was chosen and what is used
    today."""
    heat, costs = figure.subplots(1, 2, width_ratios=(1.35, 1))
    _draw_heat(figure, heat, grid)
    _draw_costs(figure, costs, grid)


def _draw_heat(figure: Any, axis: Any, grid: ChoiceGrid) -> None:
    image = axis.imshow(grid.score, aspect="auto", cmap="Blues", interpolation="nearest")
    rows, columns = np.nonzero(grid.tied)
    axis.scatter(columns, rows + 0.36, marker="_", s=14, color="black", linewidths=0.9)
    for place, marker in ((grid.today, TODAY), (grid.chosen, CHOSEN)):
        if place is not None:
            axis.plot(
                place[1],
                place[0],
                marker,
                markersize=6,
                markerfacecolor="white",
                markeredgecolor="black",
            )
    labels = [
        row_label(row) + ("" if may else " (cannot be chosen)")
        for row, may in zip(grid.rows, grid.open, strict=True)
    ]
    axis.set_yticks(range(len(labels)), [escape_math(label) for label in labels], fontsize=7)
    step = max(1, len(grid.layers) // 12)
    axis.set_xticks(
        range(0, len(grid.layers), step), [str(k) for k in grid.layers[::step]], fontsize=7
    )
    axis.set_xlabel("layer", fontsize=8)
    axis.set_title(escape_math(grid.unit), fontsize=9, loc="left")
    bar = figure.colorbar(image, ax=axis, shrink=0.8, pad=0.01)
    bar.ax.tick_params(labelsize=7)


def _draw_costs(figure: Any, axis: Any, grid: ChoiceGrid) -> None:
    kinds = groups(grid)
    for place, name in enumerate(dict.fromkeys(kinds)):
        rows = [r for r, kind in enumerate(kinds) if kind == name]
        axis.scatter(
            grid.cost[rows],
            grid.score[rows],
            s=7,
            alpha=0.45,
            color=COLORS[place],
            label=name,
            linewidths=0,
        )
    front_places = tuple(np.array(grid.front).T) if grid.front else (np.array([], int),) * 2
    axis.plot(
        grid.cost[front_places],
        grid.score[front_places],
        color="black",
        linewidth=1,
        drawstyle="steps-post",
        label="front",
    )
    rings = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.5}
    axis.scatter(
        grid.cost[grid.tied],
        grid.score[grid.tied],
        s=16,
        label="not told from the best" + (" within the budget" if grid.budget else ""),
        **rings,
    )
    for at, marker, name in ((grid.today, TODAY, "today"), (grid.chosen, CHOSEN, "chosen")):
        if at is not None:
            words = f"{name}: {place_words(grid, at)}"
            look = {"markerfacecolor": "white", "markeredgecolor": "black"}
            axis.plot(
                grid.cost[at],
                grid.score[at],
                marker,
                markersize=7,
                label=escape_math(words),
                **look,
            )
    if grid.budget is not None:
        axis.axvline(
            grid.budget, color="black", linewidth=0.8, linestyle=(0, (3, 2)), label="budget"
        )
    plain_log_axis(axis)
    style_axis(axis, escape_math(f"{grid.unit} by cost"), x="cost per text, × today's computation")
    low, high = axis.get_xlim()
    axis.set_xticks([tick for tick in _TICKS if low <= tick <= high])
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=7)
