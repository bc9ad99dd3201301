"""Cached vectors are of the model that is asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.support import Cli
from tests.evaluation.support import write_tasks

WEIGHTS = "model.safetensors"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


def values(cli: Cli, model: str, tasks: Path, out: str) -> pd.DataFrame:
    words = ("-t", "Pairs", "--data-dir", tasks, "--option", "scoring_workers=0", "--out", out)
    ended = cli("evaluate", model, *words)
    assert ended.code == 0, ended.err
    return pd.read_parquet(Path(out) / "scores.parquet")["score"]


@pytest.mark.parametrize("times", [True, False], ids=["with its times", "in place"])
def test_weights_of_the_same_size(
    cli: Cli, models: tuple[Path, Path], tasks: Path, times: bool
) -> None:
    one, other = models
    first = values(cli, "one", tasks, "run-one")
    true = values(cli, "other", tasks, "run-other")
    assert not first.equals(true)
    weights = one / WEIGHTS
    before = weights.stat()
    if times:
        shutil.copyfile(other / WEIGHTS, weights)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        with weights.open("r+b") as stream:
            stream.write((other / WEIGHTS).read_bytes())
    assert weights.stat().st_size == before.st_size
    assert values(cli, "one", tasks, "run-again").to_list() == pytest.approx(true.to_list())
