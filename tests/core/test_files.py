"""The memo of a file's sha256 is trusted only while the file and the memo are those it was made
from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from layerscope.core import files
from layerscope.core.files import file_sha256, sha256_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(2**22))
    return path


def again(path: Path) -> str:
    """Return the sha256 as another process would."""
    files._remembered.cache_clear()
    return file_sha256(path)


def test_the_memo_saves_the_second_reading(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = again(weights)
    assert first == sha256_of(weights)
    monkeypatch.setattr(files, "sha256_of", lambda path: pytest.fail("read again"))
    assert again(weights) == first


def test_a_damaged_memo_is_not_trusted(weights: Path, cache: Path) -> None:
    first = again(weights)
    (memo,) = (cache / "fingerprints").iterdir()
    stored = json.loads(memo.read_text())
    for damaged in ([], {}, {"state": stored["state"]}):
        memo.write_text(json.dumps(damaged))
        assert again(weights) == first


def test_replaced_weights_in_the_same_state_are_noticed(
    weights: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_state", lambda path: (2**22, 0, 0, 0))
    first = again(weights)
    weights.write_bytes(os.urandom(2**22))
    assert again(weights) == sha256_of(weights) != first
