"""The benchmark of penalties in training: its probe, its statistics over seeds, and one tiny run of
each arm."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import interventions_table
import numpy as np
import pytest
import train_interventions as bench


def data_file(folder: Path) -> Path:
    """A data file of the shape that `--prepare` writes, with made-up texts."""
    rng = np.random.default_rng(0)
    words = ["good", "dull", "film", "story", "actor", "scene", "long", "short"]

    def text() -> str:
        return " ".join(rng.choice(words, 45))

    rows = [{"text": text(), "label": i % 2} for i in range(80)]
    tasks: dict[str, Any] = {
        name: {"train": rows[:40], "test": rows[40:]} for name in bench.CLASSIFICATION
    }
    texts = [text() for _ in range(6)]
    pairs = [
        {"sentence1": a, "sentence2": b, "score": float(rng.random())}
        for a in texts
        for b in texts
        if a < b
    ]
    tasks[bench.SCORED_PAIRS] = {"train": [], "test": pairs}
    everything = json.dumps({"tasks": tasks, "prompts": [text() for _ in range(12)]}).encode()
    stream = rng.integers(4, 4096, 4000).astype(np.uint16).view(np.uint8).reshape(-1, 2).T
    file = folder / "data.npz"
    np.savez_compressed(
        file, train=stream, held_out=stream, texts=np.frombuffer(everything, dtype=np.uint8)
    )
    return file


@pytest.mark.slow
def test_every_arm_runs_and_is_written(tmp_path: Path) -> None:
    arms = ["none", "compress", "decorrelate"]
    bench.main(
        [
            "--smoke",
            "--data",
            str(data_file(tmp_path)),
            "--out",
            str(tmp_path / "out"),
            "--arms",
            *arms,
        ]
    )
    runs = json.loads((tmp_path / "out/runs.json").read_text(encoding="utf-8"))
    assert len(runs) == 2 * 2 * 3
    assert {run["objective"] for run in runs} == {"ar", "mlm"}
    assert all(len(values) == 13 for run in runs for values in run["layers"].values())
    with (tmp_path / "out/summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["arm"] for row in rows} == set(arms)
    assert {row["seeds"] for row in rows} == {"2"}
    compress = next(
        r
        for r in rows
        if (r["objective"], r["arm"], r["quantity"]) == ("ar", "compress", "middle_entropy")
    )
    assert float(compress["difference"]) < 0
    assert "middle_entropy" in (tmp_path / "out/verdict.txt").read_text(encoding="utf-8")


def test_differences_are_paired_by_seed() -> None:
    def run(arm: str, seed: int, loss: float) -> dict[str, Any]:
        flat = dict.fromkeys(
            [
                "entropy_keep",
                "entropy_drop",
                "dataset_entropy",
                "sink_ratio",
                "found_again",
                bench.SCORED_PAIRS,
            ],
            [1.0] * 13,
        )
        layers = {**flat, **dict.fromkeys(bench.CLASSIFICATION, [0.5] * 13)}
        return {
            "objective": "ar",
            "arm": arm,
            "seed": seed,
            "held_out_loss": loss,
            "layers": layers,
            "valleys": {},
        }

    runs = [run("none", s, 4 + s) for s in range(3)] + [
        run("compress", s, 4 + s + 0.1 + 0.01 * s) for s in range(3)
    ]
    rows = {(row["arm"], row["quantity"]): row for row in interventions_table.summarize(runs)}
    loss = rows["compress", "held_out_loss"]
    assert loss["difference"] == pytest.approx(0.11)
    reach = 4.302653 * 0.01 / math.sqrt(3)  # Student's t with two degrees of freedom
    assert loss["difference_high"] - loss["difference"] == pytest.approx(reach, rel=1e-4)
    assert loss["high"] - loss["mean"] > 1  # between seeds the losses differ by one
    assert math.isnan(rows["none", "held_out_loss"]["difference"])


def test_the_probe_finds_what_is_there_and_nothing_in_noise() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    x = rng.standard_normal((600, 10))
    assert 0.2 < bench.probe(x[:300], labels[:300], x[300:], labels[300:]) < 0.46
    x[np.arange(600), labels] += 4
    assert bench.probe(x[:300], labels[:300], x[300:], labels[300:]) > 0.97


def test_a_text_is_found_by_its_copy() -> None:
    unit = bench._unit(np.random.default_rng(0).standard_normal((5, 8)))
    assert bench.found_again(unit, unit) == 1.0
    assert bench.found_again(unit, unit[[1, 0, 2, 3, 4]]) < 1.0


def test_the_base_arms_come_first_and_a_further_arm_is_run_whole() -> None:
    first, second = bench.groups(["none", "compress", "spread", "decorrelate"], 3)
    assert len(first) == 18
    assert {job.arm for job in second} == {"decorrelate"}
    assert len(second) == 6
