"""Damage to any file of any run: the same numbers, or a clear refusal; and the same command again mends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope import evaluate, load_run
from layerscope.errors import LayerscopeError
from layerscope.probing import probe
from layerscope.profiling import job, profile
from layerscope.store.embeddings import EmbeddingStore
from layerscope.studies.run import study
from tests.evaluation.support import write_tasks
from tests.faults.damage import damage, files_of
from tests.tiny import tiny_model

COUNT = int(os.environ.get("LAYERSCOPE_FAULTS", "0"))
SEED = int(os.environ.get("LAYERSCOPE_FAULTS_SEED", "0"))
QUICK = {"profile": 4, "evaluation": 4, "probe": 2, "study": 2}
TEXTS = [f"text number {i}, about {'this and that ' * (i % 3)}and the rest" for i in range(8)]

pytestmark = pytest.mark.filterwarnings("ignore")
Tables = dict[str, pd.DataFrame]
Command = Callable[[Path], Any]


def _profile(folder: Path) -> Any:
    metrics = ["prompt_entropy", "dataset_entropy"]
    return profile(tiny_model("llama"), TEXTS, out=folder / "run", metrics=metrics, max_length=24, progress=False)


def _evaluate(folder: Path) -> Any:
    data = write_tasks(folder.parent / "tasks", pairs=10, texts=12)
    given: dict[str, Any] = {"data_dir": data, "layers": [0, 3], "scoring_workers": 0, "progress": False}
    return evaluate(tiny_model("llama"), ["Pairs"], out=folder / "run", store=folder / "store", readouts=["plain/mean"], **given)


def _probe(folder: Path) -> Any:
    labels = ["xy"[i % 2] for i in range(40)]
    texts = [f"{label * 3} item {i}" for i, label in enumerate(labels)]
    settings: dict[str, Any] = {"epochs": 2, "trial": 1, "learning_rates": (1e-2,), "progress": False}
    return probe(tiny_model("llama"), texts=texts, labels=labels, heads=["mean"], out=folder / "run", **settings)


def _study(folder: Path) -> Any:
    return study("sublayers", tiny_model("llama"), data=TEXTS[:4], out=folder / "run", max_length=24, progress=False)


COMMANDS: dict[str, Command] = {"profile": _profile, "evaluation": _evaluate, "probe": _probe, "study": _study}


def same(a: Tables, b: Tables) -> bool:
    try:
        for name, table in a.items():
            pd.testing.assert_frame_equal(table, b[name], rtol=1e-6, atol=1e-7)
    except (AssertionError, KeyError):
        return False
    return True


def tables(folder: Path) -> Tables:
    """Everything that a run's folder says in numbers."""
    run = load_run(folder / "run")
    found = dict(run.tables())
    for part, by_place in (run.items() if run.kind == "evaluation" else {}).items():  # type: ignore[attr-defined]
        for place, items in by_place.items():
            found[f"{part} {place}"] = pd.DataFrame({"values": items.values})
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_damage_to_a_finished_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "choose_shard_size", lambda *_: 3)
    run, whole = COMMANDS[name], tmp_path / "whole"
    run(whole)
    wanted = tables(whole)
    rng = np.random.default_rng([SEED, sorted(COMMANDS).index(name)])
    noticed = 0
    for number in range(COUNT or QUICK[name]):
        case = tmp_path / str(number)
        shutil.copytree(whole, case)
        files = files_of(case)
        file = files[int(rng.integers(len(files)))]
        done = f"{name} {number}: {file.relative_to(case)}, {damage(file, rng)}"
        try:
            assert same(tables(case), wanted), f"silently wrong: {done}"
        except LayerscopeError:
            noticed += 1
        try:
            run(case)
        except LayerscopeError:
            mended = file.name in ("manifest.json", "space.json")  # whose folder it is can no longer be told
        else:
            mended = same(tables(case), wanted)
        assert mended, f"not mended by a second run: {done}"
        shutil.rmtree(case)
    assert COUNT == 0 or noticed


@pytest.mark.parametrize("count", [40])
def test_damage_to_a_store(count: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    keys = [bytes([i]) * 32 for i in range(6)]
    vectors = rng.standard_normal((3, 6, 5)).astype(np.float32)
    space = EmbeddingStore(tmp_path / "whole").space({"model": "m"})
    for part in (slice(0, 4), slice(4, 6)):
        space.add(keys[part], {"mean": vectors[:, part]}, ["a", "b", "c"], {"tokens": np.arange(6)[part]})
    for number in range(max(count, COUNT)):
        case = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", case)
        files = files_of(case)
        file = files[int(rng.integers(len(files)))]
        done = f"{number}: {file.name}, {damage(file, rng)}"
        try:
            opened = EmbeddingStore(case).space({"model": "m"})
            there = opened.has(keys, ["mean"], ["a", "b", "c"], ["tokens"])
            some = [key for key, is_there in zip(keys, there, strict=True) if is_there]
            for i, site in enumerate("abc"):
                read = opened.read(some, "mean", site) if some else np.empty((0, 5))
                assert np.array_equal(read, vectors[i][there]), f"silently wrong: {done}"
            if some:
                assert np.array_equal(opened.read_numbers(some, "tokens"), np.flatnonzero(there)), f"silently wrong: {done}"
        except LayerscopeError:
            assert file.name == "space.json", done
        shutil.rmtree(case)
