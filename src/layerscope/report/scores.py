"""Evaluations and probes, as people see them: curves over layers on the page and in figures, the
best layers in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from rich.markup import escape

from layerscope.core.charts import Chart, Figure, Line
from layerscope.core.readout import DEFAULT_READOUT, describe_readout, readout_names
from layerscope.core.sites import layer_ranges
from layerscope.core.statistics import INTERVAL
from layerscope.report.charts import plot_charts
from layerscope.report.profile import choice_of
from layerscope.report.section import Section
from layerscope.report.words import (
    MEAN,
    PICKED,
    PROBES_SAY,
    number,
    numeric_table,
    percent,
    probe_sentence,
    sparkline,
)
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.probing.run import ProbeRun

_MOST = 12  # readouts in the terminal
BEST_LAYERS = "Best layer of each task"


def evaluation_section(run: Evaluation) -> Section:
    """Return an evaluation with the mean by layer and the best layer of each task."""
    rows = score_rows(run)
    tasks = [task for task in rows["task"].unique() if task != MEAN]
    manifest = run.manifest
    conventions = manifest["conventions"]
    limits = [task.get("limit") for task in manifest.get("tasks", {}).values()]
    facts: dict[str, object] = {
        "kind": "evaluation",
        "tasks": ", ".join(tasks) if len(tasks) <= 6 else f"{len(tasks)} tasks",
        "longest text": f"{conventions['max_length']} tokens",
        "length of vectors": "1" if conventions.get("unit_length") else "as they come",
        "part of each task": f"{limits[0]} items" if any(limits) else "all of it",
        "seed": conventions.get("seed"),
        "precision": manifest["model"].get("dtype"),
        "layerscope": manifest.get("layerscope"),
    }
    evaluation = Section.of(
        run,
        f"{run.name}: {len(tasks)} tasks × {rows['readout'].nunique()} readouts, every layer",
        [PICKED],
        tables={BEST_LAYERS: best_layers(rows)},
        inline=[BEST_LAYERS],
        facts=facts,
        warnings=[*map(str, manifest["warnings"]), *_failures(run)],
        blocks=int(manifest["model"]["n_blocks"]),
        choice=choice_of(run),
        rows=rows,
    )
    evaluation.charts = [score_chart([evaluation], main=True)]
    return evaluation


def _failures(run: Evaluation) -> list[str]:
    """Return what could not be scored, in a line for each task."""
    undefined = [str(text) for text in run.manifest["undefined"]]
    lines = [f"undefined: {text}" for text in undefined[:3]]
    if len(undefined) > len(lines):
        lines.append(f"undefined: {len(undefined) - len(lines)} more, in manifest.json")
    failed = [f"{task['task']} could not be scored: {task['reason']}" for task in run.failed]
    return lines + failed


def score_rows(run: Evaluation) -> pd.DataFrame:
    """Return scores and gains over the last layer in points, by task, readout and layer.

    Rows of the mean over tasks come first if there are several tasks. A task's name has its subset
    and split where they tell tasks apart.
    """
    keys = ["task", "split", "subset", "readout", "layer"]
    scores = run.scores.assign(readout=readout_names(run.scores))
    gains = run.gains.assign(readout=readout_names(run.gains))
    gains = gains[[*keys, "gain", *INTERVAL, "tied_best"]]
    rows = scores[[*keys, "score"]].merge(gains, on=keys, how="left")
    has_subset = ~rows["subset"].isin(["default", ""])
    names = rows["task"].where(~has_subset, rows["task"] + " (" + rows["subset"] + ")")
    has_splits = rows.groupby(names)["split"].transform("nunique") > 1
    rows["task"] = names.where(~has_splits, names + ", " + rows["split"])
    rows["tied"] = [tied is True or tied == 1 for tied in rows["tied_best"]]
    rows = rows[["task", "readout", "layer", "score", "gain", *INTERVAL, "tied"]]
    for name in ("score", "gain", *INTERVAL):
        rows[name] = 100 * rows[name].astype(float)
    if rows["task"].nunique() == 1:
        return rows
    # a layer that is undefined for a task has no mean
    means = rows.groupby(["readout", "layer"], sort=False)["score"].agg(
        lambda values: values.mean(skipna=False)
    )
    mean = means.reset_index().assign(task=MEAN, tied=False)
    last = mean.sort_values("layer").groupby("readout")["score"].last()
    mean["gain"] = mean["score"] - mean["readout"].map(last)
    return pd.concat([mean, rows], ignore_index=True)


def best_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the best layer of each task under each readout, in points."""
    best = []
    tasks = rows[(rows["task"] != MEAN) & rows["score"].notna()]
    for (readout, task), curve in tasks.groupby(["readout", "task"], sort=False):
        layers = curve.sort_values("layer")
        top = layers.iloc[int(layers["score"].argmax())]
        points = [round(float(top[name]), 1) for name in ("gain", *INTERVAL)]
        tied = ", ".join(layer_ranges(layers.loc[layers["tied"], "layer"].astype(int).tolist()))
        scores = [round(float(layers["score"].iloc[-1]), 2), round(float(top["score"]), 2)]
        best.append([task, readout, *scores, int(top["layer"]), *points, tied])
    head = ["task", "readout", "last", "best", "layer", "gain", *INTERVAL, "tied layers"]
    return pd.DataFrame(best, columns=head)


