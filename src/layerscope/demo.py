"""`make demo`: profile two real models at every layer, score both on a real task, and write a report to open."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from layerscope.errors import LayerscopeError
from layerscope.evaluation.job import evaluate
from layerscope.profiling import Run, profile
from layerscope.report import write_report
from layerscope.report.drawing import save_figure
from layerscope.report.sections.evaluation import print_evaluation
from layerscope.report.sections.profile import plot_profiles, print_run

CORPUS = "lee"


TEXTS = 200  # enough for every metric (LiDAR needs prompts × views above the width), and a few minutes on two cores
# Human similarity judgements of 50 news texts: a real score in seconds
TASK = "LeeSimilarity"


def demo(out: Path, limit: int | None = TEXTS, max_length: int = 128) -> list[Path]:
    """Profile the two catalogue models on the default corpus, score them; returns the files written, the report last."""
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
    console.print(f"\n[bold]smollm2-135m[/] on {TASK}: every layer against human judgements, three ways of reading a text")
    readouts = ["default", "plain/mean/raw", "one-word/last/raw/keep/corpus"]
    scores = evaluate("smollm2-135m", [TASK], out=out / "smollm2-135m-scores", readouts=readouts)
    print_evaluation(scores, console)
    small_scores = evaluate("minilm-l6", [TASK], out=out / "minilm-l6-scores")
    sink = plot_profiles([raw, applied], ["prompt_entropy", "curvature", "sink_ratio"], x="layer", columns=3)
    return [
        save_figure(plot_profiles([applied, small]), out / "every-metric.png"),
        save_figure(sink, out / "the-sink.png"),
        write_report([applied, raw, small, scores, small_scores], out / "report.html"),
    ]


def main() -> None:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--limit", type=int, default=TEXTS)
    parser.add_argument("--max-length", type=int, default=128)
    given = parser.parse_args()
    start = time.perf_counter()
    try:
        *figures, report = demo(given.out, given.limit, given.max_length)
    except LayerscopeError as error:
        raise SystemExit(f"layerscope: {error}") from None
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    print(f"Tables: {given.out.resolve()}/*/profile.csv and scores.csv, with every convention in manifest.json beside them")
    print(f"Figures: {', '.join(str(figure.resolve()) for figure in figures)}")
    print(f"The report, in any browser: {report.resolve()}")


if __name__ == "__main__":
    main()
