"""`layerscope metrics`: what each metric means."""

from __future__ import annotations

from rich.console import Console

from layerscope.cli.app import app

_LEVELS = {
    "tokens": "from the tokens of each prompt",
    "pooled": "from the pooled vectors of all prompts",
    "views": "from pooled vectors of augmented views",
}


@app.command("metrics")
def metrics_command() -> None:
    """List the metrics: what a higher value means, their bounds and their source."""
    from layerscope.metrics import metrics

    console = Console(highlight=False)
    for name, metric in metrics().items():
        info = metric.info
        mark = " · one of the paper's seven" if info.core else ""
        console.print(f"[bold]{name}[/]  {info.unit}, {info.bounds_text} · {_LEVELS[info.level]}{mark}")
        console.print(f"    higher: {info.higher_means}. [dim]{info.citation}[/]")
