"""The published results and their correlations as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from layerscope.core.statistics import Interval
from layerscope.report.words import curve_ends, number, numeric_table, sparkline
from layerscope.terminal import Console, print_notes
from layerscope_paper.correlation.charts import MEASURE_NAMES
from layerscope_paper.correlation.maths import RELATED

if TYPE_CHECKING:
    import pandas as pd

    from layerscope_paper.atlas.overlay import Overlay
    from layerscope_paper.atlas.reproduce.base import Item, Row
    from layerscope_paper.correlation import Correlations, ModelCorrelations, Tables


_COLORS = {
    "supported": "green",
    "not supported": "red",
    "not shown": "yellow",
    "cannot be checked": "yellow",
}
_MODEL_COLUMNS = {
    "layers": "layers",
    "tasks": "tasks",
    "tasks_everywhere": "all",
    "mteb_datasets": "MTEB",
    "wikitext": "wikitext",
    "imagenet": "imagenet",
    "probe_layers": "probe",
}


def print_models(models: pd.DataFrame) -> None:
    """Print a line per published model: what was published of it."""
    console = Console()
    table = numeric_table("model", *_MODEL_COLUMNS.values(), words=["model"])
    columns = models[["model", *_MODEL_COLUMNS]].fillna({"layers": 0})
    for name, *counts in columns.itertuples(index=False):
        table.add_row(str(name), *(str(count) if count else "–" for count in counts))
    console.print(table)
    console.print(
        "layers: states, embeddings included · tasks: with an MTEB score, and at all layers · "
        "MTEB: its datasets with metrics · wikitext, imagenet: metrics there · probe: single "
        "layers with an image probe",
        style="dim",
    )


def print_model(summary: dict[str, Any], overlays: Sequence[Overlay] = ()) -> None:
    """Print one model's mean score, tasks and metrics; then runs beside it."""
    console = Console()
    console.print(
        f"\n[bold]{escape(summary['model'])}[/]  published results, {summary['convention']} "
        "convention, scores × 100"
    )
    _print_scores(summary["scores"], console)
    probe = summary.get("probe")
    if probe is not None:
        best = probe["best"]
        last = probe["last"]
        console.print(
            f"attention probe, ImageNet-100  {sparkline(probe['top1'])}  best {best['top1']:.1f} % "
            f"@ {best['layer']}, last probed {last['top1']:.1f} % @ {last['layer']} (layers "
            f"{probe['layers'][0]}–{last['layer']} of 24)"
        )
    _print_metrics(summary["metrics"], console)
    for overlay in overlays:
        print_overlay(overlay, console)


def _print_scores(scores: dict[str, Any] | None, console: Console) -> None:
    """Print the scores of every task, and their mean by layer."""
    if scores is None:
        console.print("No scores were published.")
        return
    table = numeric_table(
        "task", "last", "best", "@ layer", "gain", "scored layers", words=["task"]
    )
    for row in scores["tasks"]:
        table.add_row(
            escape(row["task"]),
            f"{row['last']:.2f}",
            f"{row['best']:.2f}",
            str(row["layer"]),
            f"{row['gain']:+.1f}",
            str(row["layers"]),
        )
    console.print(table)
    mean = scores["mean"]
    layers = scores["layers"]
    if mean:
        best = max(range(len(mean)), key=lambda i: mean[i])
        console.print(
            f"mean over {scores['mean_over']} tasks  {sparkline(mean)}  best {mean[best]:.2f} @ "
            f"{layers[best]}, last {mean[-1]:.2f} (layers {layers[0]}–{layers[-1]}, final norm at "
            "every layer)"
        )


def _print_metrics(metrics: dict[str, Any] | None, console: Console) -> None:
    """Print every metric's curve over the layers."""
    if metrics is None:
        console.print("No metrics were published on wikitext or imagenet.")
        return
    table = numeric_table("metric", "first → last", "lowest", "highest", "last", words=["metric"])
    for row in metrics["curves"]:
        ends = curve_ends(row["layers"], row["values"])
        table.add_row(row["metric"], sparkline(row["values"]), *ends, number(row["last"]))
    console.print(table)
    # image models return their states without the final norm, at the last layer too
    norm = "final norm at the last layer only"
    if metrics["dataset"] == "imagenet":
        norm = "states without the final norm"
    console.print(
        f"metrics on {metrics['dataset']} {escape(metrics['split'])}: {norm}", style="dim"
    )


