"""Improvements on the page and in figures: every candidate by its score and by its cost, neighbors
before and after, and for encoders what each block is worth."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerscope.blocks.words import facts, headline
from layerscope.core.charts import Chart, Figure, Line
from layerscope.core.readout import DEFAULT_READOUT, row_words
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.improving.result import front
from layerscope.improving.words import page_words, score_lines
from layerscope.report.charts import COLORS, INK, altair, plot_charts
from layerscope.report.section import Drawing, Section
from layerscope.report.words import COSTS_SAY, NEIGHBORS, READOUTS_SAY

if TYPE_CHECKING:
    from layerscope.blocks.result import FasterEncoder
    from layerscope.improving.result import Improved

_SHOWN = 20
_COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_KINDS = {"plain text": COLORS[6], "prompts": COLORS[0], "heads": COLORS[1]}


def improve_section(run: Improved) -> Section:
    """Return the choice, then five of the texts with their nearest neighbors before and now."""
    is_better = not run.evidence.kept_default
    tables = {}
    if is_better and len(run.neighbors):
        tables[NEIGHBORS] = neighbors_side_by_side(run.neighbors)
    texts = list(tables)
    if len(run.table):
        tables[f"The best {_SHOWN} layers and readouts"] = run.table.head(_SHOWN)
    lines = dict(score_lines(run))
    details = [
        f"{name.capitalize()}: {lines[name]}."
        for name in ("cost per text", "fitted on", "centered on")
        if name in lines
    ]
    title = "A better readout" if is_better else "No better readout was found"
    return Section.of(
        run,
        f"{title}: {run.name}",
        [run.choice.reason, *details],
        model=run.model,
        warnings=[str(warning) for warning in run.warnings],
        tables=tables,
        facts={
            "kind": "improve",
            "texts": run.manifest["texts"]["name"],
            "layerscope": run.manifest.get("layerscope"),
            **{name: value for name, value in lines.items() if name != "judged"},
        },
        choice=run.choice,
        first=True,
        blocks=run.choice.layers,
        lead=page_words(run),
        drawings=_drawings(run),
        inline=texts,
        private=texts,
    )


def neighbors_side_by_side(neighbors: pd.DataFrame) -> pd.DataFrame:
    """Return one row per text and rank: its neighbor before and its neighbor now."""
    wide = neighbors.pivot_table(
        index=["text", "rank"], columns="which", values="neighbor", aggfunc="first", sort=False
    )
    table = wide.reset_index().rename(columns={"before": "nearest before", "after": "nearest now"})
    return table[["text", "rank", "nearest before", "nearest now"]]


def _drawings(run: Improved) -> list[Drawing]:
    """Return the candidates by score and by cost; nothing where none was scored."""
    rows = candidate_rows(run)
    if rows is None:
        return []
    unit = run.evidence.score_name
    heat = partial(_heat_chart, rows, unit)
    costs = partial(_cost_chart, rows, unit, _budget_of(run))
    says = f"Color: {unit}. {READOUTS_SAY}"
    height = 18 * rows["readout"].nunique()
    return [
        Drawing("Every layer under every readout", says, height, heat),
        Drawing("What it costs", COSTS_SAY, 300, costs),
    ]


def plot_choice(run: Improved) -> Figure:
    """Return the picture of an improvement: both charts side by side."""
    rows = candidate_rows(run)
    if rows is None:
        raise LayerscopeError(
            f"{run.name}: no layers and readouts were compared, so that there is nothing to draw."
        )
    library = altair()
    unit = run.evidence.score_name
    heat = _heat_chart(rows, unit).properties(width=max(220, 14 * rows["layer"].nunique()))
    costs = _cost_chart(rows, unit, _budget_of(run)).properties(width=360, height=300)
    pair = library.hconcat(heat, costs, spacing=30).resolve_scale(color="independent")
    title = library.TitleParams(run.name, anchor="start", offset=14)
    pair = pair.configure_legend(labelLimit=0).configure_axis(labelLimit=300)
    return pair.configure_view(stroke=None).properties(title=title)


def candidate_rows(run: Improved) -> pd.DataFrame | None:
    """Return a row per candidate of an improvement that has a score; None if nothing was scored.

    `order` counts readouts from the one with the highest score.
    """
    table = run.table[np.isfinite(run.table["score"].astype(float))]
    if not len(table):
        return None
    best = front(run.table)
    on_front = set(zip(best["readout"], best["layer"], strict=True))
    highest = table.groupby("readout")["score"].max().sort_values(ascending=False, kind="stable")
    names = {str(readout): _label(str(readout)) for readout in highest.index}
    baseline = (DEFAULT_READOUT, int(run.table["layer"].max()))
    places = list(zip(table["readout"], table["layer"], strict=True))
    roles = {baseline: "baseline", (_chosen_readout(run), run.choice.layer): "chosen"}
    is_open = table["eligible"].eq(True)
    labels = table["readout"].map(lambda name: names[name][0])
    rows = pd.DataFrame(
        {
            "order": table["readout"].map(highest.index.get_loc),
            "readout": labels.where(is_open, labels + " *"),
            "kind": table["readout"].map(lambda name: names[name][1]),
            "layer": table["layer"],
            "score": table["score"],
            "low": table[INTERVAL[0]],
            "high": table[INTERVAL[1]],
            "cost": table["cost"],
            "tied": table["tied"].eq(True),
            "open": is_open,
            "front": [place in on_front for place in places],
            "place": [roles.get(place, "") for place in places],
        }
    )
    return rows.sort_values(["order", "layer"], ignore_index=True)


def _label(readout: str) -> tuple[str, str]:
    """Return the words for a readout, and its kind."""
    text, manner = row_words(readout)
    if manner == "head":
        return f"head on {text}", "heads"
    kind = "plain text" if text == "plain text" else "prompts"
    return ", ".join(filter(None, (text, manner))), kind


def _chosen_readout(run: Improved) -> str:
    """Return the chosen readout as the table names it: of a search, both sides' readouts."""
    if "chosen" in run.table:
        names = run.table["readout"][run.table["chosen"].astype(bool)]
        if len(names):
            return str(names.iloc[0])
    return str(run.choice.readout)


