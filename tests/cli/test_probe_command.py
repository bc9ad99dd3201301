"""`layerscope probe` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Cli, assert_refused


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    file = tmp_path / "labeled.csv"
    rows = [f"{'xy'[i % 2] * 3}{i},{'xy'[i % 2]}" for i in range(60)]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    return file


def test_json_and_the_same_again(
    cli: Cli, model_folder: Path, labeled: Path, tmp_path: Path
) -> None:
    words = [
        "probe",
        model_folder,
        "--data",
        labeled,
        "-p",
        "mean,knn",
        "--option",
        "epochs=3",
        "--option",
        "trial=1",
        "-o",
        "run",
    ]
    ended = cli(*words, "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert set(told["probes"]) == {"mean", "knn"}
    assert told["items"]["test"] == 12
    assert (tmp_path / "run" / "probe.csv").is_file()
    again = cli(*words)
    assert again.code == 0
    assert "Written to run" in again.err
    assert "mean" in again.out


def test_mistakes_are_one_line(cli: Cli, model_folder: Path, labeled: Path) -> None:
    assert_refused(cli("probe", model_folder), "a probe needs data")
    assert_refused(
        cli("probe", model_folder, "--data", labeled, "--heads", "attentoin"),
        "Did you mean 'attention'?",
    )
    assert_refused(cli("probe", model_folder, "--data", "missing.csv"), "no file 'missing.csv'")