def score_chart(sections: Sequence[Section], main: bool = False) -> Chart:
    """Return scores by layer, a line per readout, the default one first.

    A switch of the page shows one task; with `main` there is the mean alone.
    """
    several = len(sections) > 1
    lines = []
    for run in sections:
        rows = run.rows
        if main:
            rows = rows[rows["task"] == rows["task"].iloc[0]]
        curves = list(rows.groupby(["task", "readout"], sort=False))
        for (task, readout), curve in sorted(
            curves, key=lambda item: item[0][1] != DEFAULT_READOUT
        ):
            name = str(readout) if main else describe_readout(str(readout))
            if several:
                name = f"{run.label} · {name}" if rows["readout"].nunique() > 1 else run.label
            values = list(curve["score"])
            tags = {"task": str(task)}
            lines.append(Line(name, list(curve["layer"]), values, blocks=run.blocks, tags=tags))
    title = "Score by layer"
    if main:
        title = f"{sections[0].model}: {sections[0].rows['task'].iloc[0]}"
    return Chart(title, lines, "main score × 100")


def plot_scores(run: Evaluation) -> Figure:
    """Draw the mean score by layer, one line per readout."""
    evaluation = evaluation_section(run)
    return plot_charts(evaluation.charts, evaluation.title)


def print_evaluation(run: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation for a person: the best layer of each task, and the mean over tasks at
    every layer under each readout. Scores are MTEB's main scores × 100."""
    console = console or Console()
    evaluation = evaluation_section(run)
    counts = run.manifest["counts"]
    console.print(
        f"\n[bold]{escape(evaluation.title)}[/] · {counts['texts']} distinct texts, "
        f"{counts['encoded']} encoded now"
    )
    names = ["task", "readout", "last", "best", "layer", "gain", "tied layers"]
    best = evaluation.tables[BEST_LAYERS]
    if len(best):
        best = best.loc[best.groupby("task", sort=False)["best"].idxmax()]
    table = numeric_table(*names, words=["task", "readout", "tied layers"])
    for row in best[names].itertuples(index=False):
        table.add_row(*(escape(str(value)) for value in row))
    table.caption = PICKED
    console.print(table)
    rows = evaluation.rows
    main = rows[rows["task"] == rows["task"].iloc[0]].dropna(subset=["readout"])
    curves = {name: curve.sort_values("layer") for name, curve in main.groupby("readout")}
    highest = {name: curve["score"].max() for name, curve in curves.items()}
    table = numeric_table(MEAN, "layer 0 → last", "best", "last", words=[MEAN])
    for name in sorted(curves, key=lambda name: -highest[name])[:_MOST]:
        curve = curves[name]
        if curve["score"].notna().any():
            top = curve["layer"][curve["score"].idxmax()]
            line = sparkline(curve["score"], 31 if console.width >= 100 else 24)
            last = number(float(curve["score"].iloc[-1]))
            table.add_row(escape(str(name)), line, f"{highest[name]:.2f} @ {top}", last)
    console.print(table)
    print_notes(console, evaluation.warnings)


def probe_section(run: ProbeRun) -> Section:
    """Return accuracy by layer: a chart with a line per probe, and what the validation
    items choose."""
    manifest = run.manifest
    counts = manifest["counts"]
    summaries = run.summary()["probes"]
    blocks = manifest["model"]["n_blocks"]
    lines = []
    for probe in run.probes:
        chosen = summaries[probe]["chosen_layer"]
        note = (chosen, f"chosen: layer {chosen}")
        curve = run.curve(probe)
        lines.append(Line.of(_title(probe), curve, scale=100, blocks=blocks, note=note))
    charts = [Chart("top-1 accuracy", lines, "%", PROBES_SAY)]
    items = (
        f"{counts['train']} to train, {counts['validation']} to choose, {counts['test']} to judge"
    )
    facts = {
        "kind": "probe",
        "final norm": manifest["conventions"]["final_norm"],
        "data": f"{manifest['data']['name']}, {counts['classes']} classes",
        "items": items,
        "seed": manifest["conventions"]["seed"],
        "precision": manifest["model"].get("dtype"),
        "layerscope": manifest.get("layerscope"),
    }
    words = [
        f"{_title(probe).capitalize()}: {probe_sentence(summaries[probe])}" for probe in run.probes
    ]
    return Section.of(
        run,
        f"Probes of {run.name} on {manifest['data']['name']}",
        words,
        charts=charts,
        tables={"Accuracy by layer": run.table},
        facts=facts,
    )


def plot_probes(run: ProbeRun, *, x: str = "depth") -> Figure:
    """Return a chart with a line per probe and its 95 % band."""
    probes = probe_section(run)
    return plot_charts(probes.charts, f"{probes.title}: {probes.facts['items']}", x=x)


def print_probes(run: ProbeRun, console: Console | None = None) -> None:
    """Print probes for a person: top-1 accuracy by layer, and what the validation items choose."""
    console = console or Console()
    probes = probe_section(run)
    console.print(f"\n[bold]{escape(probes.title)}[/]: {probes.facts['items']}, 95 % intervals")
    table = numeric_table("layer", *run.probes)
    for layer, at_layer in run.table.groupby("layer"):
        by_probe = at_layer.set_index("probe").loc[run.probes]
        cells = [
            f"{percent(row['value'])} "
            f"[dim]{percent(row[INTERVAL[0]])}–{percent(row[INTERVAL[1]])}[/]"
            f"{'*' if row['tied_best'] else ' '}"
            for _, row in by_probe.iterrows()
        ]
        table.add_row(str(layer), *cells)
    table.caption = "* cannot be told from the best layer"
    console.print(table)
    for sentence in probes.words:
        console.print(sentence, highlight=False)
    print_notes(console, probes.warnings)


def _title(probe: str) -> str:
    return "nearest neighbors" if probe == "knn" else f"{probe} probe"
