"""The atlas in the terminal: what it holds, one model, several models, and the paper's items with their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from layerscope.atlas.overlay import Overlay
    from layerscope.atlas.reproduce.base import Item, Row

_COLOURS = {"supported": "green", "not supported": "red", "cannot be checked": "yellow"}


def _table(*headings: str, words: Sequence[str] = ()) -> Table:
    """Numbers to the right and whole; `words` name the columns that may fold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for heading in headings:
        left = heading in words or heading in ("metric", "verdict")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading not in words, overflow="fold")
    return table


def print_models(models: pd.DataFrame, console: Console | None = None) -> None:
    """What the atlas covers."""
    console = console or Console()
    table = _table("model", "layers", "tasks", "all", "MTEB", "wikitext", "imagenet", "probe", words=["model"])
    columns = ["layers", "tasks", "tasks_everywhere", "mteb_datasets", "wikitext", "imagenet", "probe_layers"]
    for row in models.itertuples():
        cells = [getattr(row, column) for column in columns]
        table.add_row(str(row.model), *("–" if not (cell == cell and cell) else str(cell) for cell in map(_known, cells)))
    console.print(table)
    console.print(
        "layers: states, embeddings included · tasks: with an MTEB score, and at all layers · MTEB: its datasets with metrics · "
        "wikitext, imagenet: metrics there · probe: single layers with an image probe",
        style="dim",
    )


def _known(value: Any) -> Any:
    import pandas as pd

    return 0 if pd.isna(value) else int(value)


def print_model(found: dict[str, Any], console: Console | None = None) -> None:
    """One model: its mean score, its tasks, its metrics."""
    from layerscope.report.terminal.profile import number, sparkline  # brings torch: the list of models does without

    console = console or Console()
    console.print(f"\n[bold]{escape(found['model'])}[/]  published results, {found['convention']} convention, scores × 100")
    scores, metrics = found["scores"], found["metrics"]
    if scores is None:
        console.print("No scores were published.")
    else:
        tasks = _table("task", "last", "best", "@ layer", "gain", "scored layers", words=["task"])
        for row in scores["tasks"]:
            values = [f"{row['last']:.2f}", f"{row['best']:.2f}", str(row["layer"]), f"{row['gain']:+.1f}", str(row["layers"])]
            tasks.add_row(escape(row["task"]), *values)
        console.print(tasks)
        mean, layers = scores["mean"], scores["layers"]
        if mean:
            at = max(range(len(mean)), key=lambda i: mean[i])
            console.print(
                f"mean over {scores['mean_over']} tasks  {sparkline(mean)}  best {mean[at]:.2f} @ {layers[at]}, "
                f"last {mean[-1]:.2f} (layers {layers[0]}–{layers[-1]}, final norm at every layer)"
            )
    probe = found.get("probe")
    if probe is not None:
        best, last = probe["best"], probe["last"]
        console.print(
            f"attention probe, ImageNet-100  {sparkline(probe['top1'])}  best {best['top1']:.1f} % @ {best['layer']}, last "
            f"probed {last['top1']:.1f} % @ {last['layer']} (layers {probe['layers'][0]}–{last['layer']} of 24)"
        )
    if metrics is None:
        console.print("No metrics were published on wikitext or imagenet.")
        return
    table = _table("metric", "first → last", "lowest", "highest", "last", words=["metric"])
    for row in metrics["curves"]:
        low, high = row["lowest"], row["highest"]
        cells = [f"{number(low['value'])} @ {low['layer']}", f"{number(high['value'])} @ {high['layer']}", number(row["last"])]
        table.add_row(row["metric"], sparkline(row["values"]), *cells)
    console.print(table)
    # image models return their states without the final norm, at the last layer too
    norm = "states without the final norm" if metrics["dataset"] == "imagenet" else "final norm at the last layer only"
    console.print(f"metrics on {metrics['dataset']} {escape(metrics['split'])}: {norm}", style="dim")


def print_comparison(rows: Sequence[dict[str, Any]], convention: str, console: Console | None = None) -> None:
    """Several models on the tasks they share."""
    console = console or Console()
    table = _table("model", "best", "@ layer", "depth", "last", "gain", "entropy valley", words=["model"])
    for row in rows:
        scored = row["best"] is not None
        cells = (
            [f"{row['best']:.2f}", str(row["layer"]), f"{row['depth']:.2f}", f"{row['last']:.2f}", f"{row['gain']:+.2f}"]
            if scored
            else ["–"] * 5
        )
        deep = row["valley"]
        cells.append("–" if deep is None else f"{deep:.2f} @ {row['valley_layer']}" if deep > 0 else "none")
        table.add_row(escape(row["model"]), *cells)
    console.print(table)
    tasks = next((row["tasks"] for row in rows if row["tasks"]), None)
    shared = f"mean over the {tasks} tasks all scored models share" if tasks else "no shared tasks with scores"
    console.print(
        f"{shared}, {convention} convention, × 100 · valley: nats of prompt entropy below the lower shoulder", style="dim"
    )


def print_overlay(overlay: Overlay, console: Console | None = None) -> None:
    """What of a run was laid over the atlas, and what was not."""
    console = console or Console()
    kept = sorted(set(overlay.metrics["metric"])) + sorted(set(overlay.scores["task"]))
    console.print(f"\nyour run [bold]{escape(overlay.name)}[/]: laid over: {escape(', '.join(kept)) or 'nothing'}")
    for name, reasons in overlay.differs.items():
        console.print(f"  [yellow]left out[/] {escape(name)}: {escape('; '.join(reasons))}")
    for note in overlay.notes:
        console.print(f"  [dim]note {escape(note)}[/]")
    if overlay.differs and not overlay.metrics.size and not overlay.scores.size:
        console.print(
            "  `layerscope profile MODEL --preset released` makes metrics that compare with the published ones.", style="dim"
        )


def print_item(item: Item, rows: Sequence[Row], console: Console | None = None) -> None:
    """One table or figure of the paper: printed and recomputed, with verdicts."""
    console = console or Console()
    console.print(f"\n[bold]{escape(item.title)}[/]\nThe paper: {escape(item.claim)}\n")
    for convention in dict.fromkeys(row.convention for row in rows):
        mine = [row for row in rows if row.convention == convention]
        console.print(f"convention {escape(convention)}")
        wide = console.width >= 120
        words = ["model", "what", *(["note"] if wide else [])]
        table = _table("model", "what", "printed", "ours", "tasks", "verdict", *(["note"] if wide else []), words=words)
        for row in mine:
            note = f"[dim]{escape(row.note)}[/]"
            printed = "–" if row.printed is None else f"{row.printed:.1f}"
            ours = "–" if row.ours is None else f"{row.ours:.2f}" if abs(row.ours) < 1000 else f"{row.ours:.0f}"
            verdict = f"[{_COLOURS[row.verdict]}]{row.verdict}[/]"
            what = escape(row.column) if wide else f"{escape(row.column)}\n{note}"  # in a narrow terminal the note stands below
            cells = [escape(row.model), what, printed, ours, str(row.tasks or "–"), verdict]
            table.add_row(*cells, *([note] if wide else []))
        console.print(table)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in _COLOURS}
    console.print(" · ".join(f"{n} {verdict}" for verdict, n in counts.items() if n))
