"""Sweeps from a file to one table: here and on a cluster, interrupted and not, with a job that
fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from paper_support import SETTINGS
from tests.evaluation.support import write_tasks
from tests.profiling.support import assert_same_numbers
from typer.testing import CliRunner

import layerscope
from layerscope.engines import RayEngine
from layerscope.engines.base import ROOM
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.progress import Silent
from layerscope.vectors import VectorSpace
from layerscope_paper.cli import app
from layerscope_paper.sweeps.plan import read_plan
from layerscope_paper.sweeps.run import StepWork, Sweep, _StepProgress, sweep, write_sent_files

NAMES = [
    "step-20--first",
    "step-20--second",
    "step-100--first",
    "step-100--second",
    "nowhere--first",
    "nowhere--second",
]


@pytest.fixture(scope="module")
def done(wanted: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep(wanted, out=tmp_path_factory.mktemp("done"))


def test_one_failing_job_does_not_stop_the_others(done: Sweep) -> None:
    assert done.jobs["job"].tolist() == NAMES
    assert done.jobs["status"].tolist() == ["complete"] * 4 + ["failed"] * 2
    assert [one["job"] for one in done.failed] == NAMES[4:]
    assert "no such file or folder" in done.failed[0]["reason"]
    held = json.loads((done.path / "manifest.json").read_text(encoding="utf-8"))
    assert (held["kind"], held["status"]) == ("sweep", "complete")
    assert [job["status"] for job in held["jobs"]] == done.jobs["status"].tolist()


def test_the_table_holds_what_the_runs_hold(done: Sweep, home: Path) -> None:
    assert done.table.equals(pd.read_parquet(done.path / "sweep.parquet"))
    assert len(pd.read_csv(done.path / "sweep.csv")) == len(done.table)
    alone = layerscope.profile(home / "step-100", home / "second.txt", limit=7, **SETTINGS)
    rows = done.table[done.table["job"] == "step-100--second"].reset_index(drop=True)
    assert_same_numbers(alone.table, rows, 1e-9)
    assert set(rows["model"]) == {"step-100"}
    assert set(rows["corpus"]) == {"second"}
    assert (
        layerscope.Profile.load(done.path / "step-100--second").manifest["counts"]["prompts"] == 7
    )


def test_models_take_the_options_of_every_command_unless_the_plan_sets_them(
    home: Path, tmp_path: Path
) -> None:
    own = {"name": str(home / "step-100"), "dtype": "float32"}
    plan = {
        "models": [str(home / "step-20"), own],
        "corpora": [str(home / "first.txt")],
        "profile": SETTINGS,
    }
    done = sweep(plan, out=tmp_path / "out", dtype="bfloat16", batch_size=2, progress=False)
    runs = [layerscope.Profile.load(done.path / job) for job in done.jobs["job"]]
    assert [run.manifest["model"]["dtype"] for run in runs] == ["bfloat16", "float32"]
    with pytest.raises(LayerscopeError, match=r"option of sweep 'dtyp'. Did you mean 'dtype'"):
        sweep(plan, out=tmp_path / "out", dtyp="bfloat16")
    studies = {
        "steps": [{"study": "compare", "models": [str(home / "step-20"), str(home / "step-100")]}]
    }
    step = read_plan(studies).set(model_options={"dtype": "bfloat16"}).steps[0]
    assert step.common_options == {"dtype": "bfloat16"}
    step = (
        read_plan({**studies, "defaults": {"dtype": "float16"}})
        .set(model_options={"dtype": "bfloat16"})
        .steps[0]
    )
    assert step.common_options == {"dtype": "float16"}


def test_the_same_sweep_again_encodes_nothing(
    done: Sweep, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VectorSpace, "add", lambda *_: pytest.fail("encoded again"))
    again = sweep(wanted, out=done.path)
    assert again.table.equals(done.table)
    listed = sweep(wanted, out=done.path, dry_run=True)
    assert listed.jobs["status"].tolist() == ["complete"] * 4 + ["waiting"] * 2


def test_a_sweep_is_a_run_that_can_be_opened(done: Sweep) -> None:
    again = layerscope.load_run(done.path)
    assert isinstance(again, Sweep)
    assert (again.kind, again.name) == ("sweep", "sweep")
    assert again.table.equals(done.table)
    assert again.jobs["status"].tolist() == done.jobs["status"].tolist()
    assert again.failed == done.failed
    assert again.summary()["jobs"][0]["job"] == NAMES[0]
    assert set(again.tables()) == {"sweep", "jobs"}
    with pytest.raises(RunFolderError, match="not 'sweep'"):
        Sweep.load(done.path / NAMES[0])


def test_settings_that_changed_are_refused_job_by_job(done: Sweep, wanted: dict[str, Any]) -> None:
    other = sweep({**wanted, "profile": {**SETTINGS, "max_length": 12}}, out=done.path)
    assert "max_length: 24 there, 12 here" in other.failed[0]["reason"]


def test_tasks_too(home: Path, tmp_path: Path) -> None:
    data = write_tasks(tmp_path / "data")
    asked = {
        "tasks": ["Pairs"],
        "data_dir": str(data),
        "layers": [0, -1],
        "scoring_workers": 0,
        "store": str(tmp_path / "store"),
    }
    done = sweep({"models": [str(home / "step-20")], "evaluate": asked}, out=tmp_path / "out")
    assert done.jobs["kind"].tolist() == ["evaluate"]
    assert done.failed == []
    assert done.table[["task", "readout", "layer"]].values.tolist() == [
        ["Pairs", "plain/mean/applied/keep/none", 0],
        ["Pairs", "plain/mean/applied/keep/none", 3],
    ]
    assert done.table["value"].between(-1, 1).all()


def test_a_dict_without_a_folder_goes_where_its_name_says(
    wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep(wanted, dry_run=True).path == Path("runs/sweep")
    assert sweep({**wanted, "name": "my/models"}, dry_run=True).path == Path("runs/models")


def test_mistakes_that_concern_all_jobs(home: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LayerscopeError, match="profile: unknown metric 'entropie'"):
        sweep({**wanted, "profile": {"metrics": ["entropie"]}}, out=tmp_path / "out")
    with pytest.raises(LayerscopeError, match="there is no file"):
        sweep({**wanted, "corpora": ["./none.txt"]}, out=tmp_path / "out")
    with pytest.raises(RunFolderError, match="is a file"):
        sweep(wanted, out=home / "first.txt")


def test_the_command(
    home: Path, wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(wanted), encoding="utf-8")
    shown = CliRunner().invoke(app, ["sweep", str(file), "--dry-run"])
    assert shown.exit_code == 0
    assert "step-100--second" in shown.output
    assert not (tmp_path / "runs").exists()
    ran = CliRunner().invoke(app, ["sweep", str(file)])
    assert ran.exit_code == 2
    assert "failed nowhere--first: no such file or folder" in " ".join(ran.output.split())
    told = CliRunner().invoke(app, ["sweep", str(file), "--json"])
    assert [job["status"] for job in json.loads(told.stdout)["jobs"]] == ["complete"] * 4 + [
        "failed"
    ] * 2


def test_the_bar_numbers_the_steps() -> None:
    shown: list[str] = []
    bar = Silent()
    bar.begin = lambda label, total, done=0: shown.append(label)  # type: ignore[method-assign]
    steps = _StepProgress(bar, ["a", "b", "c"])
    for name in ("a", "b", "c"):
        steps.next(name)
        if name != "a":  # a was finished before: it shows no stage
            steps.begin("encoding|texts", 10)
    assert shown == ["2/3 b: encoding|texts", "3/3 c: encoding|texts"]


def test_a_worker_gets_room_for_the_largest_model(home: Path, wanted: dict[str, Any]) -> None:
    steps = read_plan(wanted).steps
    weights = (home / "step-20" / "model.safetensors").stat().st_size
    assert steps[0].memory == int(1.2 * weights + ROOM)
    assert steps[-1].memory == 0  # nothing is known of it
    (named,) = read_plan({"models": ["minilm-l6"]}).steps
    assert named.memory > 4 * 22_000_000


@pytest.mark.slow
def test_on_a_cluster(cluster: Any, done: Sweep, wanted: dict[str, Any], tmp_path: Path) -> None:
    with RayEngine(cluster.address) as engine:
        there = sweep(wanted, out=tmp_path / "out", engine=engine)
        assert there.jobs["status"].tolist() == done.jobs["status"].tolist()
        assert_same_numbers(done.table, there.table, 1e-6)
        assert not Path(tmp_path / "out" / NAMES[0] / "shards").exists()
        # a machine that does not see the sweep's folder sends what it has written
        config = read_plan(wanted)
        work = StepWork(tmp_path / "far", {corpus: corpus.load() for corpus in config.corpora})
        work.mark = "another"
        ((_, result),) = engine.run(work, config.steps[:1])
        assert not (tmp_path / "far" / NAMES[0]).exists()
        write_sent_files(tmp_path / "far" / NAMES[0], result)
        sent = layerscope.Profile.load(tmp_path / "far" / NAMES[0])
        assert sent.table.equals(layerscope.Profile.load(tmp_path / "out" / NAMES[0]).table)
