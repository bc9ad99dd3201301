"""Improvements on the page: what was chosen from what and why, neighbors before and after, and the
best candidates."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.improving.words import page_words, score_lines
from layerscope.report.choosing import grid_of
from layerscope.report.sources import Block, Section, of_run

_SHOWN, _ENDS = 20, 5
_NEIGHBORS = "Five of the texts, drawn at random, with their nearest neighbors"


def from_improvement(run: Any) -> Block:
    """The choice first, then five of the texts with their nearest neighbors today and now."""
    tables, better = {}, not run.evidence.kept_default
    neighbors = _NEIGHBORS
    if better and len(run.neighbors):
        tables[neighbors] = neighbors_side_by_side(run.neighbors)
    about = about_tables(run.about()) if len(run.neighbors) and run.has_about else {}
    tables |= about
    if len(run.table):
        tables[f"The best {_SHOWN} layers and readouts"] = run.table.head(_SHOWN)
    facts = {
        "kind": "improve",
        "texts": run.manifest["texts"]["name"],
        "layerscope": run.manifest.get("layerscope"),
    }
    lines = dict(score_lines(run))
    facts |= {name: value for name, value in lines.items() if name != "judged"}
    details = [
        f"{name.capitalize()}: {lines[name]}."
        for name in ("cost per text", "fitted on", "centered on")
        if name in lines
    ]
    return Block(
        "improve",
        f"{'A better readout' if better else 'No better readout was found'}: {run.name}",
        run.model,
        [run.choice.reason, *details],
        tables=tables,
        facts=facts,
        **{**of_run(run), "warnings": [str(warning) for warning in run.warnings]},
        choice=run.choice,
        lead=page_words(run),
        grid=grid_of(run),
        inline=[neighbors, *about],
        private=[neighbors, *about],
    )


def neighbors_side_by_side(neighbors: pd.DataFrame) -> pd.DataFrame:
    """One row per text and rank: its neighbor today and its neighbor now."""
    wide = neighbors.pivot_table(
        index=["text", "rank"], columns="which", values="neighbor", aggfunc="first", sort=False
    )
    table = wide.reset_index().rename(columns={"before": "nearest today", "after": "nearest now"})
    return table[["text", "rank", "nearest today", "nearest now"]]


def about_tables(about: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What the texts are about: clusters in the chosen reading with where their texts were, and the
    ends of the list."""
    rows = []
    for name, some in about.groupby("cluster", sort=False):
        today, count = next(iter(some["cluster_today"].value_counts().items()))
        rows.append(
            {
                "cluster": name,
                "texts": len(some),
                "today most are in": today,
                "share": count / len(some),
            }
        )
    ends = pd.concat([about.head(_ENDS), about.tail(_ENDS)[::-1]])[
        ["text", "nearest", "cosine", "cosine_today"]
    ]
    return {
        "What the texts are about, by their telling words": pd.DataFrame(rows).sort_values(
            "texts", ascending=False
        ),
        "Outliers, and pairs nearest to being duplicates": ends.rename(
            columns={"cosine_today": "cosine today"}
        ),
    }


SECTION = Section("improve", from_improvement)