def _budget_of(run: Improved) -> float | None:
    """Return the largest cost that was allowed."""
    budget: float | None = (run.manifest.get("config") or {}).get("budget")
    return budget


def _heat_chart(rows: pd.DataFrame, unit: str) -> Figure:
    """Return every layer under every readout by its score."""
    library = altair()
    order = library.EncodingSortField("order", op="min")
    axis = library.Axis(labelAngle=0, labelOverlap=True)
    across = library.X("layer:O", title="layer", axis=axis)
    down = library.Y("readout:N", sort=order, title=None)
    legend = library.Legend(orient="top", gradientLength=160)
    scale = library.Scale(scheme="blues")
    base = library.Chart(rows).encode(x=across, y=down, tooltip=_tooltips())
    cells = base.mark_rect().encode(
        color=library.Color("score:Q", title=unit, scale=scale, legend=legend),
        opacity=library.condition("datum.open", library.value(1), library.value(0.45)),
    )
    ties = base.transform_filter("datum.tied").mark_point(
        filled=True, size=24, fill=INK, stroke="white", strokeWidth=1, opacity=1
    )
    legend = library.Legend(title=None, orient="bottom", symbolSize=90)
    title = library.TitleParams("Every layer under every readout", anchor="start")
    return library.layer(cells, ties, _points(rows, across, down, legend)).properties(
        height=18 * rows["readout"].nunique(), title=title
    )


