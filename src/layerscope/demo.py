"""`make demo`: profile two real models at every layer and write figures to open."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from layerscope.errors import LayerscopeError
from layerscope.profiling import Run, profile
from layerscope.report.figures import plot_profiles, save_figure
from layerscope.report.terminal import print_run

CORPUS = "lee"


def demo(out: Path, limit: int | None = None, max_length: int = 128) -> list[Path]:
    """Profile the two catalogue models on the default corpus; returns the figures written."""
    console = Console()

    def one(model: str, final_norm: str, metrics: list[str] | None = None) -> Run:
        folder = out / f"{model}-{final_norm}"
        texts = f"{limit or 'all'} texts of {CORPUS}, up to {max_length} tokens"
        console.print(f"\n[bold]{model}[/], final_norm={final_norm}: every layer on {texts}")
        options = {"metrics": metrics, "final_norm": final_norm, "limit": limit, "max_length": max_length}
        return profile(model, CORPUS, out=folder, **options)  # type: ignore[arg-type]

    applied = one("smollm2-135m", "applied")
    print_run(applied, console)
    small = one("minilm-l6", "applied")
    print_run(small, console)
    # the sink shows in raw states only: one more pass, without the views
    raw = one("smollm2-135m", "raw", ["prompt_entropy", "curvature", "dataset_entropy", "sink_ratio", "sink_first"])
    print_run(raw, console)
    sink = plot_profiles([raw, applied], ["prompt_entropy", "curvature", "sink_ratio"], x="layer", columns=3)
    return [
        save_figure(plot_profiles([applied, small]), out / "every-metric.png"),
        save_figure(sink, out / "the-sink.png"),
    ]


def main() -> None:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(description="Profile two real models at every layer and write figures to open.")
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--max-length", type=int, default=128)
    given = parser.parse_args()
    start = time.perf_counter()
    try:
        figures = demo(given.out, given.limit, given.max_length)
    except LayerscopeError as error:
        raise SystemExit(f"layerscope: {error}") from None
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Open:")
    for figure in figures:
        print(f"  {figure.resolve()}")
    print(f"Tables: {given.out.resolve()}/*/profile.csv, with every convention in manifest.json beside them")


if __name__ == "__main__":
    main()
