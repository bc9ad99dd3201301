"""A cluster gives the numbers of one process, whatever dies on the way: a worker, a node, the
driver."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from layerscope import Profile, evaluate, profile
from layerscope.engines import ModelRecipe, RayEngine
from layerscope.engines.cluster import require_ray
from layerscope.engines.ray import _machines
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.vectors import VectorSpace
from tests.engines.works import Deadly, MapWork, mapped, process_of, stumble, visible_gpus
from tests.evaluation.support import write_tasks
from tests.profiling.support import assert_same_numbers
from tests.ray_cluster import NODE
from tests.tiny import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")  # scikit-learn on tiny classifiers


class Writes:
    """Counts how often a run stores each text, and does something after the first shard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Any = None) -> None:
        self.seen: Counter[bytes] = Counter()
        add = VectorSpace.add

        def noted(space: VectorSpace, shard: Any) -> None:
            add(space, shard)
            is_first = not self.seen
            self.seen.update(shard.keys)
            if then is not None and is_first:
                then()

        monkeypatch.setattr(VectorSpace, "add", noted)

    def assert_each_once(self, prompts: list[str]) -> None:
        assert len(self.seen) == len(set(prompts))
        assert set(self.seen.values()) == {1}


class Bar:
    """Adds up what a progress bar is told."""

    def __init__(self) -> None:
        self.units = 0

    def advance(self, units: int) -> None:
        assert units > 0
        self.units += units


@pytest.mark.slow  # quickly: an item that kills its workers
def test_a_worker_killed_in_the_middle_changes_nothing(
    engine: RayEngine,
    local: Profile,
    model_folder: Path,
    prompts: list[str],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = []

    def kill_a_worker() -> None:
        workers = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "ray::Worker" in " ".join(process.info["cmdline"] or ())
        ]
        killed.append(workers[0].pid)
        workers[0].kill()

    writes = Writes(monkeypatch, kill_a_worker)
    run = profile(model_folder, prompts, engine=engine, **settings)
    assert killed
    writes.assert_each_once(prompts)
    assert run.manifest["environment"]["engine"]["replaced"] >= 1
    assert run.manifest["environment"]["engine"]["workers"] == 2
    assert run.manifest["counts"] == local.manifest["counts"]
    assert_same_numbers(local.table, run.table, 1e-6)


