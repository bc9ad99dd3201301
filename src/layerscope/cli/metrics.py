"""`layerscope metrics`: what each metric means."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from layerscope.cli.app import app


@app.command("metrics")
def metrics_command() -> None:
    """List the metrics: what a higher value means, their bounds and their source."""
    from layerscope.metrics import metrics

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("metric", "from", "unit", "a higher value means", "bounds", "source"):
        table.add_column(heading, overflow="fold")
    for name, metric in metrics().items():
        i = metric.info
        table.add_row(name + (" *" if i.core else ""), i.level, i.unit, i.higher_means, i.bounds_text, i.citation)
    console = Console()
    console.print(table)
    console.print("* one of the paper's seven. from: tokens of each prompt, pooled vectors of all prompts, or augmented views.")