def print_comparison(
    rows: Sequence[dict[str, Any]], convention: str, overlays: Sequence[Overlay] = ()
) -> None:
    """Print several models on the tasks they share; then runs beside them."""
    console = Console()
    table = numeric_table(
        "model", "best", "@ layer", "depth", "last", "gain", "entropy valley", words=["model"]
    )
    for row in rows:
        cells = ["–"] * 5
        if row["best"] is not None:
            cells = [
                f"{row['best']:.2f}",
                str(row["layer"]),
                f"{row['depth']:.2f}",
                f"{row['last']:.2f}",
                f"{row['gain']:+.2f}",
            ]
        table.add_row(escape(row["model"]), *cells, _valley_cell(row))
    console.print(table)
    tasks = next((row["tasks"] for row in rows if row["tasks"]), None)
    population = "no shared tasks with scores"
    if tasks:
        population = f"mean over the {tasks} tasks all scored models share"
    console.print(
        f"{population}, {convention} convention, × 100 · valley: nats of prompt entropy below the "
        "lower shoulder",
        style="dim",
    )
    for overlay in overlays:
        print_overlay(overlay, console)


def _valley_cell(row: dict[str, Any]) -> str:
    """Return the depth of a model's entropy valley and its layer."""
    depth = row["valley"]
    if depth is None:
        return "–"
    return f"{depth:.2f} @ {row['valley_layer']}" if depth > 0 else "none"


def print_overlay(overlay: Overlay, console: Console) -> None:
    """Print which values of a run compare with the published ones, their differences, and which
    values do not compare."""
    names = sorted(set(overlay.metrics["metric"])) + sorted(set(overlay.scores["task"]))
    console.print(
        f"\nyour run [bold]{escape(overlay.name)}[/]: compared: "
        f"{escape(', '.join(names)) or 'nothing'}"
    )
    for (model, name), rows in overlay.cells.groupby(["model", "name"], sort=False):
        differences = rows["difference"]
        largest = rows.iloc[int(differences.abs().to_numpy(float).argmax())]
        console.print(
            f"  {escape(str(name))} beside {escape(str(model))}: {len(rows)} layers, mean "
            f"difference {differences.mean():+.4g}, largest {largest['difference']:+.4g} at layer "
            f"{largest['layer']}"
        )
    for name, reasons in overlay.differs.items():
        console.print(f"  [yellow]left out[/] {escape(name)}: {escape('; '.join(reasons))}")
    for note in overlay.notes:
        console.print(f"  [dim]note {escape(note)}[/]")
    if overlay.differs and not overlay.metrics.size and not overlay.scores.size:
        console.print(
            "  a profile with the preset `released` (docs/conventions.md) makes metrics that "
            "compare with the published ones.",
            style="dim",
        )


def print_item(item: Item, rows: Sequence[Row]) -> None:
    """Print one table or figure of the paper: its claim, then its numbers with verdicts."""
    Console().print(f"\n[bold]{escape(item.title)}[/]\nThe paper: {escape(item.claim)}\n")
    print_rows(rows)


def print_rows(rows: Sequence[Row]) -> None:
    """Print the paper's numbers beside ours by convention, and how many have each verdict."""
    console = Console()
    # on a narrow terminal a note is below its column's name instead
    notes = ["note"] if console.width >= 120 else []
    for convention in dict.fromkeys(row.convention for row in rows):
        console.print(f"convention {escape(convention)}")
        columns = ["model", "what", "printed", "ours", "tasks", "verdict", *notes]
        table = numeric_table(*columns, words=["model", "what", *notes])
        for row in (row for row in rows if row.convention == convention):
            note = f"[dim]{escape(row.note)}[/]"
            cells = [
                escape(row.model),
                escape(row.column) + ("" if notes else f"\n{note}"),
                "–" if row.printed is None else f"{row.printed:.1f}",
                _number(row.ours),
                str(row.tasks or "–"),
                f"[{_COLORS[row.verdict]}]{row.verdict}[/]",
            ]
            table.add_row(*cells, *([note] if notes else []))
        console.print(table)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in _COLORS}
    console.print(" · ".join(f"{n} {verdict}" for verdict, n in counts.items() if n))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def print_correlations(correlations: Correlations, tables: Tables) -> None:
    """Print a table per measure: layer means with interval, chance and p, and the single tasks."""
    console = Console()
    words = []
    for name, value in tables.facts.items():
        if isinstance(value, dict):
            value = " / ".join(map(str, value.values()))
        words += [f"{name} {value}"] if name != "model" else []
    model = escape(str(tables.facts["model"]))
    console.print(f"\n[bold]{model}[/]  {escape(' · '.join(words))}")
    within = correlations.within()
    for measure in dict.fromkeys(correlations.layers["measure"]):
        rows = correlations.layers[correlations.layers["measure"] == measure]
        rows = rows.sort_values("value", key=abs, ascending=False)
        console.print(
            f"\n{MEASURE_NAMES[measure]}  one point per layer ({int(rows['layers'].max())} layers, "
            f"mean over up to {int(rows['tasks'].max())} tasks)"
        )
        table = numeric_table(
            "metric",
            "value [95 %]",
            "by chance",
            "p, all\nmetrics",
            "tasks",
            "over\ntasks",
            "beyond",
        )
        for row in rows.to_dict(orient="records"):
            table.add_row(*_cells(row, within, correlations.over_tasks, measure))
        console.print(table)
        console.print(escape(_without_last(rows)))
        power = correlations.facts.get("power", {}).get(measure, {})
        unclear = rows.loc[rows["p_adjusted"] >= 0.05, "metric"]
        powers = [power[metric] for metric in unclear if metric in power]
        if powers:
            console.print(
                f"where p ≥ 0.05, a relation is not shown; one of r = {RELATED} would be found in "
                f"{min(powers):.0%} to {max(powers):.0%} of cases, by metric"
            )
    console.print(
        "by chance: mean and 95 % limit of unrelated curves that keep the scores' bend and last "
        "layer and are as smooth (of the size, for ρ and τ), by random phase or permuted "
        "increments, whichever reaches further; p: the larger of the two, corrected for all "
        "metrics by their common draws · tasks: median over single tasks; over tasks: p of their "
        "mean, all tasks drawn together; beyond: share of them with adjusted p < 0.05",
        style="dim",
    )
    print_notes(console, tables.notes)
    if correlations.undefined:
        pair = correlations.undefined[0]
        example = f"{pair['metric']} with {pair['task']}: {pair['reason']}"
        console.print(
            f"[yellow]undefined[/] {len(correlations.undefined)} pairs, such as {escape(example)}"
        )