@pytest.mark.slow
def test_a_node_lost_in_the_middle_changes_nothing(
    cluster: Any,
    engine: RayEngine,
    local: Profile,
    prompts: list[str],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # three nodes for three workers; when one is gone, its worker's successor finds no room and the
    # other two go on
    third = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    writes = Writes(monkeypatch, lambda: cluster.remove_node(third, allow_graceful=False))
    run = profile(
        tiny_model(), prompts, engine=engine, **settings
    )  # a model that exists only here is sent to the workers
    writes.assert_each_once(prompts)
    assert_same_numbers(local.table, run.table, 1e-6)
    while len(_machines(require_ray())) > 2:  # until the node is missed: later tests count on two
        time.sleep(0.2)
    time.sleep(1)
    assert capsys.readouterr().out == ""  # Ray tells of the node now, and `--json` prints there


def test_an_evaluation_has_the_same_scores(
    engine: RayEngine, model_folder: Path, tmp_path: Path
) -> None:
    data = write_tasks(tmp_path / "data", pairs=40, texts=60)
    given: dict[str, Any] = {
        "tasks": ["Pairs", "Topics"],
        "data_dir": data,
        "layers": [0, -1],
        "readouts": ["plain/mean", "one-word/last/raw"],
        "scoring_workers": 0,
    }
    here = evaluate(model_folder, out=tmp_path / "here", store=tmp_path / "store-here", **given)
    there = evaluate(
        model_folder, out=tmp_path / "there", store=tmp_path / "store-there", engine=engine, **given
    )
    assert there.manifest["counts"]["encoded"] == here.manifest["counts"]["encoded"] > 0
    assert there.manifest["engine"]["name"] == "ray"
    assert there.manifest["key"] == here.manifest["key"]  # the same run: either resumes the other
    columns = [name for name in here.scores.columns if name != "score"]
    assert here.scores[columns].equals(there.scores[columns])
    assert (here.scores["score"] - there.scores["score"]).abs().max() < 1e-6


def test_a_function_is_mapped_in_order_and_all_progress_is_told(engine: RayEngine) -> None:
    bar = Bar()
    assert mapped(engine, stumble, [0, 1, 2, 5, 6, 7, 8], bar.advance) == [0, 1, 4, 25, 36, 49, 64]
    assert bar.units == 7
    assert engine.facts()["workers"] >= 2  # a node that another test has lost may not be missed yet


def test_workers_without_a_gpu_of_their_own_see_none(engine: RayEngine) -> None:
    assert mapped(engine, visible_gpus, [0, 1]) == [
        "",
        "",
    ]  # or all of them would compute on the first one of their machine


# The tests from here on go by what the one before has left: a worker takes seconds to start.


def test_workers_stay_for_the_next_piece_of_work(engine: RayEngine) -> None:
    processes = {pid for _ in range(3) for pid in mapped(engine, process_of, range(8))}
    assert (
        len(processes) <= 2
    )  # one worker may do all of a map; workers started for each map would be three or more
    assert len(engine._idle) == 2
    assert mapped(engine, stumble, [5]) == [25]  # fewer items: one of them is enough
    assert len(engine._idle) == 1


def test_an_item_that_kills_its_workers_does_not_stop_the_others(
    engine: RayEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "workers", 1)  # the one that stayed
    monkeypatch.setattr(engine, "attempts", 2)
    found = dict(engine.run(Deadly(stumble), [3, 0, 1, 2]))
    assert found == {0: -1, 1: 0, 2: 1, 3: 4}
    assert engine.facts()["replaced"] == 2
    assert capsys.readouterr().out == ""  # where `--json` prints


def test_errors_in_a_worker(engine: RayEngine) -> None:
    with pytest.raises(
        LayerscopeError,
        match=r"3 failed 4 times, the last time: OSError: the disk .* What was finished is kept",
    ):
        mapped(engine, stumble, [0, 3])
    with pytest.raises(
        UnknownNameError, match="unknown thing 'four'"
    ):  # trying again would change nothing
        mapped(engine, stumble, [4, 0])


def test_a_folder_that_a_worker_cannot_see(
    engine: RayEngine, model_folder: Path, texts: list[str]
) -> None:
    work = MapWork(len)
    recipe = ModelRecipe(model_folder / "elsewhere", {}, {})
    work.open = recipe.open  # type: ignore[method-assign]
    with pytest.raises(LayerscopeError, match="no such file or folder"):
        list(engine.run(work, texts[:1]))


def test_workers_end_when_the_engine_is_closed(engine: RayEngine) -> None:
    processes = set(mapped(engine, process_of, [0]))
    assert len(engine._idle) == 1
    engine.close()
    assert len(engine._idle) == 0
    while any(psutil.pid_exists(pid) for pid in processes):
        time.sleep(0.05)


def test_gpus_that_are_not_there(cluster: Any) -> None:
    with (
        RayEngine(cluster.address, gpus_per_worker=1) as asked,
        pytest.raises(LayerscopeError, match="no machine of the cluster"),
    ):
        mapped(asked, len, ["a"])


@pytest.mark.slow
def test_a_driver_that_was_killed_is_resumed(
    free_cluster: Any,
    engine: RayEngine,
    local: Profile,
    model_folder: Path,
    prompts: list[str],
    settings: Any,
    tmp_path: Path,
) -> None:
    address = free_cluster.address
    given = {
        "model": str(model_folder),
        "data": prompts,
        "out": str(tmp_path / "run"),
        "address": address,
        **settings,
    }
    mark = tmp_path / "mark"
    command = [
        sys.executable,
        "-m",
        "tests.engines.driver",
        json.dumps({**given, "mark": str(mark)}),
    ]
    driver = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        while not mark.exists():
            assert driver.poll() is None, "the driver ended before it had written anything"
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    given.pop("address")
    run = profile(engine=engine, **given)
    assert run.manifest["seconds"]["resumed_prompts"] == 64
    assert_same_numbers(local.table, run.table, 1e-6)