def _cost_chart(rows: pd.DataFrame, unit: str, budget: float | None) -> Figure:
    """Return the score of every candidate by its cost."""
    library = altair()
    across = library.X(
        "cost:Q",
        title="cost per text, × the baseline's computation",
        scale=library.Scale(type="log", nice=False, padding=10),
        axis=library.Axis(values=_COSTS, format="~g"),
    )
    up = library.Y("score:Q", title=unit, scale=library.Scale(zero=False))
    kinds = [name for name in _KINDS if name in set(rows["kind"])]
    colors = library.Scale(domain=kinds, range=[_KINDS[name] for name in kinds])
    legend = library.Legend(title=None, orient="bottom", symbolOpacity=1)
    base = library.Chart(rows).encode(x=across, y=up, tooltip=_tooltips())
    points = base.mark_point(filled=True, size=22).encode(
        color=library.Color("kind:N", scale=colors, legend=legend),
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


def _tooltips() -> list[Any]:
    """Return the columns that are shown where a candidate is pointed at."""
    library = altair()
    numbers = {"score": ".3f", "low": ".3f", "high": ".3f", "cost": ".2f"}
    shown = [library.Tooltip(f"{name}:Q", format=digits) for name, digits in numbers.items()]
    return ["readout:N", "layer:O", *shown, "place:N"]


def _points(rows: pd.DataFrame, across: Any, up: Any, legend: Any) -> Figure:
    """Return the marks of the baseline and of the choice."""
    library = altair()
    shapes = library.Scale(domain=["baseline", "chosen"], range=["diamond", "circle"])
    marked = library.Chart(rows[rows["place"] != ""]).encode(x=across, y=up, tooltip=_tooltips())
    point = marked.mark_point(filled=True, fill="white", stroke=INK, size=90, opacity=1)
    return point.encode(shape=library.Shape("place:N", scale=shapes, legend=legend))


def encoder_section(run: FasterEncoder) -> Section:
    """Return the headline and its facts, two charts, and the tables."""
    lines = dict(facts(run.manifest))
    names = {"count": "blocks", "blocks": "which", "ci_low": "from", "ci_high": "to"}
    table = run.front.rename(columns=names)
    table = table.round(dict.fromkeys(("agreement", "from", "to", "neighbors"), 3))
    table["chosen"] = ["chosen" if chosen else "" for chosen in table["chosen"]]
    return Section.of(
        run,
        f"A faster encoder: {run.name}",
        [f"{name[:1].upper()}{name[1:]}: {value}." for name, value in lines.items()],
        model=run.model,
        charts=_encoder_charts(run),
        tables={"Candidates": table, "What each removal leaves": run.removals},
        facts={"kind": "encoder", "texts": run.manifest["texts"]["name"], **lines},
        lead=[f"{headline(run.manifest)}."],
        inline=["Candidates"],
    )


def _encoder_charts(run: FasterEncoder) -> list[Chart]:
    """Return what the removal of each single block costs, and the agreement by the blocks kept."""
    charts = []
    single = run.removals[run.removals["step"] == 1].sort_values("block")
    if len(single):
        numbers = [str(block) for block in single["block"]]
        says = (
            "The correlation of all similarities with the whole encoder's plus the mean cosine to "
            "its vectors, 2 for the whole, after a quick refit."
        )
        charts.append(
            Chart(
                "What removing one block costs",
                [Line("block", numbers, list(2 - single["closeness"]))],
                "closeness lost, of 2",
                says,
                x="block that is removed",
                bars=True,
            )
        )
    whole = run.front.iloc[:1].assign(ci_low=1.0, ci_high=1.0)
    lines = []
    for name in ("as they are", "refitted"):
        rows = run.front.iloc[1:]
        rows = rows[rows["weights"] == name].sort_values("count")
        if len(rows):
            lines.append(Line.of(name, pd.concat([rows, whole]), "agreement", x="count"))
    if lines:
        says = "On texts that fitted nothing; bands are 95 %, texts resampled."
        title = "Agreement with the whole encoder"
        charts.append(Chart(title, lines, "correlation of similarities", says, x="blocks kept"))
    return charts


def plot_faster(run: FasterEncoder) -> Figure:
    """Return both charts side by side."""
    title, _, subtitle = headline(run.manifest).partition(": ")
    return plot_charts(
        _encoder_charts(run), f"{title}, on {run.manifest['texts']['name']}", subtitle
    )
