"""The atlas and its correlations in the terminal: models, comparisons, and the items of the paper
with their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from layerscope.core.statistics import Interval
from layerscope.report.text import curve_ends, number, numeric_table, sparkline
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


def print_models(models: pd.DataFrame) -> None:
    """What the atlas covers."""
    console = Console()
    table = numeric_table(
        "model", "layers", "tasks", "all", "MTEB", "wikitext", "imagenet", "probe", words=["model"]
    )
    columns = [
        "layers",
        "tasks",
        "tasks_everywhere",
        "mteb_datasets",
        "wikitext",
        "imagenet",
        "probe_layers",
    ]
    for name, *counts in models[["model", *columns]].fillna({"layers": 0}).itertuples(index=False):
        table.add_row(str(name), *(str(count) if count else "–" for count in counts))
    console.print(table)
    console.print(
        "layers: states, embeddings included · tasks: with an MTEB score, and at all layers · "
        "MTEB: its datasets with metrics · wikitext, imagenet: metrics there · probe: single "
        "layers with an image probe",
        style="dim",
    )


def print_model(summary: dict[str, Any], overlays: Sequence[Overlay] = ()) -> None:
    """One model: its mean score, its tasks, its metrics; then runs beside it."""
    console = Console()
    console.print(
        f"\n[bold]{escape(summary['model'])}[/]  published results, {summary['convention']} "
        "convention, scores × 100"
    )
    scores = summary["scores"]
    metrics = summary["metrics"]
    if scores is None:
        console.print("No scores were published.")
    else:
        tasks = numeric_table(
            "task", "last", "best", "@ layer", "gain", "scored layers", words=["task"]
        )
        for row in scores["tasks"]:
            values = [
                f"{row['last']:.2f}",
                f"{row['best']:.2f}",
                str(row["layer"]),
                f"{row['gain']:+.1f}",
                str(row["layers"]),
            ]
            tasks.add_row(escape(row["task"]), *values)
        console.print(tasks)
        mean = scores["mean"]
        layers = scores["layers"]
        if mean:
            at = max(range(len(mean)), key=lambda i: mean[i])
            console.print(
                f"mean over {scores['mean_over']} tasks  {sparkline(mean)}  best {mean[at]:.2f} @ "
                f"{layers[at]}, last {mean[-1]:.2f} (layers {layers[0]}–{layers[-1]}, final norm "
                "at every layer)"
            )
    probe = summary.get("probe")
    if probe is not None:
        best = probe["best"]
        last = probe["last"]
        console.print(
            f"attention probe, ImageNet-100  {sparkline(probe['top1'])}  best {best['top1']:.1f} % "
            f"@ {best['layer']}, last probed {last['top1']:.1f} % @ {last['layer']} (layers "
            f"{probe['layers'][0]}–{last['layer']} of 24)"
        )
    if metrics is None:
        console.print("No metrics were published on wikitext or imagenet.")
    else:
        table = numeric_table(
            "metric", "first → last", "lowest", "highest", "last", words=["metric"]
        )
        for row in metrics["curves"]:
            table.add_row(
                row["metric"],
                sparkline(row["values"]),
                *curve_ends(row["layers"], row["values"]),
                number(row["last"]),
            )
        console.print(table)
        # image models return their states without the final norm, at the last layer too
        norm = (
            "states without the final norm"
            if metrics["dataset"] == "imagenet"
            else "final norm at the last layer only"
        )
        console.print(
            f"metrics on {metrics['dataset']} {escape(metrics['split'])}: {norm}", style="dim"
        )
    for overlay in overlays:
        print_overlay(overlay, console)


def print_comparison(
    rows: Sequence[dict[str, Any]], convention: str, overlays: Sequence[Overlay] = ()
) -> None:
    """Several models on the tasks they share; then runs beside them."""
    console = Console()
    table = numeric_table(
        "model", "best", "@ layer", "depth", "last", "gain", "entropy valley", words=["model"]
    )
    for row in rows:
        scored = row["best"] is not None
        cells = (
            [
                f"{row['best']:.2f}",
                str(row["layer"]),
                f"{row['depth']:.2f}",
                f"{row['last']:.2f}",
                f"{row['gain']:+.2f}",
            ]
            if scored
            else ["–"] * 5
        )
        deep = row["valley"]
        cells.append(
            "–" if deep is None else f"{deep:.2f} @ {row['valley_layer']}" if deep > 0 else "none"
        )
        table.add_row(escape(row["model"]), *cells)
    console.print(table)
    tasks = next((row["tasks"] for row in rows if row["tasks"]), None)
    shared = (
        f"mean over the {tasks} tasks all scored models share"
        if tasks
        else "no shared tasks with scores"
    )
    console.print(
        (
            f"{shared}, {convention} convention, × 100 · valley: nats of prompt entropy below the "
            "lower shoulder"
        ),
        style="dim",
    )
    for overlay in overlays:
        print_overlay(overlay, console)


def print_overlay(overlay: Overlay, console: Console) -> None:
    """What of a run was laid over the atlas, how far it is from it, and what was not."""
    names = sorted(set(overlay.metrics["metric"])) + sorted(set(overlay.scores["task"]))
    console.print(
        f"\nyour run [bold]{escape(overlay.name)}[/]: laid over: "
        f"{escape(', '.join(names)) or 'nothing'}"
    )
    for (model, name), rows in overlay.cells.groupby(["model", "name"], sort=False):
        gaps = rows["difference"]
        most = rows.iloc[int(rows["difference"].abs().to_numpy(float).argmax())]
        told = (
            f"{len(rows)} layers, mean difference {gaps.mean():+.4g}, largest "
            f"{most['difference']:+.4g} at layer {most['layer']}"
        )
        console.print(f"  {escape(str(name))} beside {escape(str(model))}: {told}")
    for name, reasons in overlay.differs.items():
        console.print(f"  [yellow]left out[/] {escape(name)}: {escape('; '.join(reasons))}")
    for note in overlay.notes:
        console.print(f"  [dim]note {escape(note)}[/]")
    if overlay.differs and not overlay.metrics.size and not overlay.scores.size:
        console.print(
            (
                "  a profile with the preset `released` (docs/conventions.md) makes metrics that "
                "compare with the published ones."
            ),
            style="dim",
        )


def print_item(item: Item, rows: Sequence[Row]) -> None:
    """One table or figure of the paper: printed and recomputed, with verdicts."""
    console = Console()
    console.print(f"\n[bold]{escape(item.title)}[/]\nThe paper: {escape(item.claim)}\n")
    print_rows(rows)


def print_rows(rows: Sequence[Row]) -> None:
    """Printed and recomputed numbers by convention, and how many have each verdict."""
    console = Console()
    notes = ["note"] if console.width >= 120 else []  # else a note stands below what it is about
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
    """One block per measure: layer means with interval, chance and p; beside them the single
    tasks."""
    console = Console()
    facts = {k: v for k, v in tables.facts.items() if k != "model"}
    shown = " · ".join(
        f"{k} {v}" if not isinstance(v, dict) else f"{k} {' / '.join(map(str, v.values()))}"
        for k, v in facts.items()
    )
    console.print(f"\n[bold]{escape(str(tables.facts['model']))}[/]  {escape(shown)}")
    within = correlations.within()
    for measure in dict.fromkeys(correlations.layers["measure"]):
        mine = correlations.layers[correlations.layers["measure"] == measure].sort_values(
            "value", key=abs, ascending=False
        )
        layers = int(mine["layers"].max())
        most = int(mine["tasks"].max())
        console.print(
            f"\n{MEASURE_NAMES[measure]}  one point per layer ({layers} layers, mean over up to "
            f"{most} tasks)"
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
        for row in mine.to_dict(orient="records"):
            table.add_row(*_cells(row, within, correlations.over_tasks, measure))
        console.print(table)
        console.print(escape(_without_last(mine)))
        power = correlations.facts.get("power", {}).get(measure, {})
        weak = [
            power[name] for name in mine.loc[mine["p_adjusted"] >= 0.05, "metric"] if name in power
        ]
        if weak:
            cases = f"{min(weak):.0%} to {max(weak):.0%} of cases, by metric"
            console.print(
                f"where p ≥ 0.05, a relation is not shown; one of r = {RELATED} would be found in "
                f"{cases}"
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
        one = correlations.undefined[0]
        example = f"{one['metric']} with {one['task']}: {one['reason']}"
        console.print(
            f"[yellow]undefined[/] {len(correlations.undefined)} pairs, such as {escape(example)}"
        )


def print_over_models(found: ModelCorrelations, families: dict[str, str]) -> None:
    """One block per measure: the test over families of models; then what could not be tested."""
    console = Console()
    console.print(
        f"\n[bold]{len(families)} models of {len(set(families.values()))} families[/]  "
        f"{escape(', '.join(families))}"
    )
    for measure in dict.fromkeys(found.table["measure"]):
        mine = found.table[found.table["measure"] == measure].sort_values("p")
        console.print(f"\n{MEASURE_NAMES[measure]}  mean over tasks, then over families")
        table = numeric_table("metric", "value", "z", "t", "p", "Holm p", "same sign", "families")
        for row in mine.to_dict(orient="records"):
            cells = [
                f"{row['value']:.2f}",
                f"{row['z']:+.2f}",
                f"{row['t']:+.2f}",
                _p(row["p"]),
                _p(row["p_adjusted"]),
            ]
            table.add_row(
                escape(str(row["metric"])), *cells, f"{row['same_sign']:.0%}", str(row["families"])
            )
        console.print(table)
    console.print(
        "z: where a model's mean correlation over tasks lies among unrelated curves as smooth, as "
        "a normal score (of two nulls the one nearer to 0) · t, p: whether its mean over families "
        "differs from 0; for distance correlation, exceeds it · same sign: share of models",
        style="dim",
    )
    for one in found.undefined[:1]:
        console.print(
            f"[yellow]undefined[/] {len(found.undefined)} tests, such as {escape(one['metric'])}: "
            f"{escape(one['reason'])}"
        )


def _without_last(table: Any) -> str:
    """What leaving the last layer out changes: values by more than 0.1, or whether p < 0.05."""
    known = table.dropna(subset=["value_without_last"])
    if known.empty:
        return "without the last layer there are too few layers"
    moves = (known["value_without_last"] - known["value"]).abs()
    changed = known[
        (moves > 0.1) | ((known["p_adjusted"] < 0.05) != (known["p_without_last"] < 0.05))
    ]
    if changed.empty:
        return (
            f"without the last layer no value moves by more than {moves.max():.2f}, and no verdict "
            "changes"
        )
    told = (
        "{0.metric} {0.value:.2f} → {0.value_without_last:.2f} (p {0.p_adjusted:.2f} → "
        "{0.p_without_last:.2f})"
    )
    return f"without the last layer: {', '.join(told.format(row) for row in changed.itertuples())}"


def _cells(row: dict[Any, Any], within: Any, over_tasks: Any, measure: str) -> list[str]:
    value = escape(f"{row['value']:.2f}{Interval.from_row(row).ends(2, signed=False)}")
    cells = [
        escape(str(row["metric"])),
        value,
        f"{row['null_mean']:.2f}<{row['null_95']:.2f}",
        _p(row["p_adjusted"]),
    ]
    single = within[(within["metric"] == row["metric"]) & (within["measure"] == measure)]
    if single.empty:
        return [*cells, "–", "–", "–"]
    one = single.iloc[0]
    together = over_tasks[
        (over_tasks["metric"] == row["metric"]) & (over_tasks["measure"] == measure)
    ]
    p = "–" if together.empty else _p(float(together["p_adjusted"].iloc[0]))
    return [*cells, f"{one['median']:.2f}", p, f"{one['beyond']:.0%}"]


def _p(value: float) -> str:
    return f"{value:.4f}" if value < 0.01 else f"{value:.2f}"
