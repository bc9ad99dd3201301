"""`compare`: several runs of one kind beside each other, as a table, a figure and a notebook's
view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Figure
from layerscope.core.runs import load_run, view
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL
from layerscope.core.tables import pivot
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.report.contents import read
from layerscope.report.notices import notices
from layerscope.report.sources import Chart, Curves, Line, Scores

KINDS = ("profile", "evaluation", "probe")


@dataclass
class Comparison:
    """What `layerscope.compare` returns.

    `table` is tidy: run, layer, depth, series, value and its interval. A series is a metric of
    profiles, a task and readout of evaluations, or a probe. `notes` names the conventions in which
    the runs differ; values of such runs are not comparable.
    """

    runs: list[Any]
    labels: list[str]
    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The kind of all runs."""
        return str(self.runs[0].kind)

    def wide(self, series: str | None = None) -> pd.DataFrame:
        """A table with a column per run and a row per layer (or per depth of the first run, if the
        numbers of blocks differ).

        At other depths a run's value is interpolated linearly between its two nearest layers.
        Without `series`, every series has a column for each run.
        """
        known = list(dict.fromkeys(self.table["series"]))
        if series is not None and series not in known:
            raise UnknownNameError("series of this comparison", series, known)
        rows = self.table if series is None else self.table[self.table["series"] == series]
        same = self.table.groupby("run")["layer"].max().nunique() == 1
        columns = "run" if series is not None else ["series", "run"]
        wide = (
            pivot(rows, columns)
            if same
            else pivot(_at_depths_of(rows, self.labels[0]), columns, index="depth")
        )
        order = (
            self.labels
            if series is not None
            else [(name, label) for name in known for label in self.labels]
        )
        return wide[[column for column in order if column in wide.columns]]

    def plot(self, metrics: Sequence[str] | None = None, **options: Any) -> Figure:
        """All runs on the same axes (profiles and probes)."""
        if self.kind == "profile":
            return view("profile", "plot")(self.runs, metrics, **options)
        if self.kind == "probe":
            return view("probe", "plot")(self.runs, labels=self.labels, **options)
        raise LayerscopeError(
            f"runs of kind {self.kind} have no figure of their own. `layerscope.write_report` shows them."
        )

    def charts(self) -> list[Chart]:
        """One chart per series, a line per run."""
        out = []
        for series, rows in self.table.groupby("series", sort=False):
            parts = [
                (label, rows[rows["run"] == label].sort_values("layer")) for label in self.labels
            ]
            lines = [Line.of(label, part) for label, part in parts if len(part)]
            out.append(Chart(str(series).replace("_", " "), lines))
        return out

    def _repr_html_(self) -> str:
        from layerscope.report.notebook import comparison_html

        return comparison_html(self.labels, self.charts(), self.wide(), self.notes)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.runs)} runs ({self.kind}): {', '.join(self.labels)}>"


def compare(
    *runs: Any, metrics: Sequence[str] | None = None, labels: Sequence[str] | None = None
) -> Comparison:
    """Compare profiles, evaluations or probes side by side: runs or their folders, all of one kind.

    `metrics` limits profiles to some metrics. `labels` names the runs; by default they have the
    names of their models.

        both = layerscope.compare("runs/step1000", "runs/step2000")
        both.wide("prompt_entropy"); both.plot(); both.notes
    """
    opened = [load_run(run) if isinstance(run, str | Path) else run for run in runs]
    if len(opened) < 2:
        raise LayerscopeError(f"compare takes at least two runs; given: {len(opened)}.")
    kinds = list(dict.fromkeys(str(getattr(run, "kind", type(run).__name__)) for run in opened))
    if len(kinds) > 1 or kinds[0] not in KINDS:
        raise LayerscopeError(
            f"compare takes runs of one kind: {', '.join(KINDS)}; given: {', '.join(kinds)}. "
            "`layerscope.write_report` shows runs of any kind."
        )
    if labels is not None and len(labels) != len(opened):
        raise LayerscopeError(
            f"there are {len(opened)} runs and {len(labels)} labels. Give one label per run."
        )
    names = list(labels) if labels is not None else _labels(opened)
    rows = pd.concat(
        [_rows(run).assign(run=name) for run, name in zip(opened, names, strict=True)],
        ignore_index=True,
    )
    if metrics is not None:
        for name in metrics:
            if name not in set(rows["series"]):
                raise UnknownNameError("metric in these runs", name, set(rows["series"]))
        rows = rows[rows["series"].isin(metrics)]
    columns = ["run", "layer", "depth", "series", "value", *INTERVAL]
    return Comparison(opened, names, rows[columns].reset_index(drop=True), _notes(opened, names))


def _labels(runs: Sequence[Any]) -> list[str]:
    """The models' names; where two are the same, with the name of the folder or a number."""
    names = [str(run.name) for run in runs]
    out = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        twin = names.count(name) > 1
        out.append(f"{name} ({Path(run.path).name if run.path else place + 1})" if twin else name)
    return (
        out
        if len(set(out)) == len(out)
        else [f"{name} ({place})" for place, name in enumerate(names, 1)]
    )


def _rows(run: Any) -> pd.DataFrame:
    if run.kind == "profile":
        rows = whole_layers(run.table[run.table["normalization"] == "raw"])
        dropped = rows["sink"] == "drop"
        return rows.assign(
            series=rows["metric"].where(~dropped, rows["metric"] + " (sink dropped)")
        )
    if run.kind == "probe":
        return run.table[run.table["metric"] == "top1"].assign(series=lambda table: table["probe"])
    source = read(run)
    assert isinstance(source, Scores)
    several = len(source.readouts) > 1
    rows = source.table
    series = rows["task"] + (", " + rows["readout"] if several else "")
    # an interval of a score is one of its gain over the last layer, which is another quantity
    return rows.assign(
        series=series,
        value=100 * rows["score"],
        depth=rows["layer"] / source.n_blocks,
        **dict.fromkeys(INTERVAL, np.nan),
    )


def _notes(runs: Sequence[Any], names: Sequence[str]) -> list[str]:
    sources: list[Any] = [read(run) for run in runs]
    for source, name in zip(sources, names, strict=True):
        source.label = name
    curves = [one for one in sources if isinstance(one, Curves)]
    scores = [one for one in sources if isinstance(one, Scores)]
    return [notice.text for notice in notices(curves, scores) if notice.about.startswith("these ")]


def _at_depths_of(rows: pd.DataFrame, first: str) -> pd.DataFrame:
    depths = np.sort(rows.loc[rows["run"] == first, "depth"].unique())
    parts = []
    for (run, series), part in rows.groupby(["run", "series"], sort=False):
        part = part.dropna(subset=["value"]).sort_values("depth")
        if len(part):
            value = np.interp(depths, part["depth"].to_numpy(float), part["value"].to_numpy(float))
            parts.append(
                pd.DataFrame({"run": run, "series": series, "depth": depths, "value": value})
            )
    return pd.concat(parts, ignore_index=True)
