"""Where numbers go: real event files, what each program is given, and what happens where one fails
or is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import layerscope
from layerscope.errors import (
    InvalidValueError,
    LayerscopeError,
    MissingExtraError,
    UnknownNameError,
)
from layerscope.loggers import LOGGERS, LogKind, Logs, TrackioLog, by_step, logs_folder
from tests.cli.support import assert_refused, run_main
from tests.improving.test_improve import some_texts
from tests.plugins.support import install
from tests.tiny import tiny_model

TEXTS = some_texts(40)
QUICK: dict[str, Any] = {
    "judge": "none",
    "templates": ["one-word"],
    "max_length": 96,
    "progress": False,
}


class Kept:
    """A log of one's own."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.closed = 0

    def write(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows

    def tell(self, facts: dict[str, Any]) -> None:
        self.facts |= facts

    def close(self) -> None:
        self.closed += 1


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_a_profile_in_tensorboard_and_in_a_log_of_ones_own(tmp_path: Path) -> None:
    kept = Kept()
    out = tmp_path / "run"
    given = {"metrics": ["prompt_entropy", "effective_rank"], "out": out, "progress": False}
    run = layerscope.profile(tiny_model("llama"), TEXTS, log=["tensorboard", kept], **given)
    found = scalars(tmp_path / "run-logs")
    assert set(found) == {
        "profile/prompt_entropy",
        "profile/prompt_entropy_sink_dropped",
        "profile/effective_rank",
    }
    for layer, value in found["profile/prompt_entropy"]:
        assert value == pytest.approx(run["prompt_entropy"][layer], rel=1e-6)
    assert [layer for layer, _ in found["profile/effective_rank"]] == run.layers
    assert kept.closed == 1
    assert (kept.facts["prompts"], kept.facts["run"]) == (len(TEXTS), str(out))
    assert not any(text in json.dumps([kept.rows, kept.facts], default=str) for text in TEXTS)
    assert {file.name for file in out.iterdir()} == {
        file.name for file in _plain(tmp_path, given).iterdir()
    }


def _plain(tmp_path: Path, given: dict[str, Any]) -> Path:
    layerscope.profile(tiny_model("llama"), TEXTS, **{**given, "out": tmp_path / "plain"})
    return tmp_path / "plain"


def test_a_finished_profile_is_logged_when_it_is_asked_for_again(
    model_folder: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "metrics": ["prompt_entropy"],
        "out": tmp_path / "run",
        "progress": False,
    }
    layerscope.profile(model_folder, TEXTS, **given)
    kept = Kept()
    layerscope.profile(model_folder, TEXTS, log=kept, **given)
    assert len(kept.rows) == 2 * 4


def test_an_improvement_tells_its_candidates_and_its_choice(tmp_path: Path) -> None:
    kept = Kept()
    result = layerscope.improve(tiny_model("llama"), TEXTS, log=kept, **QUICK)
    by_tag = {(row["tag"], row["step"]): row["value"] for row in kept.rows}
    scored = result.table.dropna(subset=["score"])
    assert len(scored)
    assert all(
        by_tag[f"improve/{row.readout}", row.layer] == row.score for row in scored.itertuples()
    )
    assert by_tag["chosen/layer", 0] == result.choice.layer
    assert by_tag["chosen/after", 0] == result.manifest["evidence"]["after"]
    assert kept.facts["reason"] == result.choice.reason
    assert not any(text in json.dumps([kept.rows, kept.facts], default=str) for text in TEXTS)


def test_on_the_command_line(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = (
        "profile",
        model_folder,
        "--data",
        "texts.txt",
        "--metrics",
        "curvature",
        "--out",
        "run",
        "--quiet",
        "--log",
    )
    assert run_main(monkeypatch, capsys, *words, "tensorboard").code == 0
    assert len(scalars(tmp_path / "run-logs")["profile/curvature"]) == 4
    assert_refused(
        run_main(monkeypatch, capsys, *words, "tensorbord"),
        "unknown log 'tensorbord'. Did you mean 'tensorboard'?",
    )
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert_refused(
        run_main(monkeypatch, capsys, *words, "wandb"),
        "logging to Weights & Biases (wandb) needs",
        "[training]",
    )


def test_what_is_no_log_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "layerscope.command.Command.load",
        lambda *given, **options: pytest.fail("nothing is loaded"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for command in (layerscope.profile, layerscope.improve):
        with pytest.raises(UnknownNameError, match="mlflow, tensorboard, trackio, wandb"):
            command("smollm2-135m", TEXTS, log="paper")
        with pytest.raises(MissingExtraError, match="MLflow"):
            command("smollm2-135m", TEXTS, log=["tensorboard", "mlflow"])
        with pytest.raises(
            InvalidValueError, match=r"objects with write\(rows\) and close\(\), not 7"
        ):
            command("smollm2-135m", TEXTS, log=[7])  # type: ignore[list-item]


class Broken(Kept):
    def write(self, rows: list[dict[str, Any]]) -> None:
        raise ConnectionError("no route")


def test_a_log_that_fails_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    run = layerscope.profile(
        tiny_model("llama"), TEXTS, metrics=["curvature"], log=[Broken(), kept], progress=False
    )
    assert "Broken: not logged (ConnectionError: no route)" in caplog.text
    assert len(run.table)
    assert len(kept.rows) == 8


def test_a_value_that_is_not_finite_is_left_out() -> None:
    rows = [{"tag": "a", "step": 2, "value": value} for value in (float("nan"), float("inf"), 1.0)]
    assert list(by_step(rows)) == [(2, {"a": 1.0})]


@pytest.mark.parametrize("out", [".", ".."])
def test_a_run_in_the_current_folder(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "run" / ("inside" if out == ".." else "")
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert logs_folder(out) == tmp_path / "run-logs"
    assert logs_folder("/").is_absolute()
    if out == ".":
        layerscope.profile(
            tiny_model("llama"),
            TEXTS,
            metrics=["curvature"],
            out=out,
            log="tensorboard",
            progress=False,
        )
        assert len(scalars(tmp_path / "run-logs")["profile/curvature"]) == 4
        assert layerscope.load_run(here).layers
        with pytest.raises(
            LayerscopeError, match=r"out='\.' is the current folder"
        ):  # an export would take its place
            layerscope.improve(tiny_model("llama"), TEXTS, out=out, overwrite=True, **QUICK)


class FakeTrackio:
    """As trackio does it: a run's config is sent with the first numbers after it was opened, and
    replaces an earlier one."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.rows: list[tuple[str, int, dict[str, float]]] = []

    def init(
        self,
        *,
        project: str,
        config: dict[str, Any],
        embed: bool,
        name: str = "one",
        resume: str = "never",
    ) -> Any:
        assert (name in self.configs) == (resume == "allow")
        run = SimpleNamespace(name=name, config=config, sent=False, finish=lambda: None)

        def log(values: dict[str, float], step: int) -> None:
            if not run.sent:
                self.configs[name], run.sent = dict(run.config), True
            self.rows.append((name, step, values))

        run.log = log
        return run


@pytest.mark.parametrize("trained", [False, True])
def test_what_is_told_last_arrives_in_trackio(
    trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    if not trained:
        result = layerscope.improve(tiny_model("llama"), TEXTS, log="trackio", **QUICK)
        assert (fake.configs["one"]["reason"], fake.configs["one"]["command"]) == (
            result.choice.reason,
            "improve",
        )
        return
    log = TrackioLog(Path(), {"command": "improve"})
    log.write([{"tag": "train/loss", "step": 1, "value": 2.0}])
    log.tell({"reason": "why"})
    log.write([{"tag": "chosen/layer", "step": 0, "value": 3.0}])
    assert fake.configs == {"one": {"command": "improve", "reason": "why"}}
    assert [(name, values) for name, _, values in fake.rows] == [
        ("one", {"train/loss": 2.0}),
        ("one", {"chosen/layer": 3.0}),
    ]


def test_a_profile_is_told_before_its_numbers() -> None:
    said: list[str] = []

    class Order(Kept):
        def write(self, rows: list[dict[str, Any]]) -> None:
            said.append("numbers")

        def tell(self, facts: dict[str, Any]) -> None:
            said.append("facts")

    layerscope.profile(
        tiny_model("llama"), TEXTS, metrics=["curvature"], log=Order(), progress=False
    )
    assert said == ["facts", "numbers"]


def test_logs_that_were_opened_are_closed_where_a_later_one_cannot_be() -> None:
    kept = Kept()

    def refuse(folder: Path, facts: Any) -> Any:
        raise InvalidValueError("no room")

    with pytest.raises(InvalidValueError, match="no room"):
        Logs([kept, "full"], Path(), {}, {"full": LogKind("full", "full", refuse)})
    assert kept.closed == 1


OUTSIDE = """
from layerscope.loggers import LogKind

class Paper:
    def __init__(self, folder, facts):
        if facts.get("command") == "refuse":
            raise RuntimeError("no pencil")
        self.file = folder.with_suffix(".txt")
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def write(self, rows):
        self.file.write_text(f"{len(rows)} rows")

    def close(self):
        pass

PAPER = LogKind("paper", "paper", Paper)
"""


def test_another_package_adds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("outside_log", OUTSIDE, "PAPER", LOGGERS, tmp_path, monkeypatch)
    given: dict[str, Any] = {"metrics": ["curvature"], "out": tmp_path / "run", "progress": False}
    layerscope.profile(tiny_model("llama"), TEXTS, log="paper", **given)
    assert (tmp_path / "run-logs.txt").read_text() == "8 rows"
    with pytest.raises(LayerscopeError, match="paper could not be opened: no pencil"):
        Logs("paper", tmp_path / "x", {"command": "refuse"})
