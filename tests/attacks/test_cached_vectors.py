"""Cached vectors are of the model that is asked for, whatever is noted about its files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from layerscope.cache import cache_dir
from tests.cli.support import Cli
from tests.evaluation.support import write_tasks

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is a process of its own for users: this one forgets what it knows of files."""
    from layerscope.core import fingerprints

    monkeypatch.setattr(fingerprints, "_READ", _Forgets())


class _Forgets(dict[object, object]):
    def __setitem__(self, key: object, value: object) -> None:
        pass


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


def exchange_memos() -> None:
    """Give every memo about a file the fingerprint of another file of that size."""
    memos = sorted((cache_dir() / "fingerprints").glob("*.json"))
    told = {memo: json.loads(memo.read_text(encoding="utf-8")) for memo in memos}
    for memo, mine in told.items():
        others = (one for one in told.values() if one["sha256"] != mine["sha256"])
        same_size = [one for one in others if one["key"][1] == mine["key"][1]]
        if same_size:
            changed = {**mine, "sha256": same_size[0]["sha256"]}
            memo.write_text(json.dumps(changed), encoding="utf-8")


def values(cli: Cli, model: str, tasks: Path, out: str) -> pd.DataFrame:
    words = ("-t", "Pairs", "--data-dir", tasks, "--scoring-workers", 0, "--out", out)
    ended = cli("evaluate", model, *words)
    assert ended.code == 0, ended.err
    return pd.read_parquet(Path(out) / "scores.parquet")["score"]


def test_a_memo_with_another_fingerprint(
    cli: Cli, models: tuple[Path, Path], tasks: Path, tmp_path: Path
) -> None:
    first = values(cli, "one", tasks, "run-one")
    true = values(cli, "other", tasks, "run-other")
    assert not first.equals(true)
    exchange_memos()
    assert values(cli, "other", tasks, "run-again").to_list() == pytest.approx(true.to_list())


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
