"""Improvements on the page: what was chosen from what and why, neighbors before and after, and the
best candidates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from layerscope.improving.words import page_words, score_lines
from layerscope.report.choice_chart import budget_of, candidate_rows, cost_chart, heat_chart
from layerscope.report.section import Drawing, Section
from layerscope.report.words import ABOUT, COSTS_SAY, NEIGHBORS, OUTLIERS, READOUTS_SAY

if TYPE_CHECKING:
    from layerscope.improving.result import Improved

_SHOWN = 20
_ENDS = 5


def section(run: Improved) -> Section:
    """Return the choice first, then five of the texts with their nearest neighbors today and now."""
    is_better = not run.evidence.kept_default
    texts = {}
    if is_better and len(run.neighbors):
        texts[NEIGHBORS] = neighbors_side_by_side(run.neighbors)
    if len(run.neighbors) and run.has_about:
        texts |= about_tables(run.about())
    tables = dict(texts)
    if len(run.table):
        tables[f"The best {_SHOWN} layers and readouts"] = run.table.head(_SHOWN)
    lines = dict(score_lines(run))
    details = [
        f"{name.capitalize()}: {lines[name]}."
        for name in ("cost per text", "fitted on", "centered on")
        if name in lines
    ]
    facts: dict[str, object] = {"kind": "improve", "texts": run.manifest["texts"]["name"]}
    facts["layerscope"] = run.manifest.get("layerscope")
    facts |= {name: value for name, value in lines.items() if name != "judged"}
    title = "A better readout" if is_better else "No better readout was found"
    return Section.of(
        run,
        f"{title}: {run.name}",
        [run.choice.reason, *details],
        model=run.model,
        warnings=[str(warning) for warning in run.warnings],
        tables=tables,
        facts=facts,
        choice=run.choice,
        first=True,
        blocks=run.choice.layers,
        lead=page_words(run),
        drawings=_drawings(run),
        inline=list(texts),
        private=list(texts),
    )


def _drawings(run: Improved) -> list[Drawing]:
    """Return the candidates by score and by cost; nothing where none was scored."""
    rows = candidate_rows(run)
    if rows is None:
        return []
    unit = run.evidence.score_name
    heat = partial(heat_chart, rows, unit)
    costs = partial(cost_chart, rows, unit, budget_of(run))
    says = f"Color: {unit}. {READOUTS_SAY}"
    height = 18 * rows["readout"].nunique()
    return [
        Drawing("Every layer under every readout", says, height, heat),
        Drawing("What it costs", COSTS_SAY, 300, costs),
    ]


def neighbors_side_by_side(neighbors: pd.DataFrame) -> pd.DataFrame:
    """Return one row per text and rank: its neighbor today and its neighbor now."""
    wide = neighbors.pivot_table(
        index=["text", "rank"], columns="which", values="neighbor", aggfunc="first", sort=False
    )
    table = wide.reset_index().rename(columns={"before": "nearest today", "after": "nearest now"})
    return table[["text", "rank", "nearest today", "nearest now"]]


def about_tables(about: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the clusters in the chosen reading with where their texts were, and the outliers and
    near duplicates."""
    rows = []
    for name, members in about.groupby("cluster", sort=False):
        counts = members["cluster_today"].value_counts()
        share = counts.iloc[0] / len(members)
        rows.append([name, len(members), counts.index[0], share])
    clusters = pd.DataFrame(rows, columns=["cluster", "texts", "today most are in", "share"])
    ends = pd.concat([about.head(_ENDS), about.tail(_ENDS)[::-1]])
    ends = ends[["text", "nearest", "cosine", "cosine_today"]]
    return {
        ABOUT: clusters.sort_values("texts", ascending=False),
        OUTLIERS: ends.rename(columns={"cosine_today": "cosine today"}),
    }
