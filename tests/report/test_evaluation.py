"""An evaluation in the terminal: fits the width, shows gains and ties, and takes names as they
are."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from layerscope import Evaluation
from layerscope.core.sites import layer_ranges
from layerscope.report.scores import print_evaluation

KEYS = ["template", "pooling", "final_norm", "sink", "centering"]
NAME = "org/[bold]model[/]"


def evaluation(readouts: list[str], layers: int = 13) -> Evaluation:
    """A run of two tasks: scores rise to layer 8 and fall again; the last layer of the first
    readout is its reference."""
    scores, gains = [], []
    for task in ("STSBenchmark", "MassiveScenarioClassification"):
        for place, readout in enumerate(readouts):
            parts = dict(zip(KEYS, readout.rsplit("/", 4), strict=True))
            for layer in range(layers):
                score = 0.7 - 0.01 * abs(layer - 8) - 0.05 * place
                if parts["template"] == "one-word" and layer == 0:
                    score = math.nan
                subset = "en" if task.startswith("Massive") else "default"
                place_of = {
                    "task": task,
                    "split": "test",
                    "subset": subset,
                    **parts,
                    "layer": layer,
                    "site": f"block.{layer - 1}",
                }
                scores.append({**place_of, "score": score})
                gain = score - (0.66 - 0.05 * place)
                interval = {"ci_low": gain - 0.012, "ci_high": gain + 0.013}
                over = score - 0.66  # the last layer of the first readout
                default = {
                    "gain_over_default": over,
                    "default_ci_low": over - 0.02,
                    "default_ci_high": over + 0.03,
                }
                if math.isfinite(score):
                    tied = abs(layer - 8) < 2
                    gains.append(
                        {
                            **place_of,
                            "score": score,
                            "gain": gain,
                            **interval,
                            **default,
                            "tied_best": tied,
                        }
                    )
    manifest = {
        "model": {"name": NAME, "n_blocks": layers - 1},
        "counts": {"texts": 2552, "encoded": 17},
        "conventions": {"max_length": 256},
        "undefined": [f"task {i}: a readout gives every text the same vector" for i in range(5)],
        "warnings": ["3 of 2552 texts were cut to 256 tokens under template '[red]'."],
        "failed": [{"task": "STS[x]", "reason": "DataError: " + "long " * 30}],
    }
    return Evaluation(pd.DataFrame(scores), pd.DataFrame(gains), manifest, Path("run"))


def printed(run: Evaluation, width: int) -> str:
    stream = io.StringIO()
    print_evaluation(run, Console(file=stream, width=width))
    return stream.getvalue()


ONE = ["plain/mean/applied/keep/none"]
MANY = [*ONE, "one-word/last/raw/keep/corpus", "Say [bold]/this: {text}/wmean/raw/drop/corpus"]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("readouts", [ONE, MANY], ids=["one readout", "several"])
def test_fits_and_shows_gains_and_ties(readouts: list[str], width: int) -> None:
    text = printed(evaluation(readouts), width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert NAME in words
    assert "2552 distinct texts, 17 encoded now" in words
    for number in ("4.0", "70.0", "66.0", "7–9"):
        assert number in words
    assert "picked on these items" in words
    # the best readout of each of two tasks, and the line of its mean
    assert words.count("plain/mean/appli") == 3
    assert words.count("undefined: task") == 3
    assert "undefined: 2 more, in manifest.json" in words
    assert "note 3 of 2552 texts were cut to 256 tokens under template '[red]'." in words
    assert "STS[x] could not be scored: DataError" in words


def test_the_mean_over_tasks_best_readout_first() -> None:
    lines = printed(evaluation(MANY), 160).splitlines()
    curves = [line for line in lines if "@ 8" in line]
    assert [line.split("  ")[0].strip() for line in curves] == [
        "plain/mean/applied/keep/none",
        "one-word/last/raw/keep/corpus",
        "Say [bold]/this: {text}/wmean/raw/drop/corpus",
    ]
    assert "70.00 @ 8" in curves[0]
    assert "65.00 @ 8" in curves[1]
    assert curves[1].rstrip().endswith("61.0")
    assert all("█" in line for line in curves)


def test_curves_of_deep_models_fit_a_narrow_terminal() -> None:
    (line,) = [
        line
        for line in printed(evaluation(ONE, layers=49), 80).splitlines()
        if line.strip().startswith("plain/")
    ]
    assert "plain/mean/applied/keep/none" in line


def test_a_layer_undefined_for_one_task_has_no_mean() -> None:
    run = evaluation(ONE)
    task = run.scores["task"] == "STSBenchmark"
    run.scores.loc[task & (run.scores["layer"].isin([8, 12])), "score"] = math.nan
    (line,) = [line for line in printed(run, 160).splitlines() if line.strip().startswith("plain/")]
    assert "69.00 @ 7" in line
    assert line.rstrip().endswith("–")
    assert "nan" not in line


def test_no_interval_and_nothing_at_all() -> None:
    run = evaluation(ONE)
    run.gains[["ci_low", "ci_high"]] = math.nan
    assert "nan" not in printed(run, 160)
    run.scores["score"] = math.nan
    run.gains = run.gains.iloc[:0]
    assert "undefined: task 0" in " ".join(printed(run, 80).split())


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([0, 1], "0–1"),
        ([3, 1, 2, 7], "1–3, 7"),
        ([0, 2, 4], "0, 2, 4"),
        ([5, 6, 9, 10, 11], "5–6, 9–11"),
    ],
)
def test_ranges(layers: list[int], text: str) -> None:
    assert ", ".join(layer_ranges(layers)) == text
