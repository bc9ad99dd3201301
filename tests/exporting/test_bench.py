"""Measuring two folders side by side, each in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.exporting import ExportError
from layerscope.exporting import bench as benching
from layerscope.exporting.bench import Bench, base_of, bench, print_bench
from layerscope.exporting.cutting import cut
from tests.exporting.support import draft_of
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One real measurement; a process of its own takes seconds to start."""
    folder = tmp_path_factory.mktemp("bench") / "cut"
    draft_of(tiny_model("llama"), 1, "plain/mean/applied", folder)
    return bench(folder, [], lengths=[8, 16], texts=4, rounds=1, batch_size=4, threads=1)


@pytest.mark.slow  # quickly: the table, a child that fails, and its memory
def test_everything_is_measured(measured: Bench) -> None:
    [model] = measured.models
    assert (model["name"], model["blocks"]) == ("cut", 1)
    assert model["parameters"] == sum(
        p.numel() for p in cut(tiny_model("llama"), 1, False).parameters()
    )
    assert 0 < model["disk_bytes"] < 200_000
    assert set(model["lengths"]) == {"8", "16"}
    assert all(part["texts_per_s"] > 0 for part in model["lengths"].values())
    assert all(0 < part["p50_ms"] <= part["p95_ms"] for part in model["lengths"].values())
    assert model["peak_bytes"] > model["model_bytes"] > 0
    json.dumps(measured.as_dict())


def test_the_table_says_how_many_times_better(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = {
        length: {"texts_per_s": 100.0, "p50_ms": 10.0, "p95_ms": 12.0} for length in ("8", "16")
    }
    one: dict[str, Any] = {
        "name": "cut", "blocks": 1, "parameters": 20_000, "disk_bytes": 90_000, "lengths": lengths, "peak_bytes": 3_000_000,
        "model_bytes": 80_000,
    }  # fmt: skip
    slow = {length: {"texts_per_s": part["texts_per_s"] / 2, "p50_ms": 3 * part["p50_ms"], "p95_ms": part["p95_ms"]}
            for length, part in one["lengths"].items()}  # fmt: skip
    other = {**one, "name": "whole", "blocks": 3, "lengths": slow}
    both = Bench([one, other], [8, 16], 1, "here")
    ratios = {row[0]: row[3] for row in both.rows()}
    assert ratios["texts/s at 16 tokens"] == "2.00 ×"
    assert ratios["latency p50 at 8 tokens, ms"] == "3.00 ×"
    assert ratios["latency p95 at 8 tokens, ms"] == ratios["parameters, M"] == "1.00 ×"
    assert ratios["blocks"] == "3.00 ×"
    print_bench(both)
    told = capsys.readouterr().out
    assert all(row[0] in told for row in both.rows())


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ({"name": "smollm2-135m", "source": "catalogue"}, "smollm2-135m"),
        ({"name": "org/model", "source": "hub", "revision": "0a1b"}, "org/model@0a1b"),
        ({"name": "org/model@main", "source": "hub", "revision": "0a1b"}, "org/model@main"),
    ],
)
def test_a_folder_knows_its_base(tmp_path: Path, base: dict[str, str], name: str) -> None:
    (tmp_path / benching.MARKER).write_text(json.dumps({"base": base}))
    assert base_of(tmp_path) == name


def test_a_base_that_cannot_be_named_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is not an export of layerscope.*against="):
        base_of(tmp_path)
    (tmp_path / benching.MARKER).write_text(
        json.dumps({"base": {"name": "mine", "source": "folder"}})
    )
    with pytest.raises(
        ExportError, match="was cut from mine, which was given as a folder: name it with against="
    ):
        base_of(tmp_path)


def test_what_cannot_be_loaded_is_said(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('ValueError: no such thing')")
    monkeypatch.setattr(benching.bench_child, "__file__", str(child))
    with pytest.raises(
        ExportError, match="tiny-llama could not be measured: ValueError: no such thing"
    ):
        bench(model_folder, [], lengths=[8])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_the_childs_own_not_that_of_whoever_measures() -> None:
    held = np.ones(60_000_000)  # 480 MB in this process
    code = f"import runpy; print(runpy.run_path({benching.bench_child.__file__!r})['peak_bytes']())"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert 0 < int(told) < held.nbytes / 2