def print_over_models(result: ModelCorrelations, families: dict[str, str]) -> None:
    """Print a table per measure: the test over families of models; then what is undefined."""
    console = Console()
    console.print(
        f"\n[bold]{len(families)} models of {len(set(families.values()))} families[/]  "
        f"{escape(', '.join(families))}"
    )
    for measure in dict.fromkeys(result.table["measure"]):
        rows = result.table[result.table["measure"] == measure].sort_values("p")
        console.print(f"\n{MEASURE_NAMES[measure]}  mean over tasks, then over families")
        table = numeric_table("metric", "value", "z", "t", "p", "Holm p", "same sign", "families")
        for row in rows.to_dict(orient="records"):
            table.add_row(
                escape(str(row["metric"])),
                f"{row['value']:.2f}",
                f"{row['z']:+.2f}",
                f"{row['t']:+.2f}",
                _p(row["p"]),
                _p(row["p_adjusted"]),
                f"{row['same_sign']:.0%}",
                str(row["families"]),
            )
        console.print(table)
    console.print(
        "z: where a model's mean correlation over tasks lies among unrelated curves as smooth, as "
        "a normal score (of two nulls the one nearer to 0) · t, p: whether its mean over families "
        "differs from 0; for distance correlation, exceeds it · same sign: share of models",
        style="dim",
    )
    for test in result.undefined[:1]:
        console.print(
            f"[yellow]undefined[/] {len(result.undefined)} tests, such as "
            f"{escape(test['metric'])}: {escape(test['reason'])}"
        )


def _without_last(table: Any) -> str:
    """Return the changes without the last layer: values by more than 0.1, or p across 0.05."""
    rows = table.dropna(subset=["value_without_last"])
    if rows.empty:
        return "without the last layer there are too few layers"
    moves = (rows["value_without_last"] - rows["value"]).abs()
    other_verdict = (rows["p_adjusted"] < 0.05) != (rows["p_without_last"] < 0.05)
    changed = rows[(moves > 0.1) | other_verdict]
    if changed.empty:
        return (
            f"without the last layer no value moves by more than {moves.max():.2f}, and no verdict "
            "changes"
        )
    changes = ", ".join(
        f"{row.metric} {row.value:.2f} → {row.value_without_last:.2f} (p {row.p_adjusted:.2f} → "
        f"{row.p_without_last:.2f})"
        for row in changed.itertuples()
    )
    return f"without the last layer: {changes}"


def _cells(row: dict[Any, Any], within: Any, over_tasks: Any, measure: str) -> list[str]:
    """Return the cells of one metric: over layers, and over single tasks where there are any."""
    cells = [
        escape(str(row["metric"])),
        escape(f"{row['value']:.2f}{Interval.from_row(row).ends(2, signed=False)}"),
        f"{row['null_mean']:.2f}<{row['null_95']:.2f}",
        _p(row["p_adjusted"]),
    ]
    single, pooled = (
        table[(table["metric"] == row["metric"]) & (table["measure"] == measure)]
        for table in (within, over_tasks)
    )
    if single.empty:
        return [*cells, "–", "–", "–"]
    p = "–" if pooled.empty else _p(float(pooled["p_adjusted"].iloc[0]))
    spread = single.iloc[0]
    return [*cells, f"{spread['median']:.2f}", p, f"{spread['beyond']:.0%}"]


def _p(value: float) -> str:
    return f"{value:.4f}" if value < 0.01 else f"{value:.2f}"
