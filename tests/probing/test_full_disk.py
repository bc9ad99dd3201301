"""A disk that fills up is told as such: a map of a file without space would end the process without
a word."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from layerscope.errors import LayerscopeError
from layerscope.store import atomic


def test_space_is_taken_before_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "states"
    atomic.reserve(file, 5000)
    assert file.stat().st_size == 5000
    file.write_bytes(b"x" * 5000)
    atomic.reserve(file, 5000)  # a run that goes on keeps what is there
    assert file.read_bytes() == b"x" * 5000


@pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="this system cannot take space ahead"
)
def test_no_space_for_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(LayerscopeError, match="no space left"),
        atomic.explained(tmp_path / "states"),
    ):
        atomic.reserve(tmp_path / "states", 10)
