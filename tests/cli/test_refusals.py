"""Mistakes and circumstances that a user meets: one line that says what to do, never a
traceback."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import layerscope
from layerscope.choose.choice import Choice
from layerscope.choose.labels import read_labels
from layerscope.errors import (
    DataError,
    LayerscopeError,
    UnknownNameError,
    clean_names,
    near_misses,
    one_line,
    printable,
)
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.probing.examples import text_examples
from layerscope.store import RunFolder
from layerscope.terminal import Console
from tests.cli.support import Cli, assert_refused
from tests.report.synthetic import synthetic_evaluation


@pytest.mark.parametrize(
    ("given", "meant"),
    [("entropy", "prompt_entropy"), ("rank", "effective_rank"), ("sink", "sink_ratio")],
)
def test_the_usual_meaning_of_a_metric_is_suggested(
    cli: Cli, model_folder: Path, data: Path, given: str, meant: str
) -> None:
    assert_refused(
        cli("profile", model_folder, "--data", data, "-m", given), f"Did you mean '{meant}'?"
    )


def test_messages_name_parameters(cli: Cli, model_folder: Path, data: Path, tmp_path: Path) -> None:
    """One message in the library; a bad value is a ValueError there."""
    with pytest.raises(ValueError, match="workers= is for work on a cluster: add engine='ray'"):
        layerscope.profile(model_folder, data, workers=2)
    words = ("profile", model_folder, "--data", data)
    assert_refused(
        cli(*words, "--engine", "local:workers=2"),
        "workers= is for work on a cluster: add engine='ray', or leave it out.",
    )
    assert_refused(cli(*words, "--engine", "ray:worker=2"), "Did you mean 'workers'?")
    assert_refused(cli(*words, "--option", "limit=5"), "an option of its own: --limit 5")
    assert_refused(cli(*words, "--model-option", "dtype"), "--model-option takes KEY=VALUE")
    assert_refused(cli(*words, "--model-option", "dtpye=x"), "Did you mean 'dtype'?")
    with pytest.raises(ValueError, match="views must be 2 to 16, not 1"):
        layerscope.profile(model_folder, data, views=1)
    with pytest.raises(ValueError, match="unknown metric 'x'"):
        layerscope.profile(model_folder, data, metrics=["x"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(layerscope.LayerscopeError, match=r"another out=") as refused:
        layerscope.profile(model_folder, data, out=tmp_path / "mine")
    assert not isinstance(refused.value, ValueError)  # a circumstance
    assert_refused(cli(*words, "-o", tmp_path / "mine"), "Choose another out=")


def test_no_message_of_the_library_names_a_flag() -> None:
    """Flags stand in commands that are written out (`layerscope …`, `ray start …`) and in what only
    the terminal shows."""
    home = Path(layerscope.__file__).parent
    found = []
    for path in sorted(home.rglob("*.py")):
        if path.parent.name == "cli" or path.name in (
            "terminal.py",
            "fit.py",
            "packages.py",
            "catalogue.py",
        ):
            continue
        source = path.read_text(encoding="utf-8")
        if not re.search(r"--[a-z]", source):  # most have none, and all would take two seconds
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise):
                text = re.sub(r"`[^`]*`", "", ast.unparse(node))
                found += [
                    f"{path.name}:{node.lineno}" for _ in re.findall(r"(?<![\w-])--[a-z]", text)
                ]
    assert found == []


def test_names_that_are_too_long(cli: Cli, model_folder: Path, data: Path) -> None:
    long = "x" * 5000
    assert_refused(cli("profile", long, "--data", data), "unknown model", "xxx...")
    assert_refused(
        cli("profile", model_folder, "--data", data, "--out", f"runs/{long}"),
        "cannot write",
        "too long",
    )
    assert_refused(cli("report", long), "holds no run")


def test_a_cache_that_cannot_be_written(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", "/proc/layerscope")
    assert_refused(
        cli("profile", model_folder, "-d", "lee"),
        "cannot be written to /proc/layerscope",
        "LAYERSCOPE_CACHE",
    )


def test_a_folders_name_cannot_speak_to_the_terminal(
    cli: Cli, model_folder: Path, data: Path
) -> None:
    words = ("profile", model_folder, "--data", data, "-m", "prompt_entropy", "--max-length", "16")
    ended = cli(*words, "--out", "run \x1b[31m\nred")
    assert ended.code == 0
    assert "\x1b[31m" not in ended.out + ended.err
    assert [line for line in ended.err.splitlines() if line.startswith("red")] == []


def test_a_limit_without_end(cli: Cli, model_folder: Path, data: Path) -> None:
    words = (
        "profile",
        model_folder,
        "--data",
        data,
        "-m",
        "prompt_entropy",
        "--max-length",
        "16",
    )
    assert cli(*words, "--limit", "9" * 20).code == 0


def test_a_terminal_that_cannot_show_every_sign(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", shown)
    assert cli("list", "metrics").code == 0
    shown.flush()
    assert b"prompt_entropy" in shown.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_user_without_a_home(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAYERSCOPE_CACHE", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(
        Path, "expanduser", lambda path: no_home() if str(path).startswith("~") else path
    )
    assert_refused(
        cli("doctor", "--prune", "2GB"), "no home folder", "export LAYERSCOPE_CACHE=FOLDER"
    )
    ended = cli("doctor")
    assert ended.code == 2
    assert "this user has no home folder" in " ".join(ended.out.split())
    assert "export HF_HOME=FOLDER" in ended.out


def test_ctrl_c_before_anything_has_begun(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["layerscope.cli.app"], "load_commands", stop)
    ended = cli("list", "metrics")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines() == [
        "layerscope: stopped. Finished work is kept: run the same command again to resume."
    ]


def test_what_a_terminal_obeys_does_not_reach_it() -> None:
    text = "a\x1b[31mb\x9bc\u202ed\te\nf\x07"
    assert printable(text) == "a\ufffd[31mb\ufffdc\ufffdd\te\nf\ufffd"
    assert one_line(text) == "a\ufffd[31mb\ufffdc\ufffdd e f\ufffd"
    assert "\x1b" not in str(LayerscopeError(text))
    assert "\x1b" not in str(UnknownNameError("metric", "\x1b[2J", ["a"]))


ODD = "red \x1b[31m\nname\u202e"
CLEAN = "red \ufffd[31m name\ufffd"


def test_names_of_classes_are_cleaned_and_stay_apart(tmp_path: Path) -> None:
    labels = [ODD, ODD + "\x07", "plain"] * 6
    examples = text_examples(
        {"": [(f"text {i}", label) for i, label in enumerate(labels)]}, "texts"
    )
    assert sorted(examples.classes) == sorted(["plain", CLEAN, CLEAN + "\ufffd"])
    file = tmp_path / "labels.jsonl"
    file.write_text(
        "\n".join(
            json.dumps({"text": f"text {i}", "label": label}) for i, label in enumerate(labels)
        )
    )
    assert set(read_labels(file).classes) == {"plain", CLEAN, CLEAN + "\ufffd"}
    assert clean_names(["a\x07", "a\x08"]) == ("a\ufffd", "a\ufffd (2)")


def test_a_task_with_an_odd_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / ODD).mkdir()
    with pytest.raises(DataError, match="must be printable and in one line") as caught:
        resolve_tasks([ODD], data_dir=tmp_path)
    assert "\x1b" not in str(caught.value)


def test_a_strangers_run_says_nothing_to_the_terminal(cli: Cli, tmp_path: Path) -> None:
    run = synthetic_evaluation(ODD, tasks=[ODD])
    folder = RunFolder(tmp_path / "run")
    folder.write_table("scores", run.scores)
    folder.write_table("gains", run.gains)
    folder.write_manifest({**run.manifest, "kind": "evaluation", "status": "complete"})
    for words in (
        ("report", "run", "--out", "page.html"),
        ("select", "run"),
    ):
        ended = cli(*words)
        told = ended.out + ended.err
        assert "\x1b[31m" not in told
        assert "\u202e" not in told
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[31m\nname" not in text
    assert CLEAN in text


def test_a_console_shows_text_as_text() -> None:
    stream = io.StringIO()
    console = Console(
        file=stream, width=80, force_terminal=True, color_system="standard", highlight=False
    )
    console.print(f"[bold]a {ODD} b[/]")
    console.print("a model called x[/y]")
    table = Table("name")
    table.add_row("\x1b[2J[/z]")
    console.print(table)
    told = stream.getvalue()
    assert "\x1b[31m" not in told
    assert "\x1b[2J" not in told
    assert "\x1b[1m" in told  # our own
    assert "a model called x[/y]" in told


def test_a_choice_from_a_stranger(tmp_path: Path) -> None:
    empty: dict[str, Any] = dict.fromkeys(("expected_gain", "ci_low", "ci_high", "risk_of_loss"))
    values = {
        "layer": 3,
        "site": "block.2",
        "readout": None,
        "tied": [3],
        "rule": "x",
        "blocks_saved": 0,
        **empty,
    }
    choice = Choice.from_json(
        json.dumps({**values, "model": ODD, "reason": ODD, "warnings": [ODD]})
    )
    assert choice.model == choice.reason == CLEAN
    assert choice.warnings == (CLEAN,)


@pytest.mark.parametrize(
    ("given", "names", "meant"),
    [
        ("Foo", ["mFollowIR"], []),
        ("version", ["verify"], []),
        ("max_len", ["max_length", "model"], ["max_length"]),
        ("promt_entropy", ["prompt_entropy"], ["prompt_entropy"]),
        ("rank", ["effective_rank", "lidar"], ["effective_rank"]),
    ],
)
def test_near_misses_are_real(given: str, names: list[str], meant: list[str]) -> None:
    assert near_misses(given, names) == meant


def test_a_command_that_is_none(cli: Cli) -> None:
    assert "Did you mean 'report'" in cli("reprot").err


def test_data_that_are_not_there_are_told_before_torch_is_imported(tmp_path: Path) -> None:
    code = "import sys; from layerscope.cli import main; sys.argv[1:] = {}; main()"
    words = ["improve", "smollm2-135m", "--data", str(tmp_path / "no.csv"), "--out", "better"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code.format(words)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "there is no file" in done.stderr
    assert not re.search(r"\| +(torch|transformers|pandas)$", done.stderr, re.MULTILINE)
