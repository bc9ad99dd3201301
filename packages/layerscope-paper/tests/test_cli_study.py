"""`layerscope-paper study` and `layerscope-paper sweep` as a user types them."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from paper_support import Cli, assert_refused


def test_a_study_from_the_command_line(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    words = [
        "study",
        "extreme",
        model_folder,
        "--data",
        data,
        "--limit",
        4,
        "--set",
        "levels=0,1",
        "--set",
        "lengths=8",
    ]
    ended = cli(*words)
    assert ended.code == 0, ended
    assert (
        "Repetition (p = 0 → 1): prompt entropy falls in the middle half of the layers"
        in " ".join(ended.out.split())
    )
    folder = tmp_path / "runs" / "extreme--tiny-llama--texts.txt--n4"
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    told = cli(*words, "--json")
    summary = json.loads(told.out)
    assert summary["study"] == "extreme"
    assert summary["options"]["levels"] == [0.0, 1.0]
    assert (
        summary["rows"] == 5 * 4 * 2
    )  # two levels twice and a length; four layers; with and without the sink


def test_the_list(cli: Cli) -> None:
    ended = cli("study", "list")
    for name in ("extreme", "sublayers", "checkpoints", "scale", "compare"):
        assert name in ended.out
    assert "--set levels=0.0,0.1" in cli("study", "list", "extreme").out
    held = json.loads(cli("study", "list", "compare", "--json").out)
    assert held[0]["models"] == {"least": 2, "most": None}


def test_mistakes_are_one_line(cli: Cli, model_folder: Path, data: Path) -> None:
    assert_refused(cli("study", "extrme", model_folder), "Did you mean 'extreme'")
    assert_refused(
        cli("study", "extreme", model_folder, "--data", data, "--set", "levels"),
        "--set takes NAME=VALUE",
    )
    assert_refused(
        cli("study", "extreme", model_folder, "--data", data, "--set", "level=0"),
        "Did you mean 'levels'",
    )
    assert_refused(cli("study", "compare", model_folder, "--data", data), "takes 2 or more models")
    assert_refused(cli("sweep", "papr"), "Did you mean 'paper'")


def test_unreadable_plans_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.yaml").write_text("models: [a]")

    def broken(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    assert_refused(
        cli("sweep", tmp_path / "plan.yaml"), "plan.yaml cannot be read: Input/output error"
    )


@pytest.mark.usefixtures("no_figure_files")
def test_studies_of_a_plan_from_the_command_line(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    lines = [f"defaults: {{data: {data}, limit: 3, max_length: 32}}", "steps:"]
    lines += [
        f"  - {{study: extreme, models: [{model_folder}], options: {{levels: [0, 1], conditions: repetition}}}}"
    ]
    lines += [f"  - {{name: broken, study: extreme, models: [{tmp_path / 'nothing'}]}}"]
    (tmp_path / "mine.yaml").write_text("\n".join(lines), encoding="utf-8")
    before = cli("sweep", "mine.yaml", "--dry-run")
    assert before.code == 0, before
    assert "broken" in before.out
    assert not (tmp_path / "runs").exists()
    listed = json.loads(cli("sweep", "mine.yaml", "--dry-run", "--json").out)
    assert [(one["job"], one["status"]) for one in listed["jobs"]] == [
        ("extreme", "waiting"),
        ("broken", "waiting"),
    ]
    ended = cli("sweep", "mine.yaml")
    assert ended.code == 2, ended
    assert "failed broken: " in ended.out
    assert (tmp_path / "runs" / "mine" / "extreme" / "study.csv").is_file()
    assert cli("sweep", "mine.yaml", "--only", "extreme", "--json").code == 0
