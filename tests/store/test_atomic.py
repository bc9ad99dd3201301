"""Files are whole or not there, and what the disk refuses is said in words."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from layerscope.errors import RunFolderError
from layerscope.store import atomic


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target, seen = tmp_path / "new" / "a.bin", []

    def fill(stream: BinaryIO) -> None:
        stream.write(b"half")
        stream.flush()
        seen.append(target.exists())
        stream.write(b" and half")

    atomic.write(target, fill)
    assert seen == [False]
    assert target.read_bytes() == b"half and half"
    assert listing(tmp_path) == ["a.bin", "new"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("bad"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.EIO, "input/output error"), RunFolderError),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    atomic.write_text(target, "old")

    def fill(stream: BinaryIO) -> None:
        stream.write(b"new, but not all of")
        raise error

    with pytest.raises(raised):
        atomic.write(target, fill)
    assert target.read_text() == "old"
    assert listing(tmp_path) == ["a.txt"]


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    def fill(stream: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        RunFolderError, match=r"no space left on the disk.*What was finished before is kept"
    ):
        atomic.write(tmp_path / "a", fill)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_an_unwritable_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(atomic, "open", refuse, raising=False)
    with pytest.raises(RunFolderError, match=r"cannot write .*/x/a: .*Choose another"):
        atomic.write_text(tmp_path / "x" / "a", "text")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file/a", "file/folder/a"):
        with pytest.raises(RunFolderError, match="cannot write"):
            atomic.write_text(tmp_path / place, "text")


def test_json_is_plain_and_every_reader_takes_it(tmp_path: Path) -> None:
    value = {
        "a": np.float64(0.5),
        "b": math.nan,
        "c": math.inf,
        4: (1, {2}),
        "d": Path("x"),
        "e": np.int64(3),
        "f": "é",
        "g": True,
    }
    atomic.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {
        "a": 0.5, "b": None, "c": "inf", "4": [1, [2]], "d": "x", "e": 3, "f": "é", "g": True,
    }  # fmt: skip


def test_parts_of_killed_writers_are_swept(tmp_path: Path) -> None:
    table, result = atomic.part_of(tmp_path / "a.json"), tmp_path / ".b.csv.17-0a1b2c3d.part"
    for path in (table, result, tmp_path / ".user.part"):
        path.write_text("half")
    atomic.remove_parts(tmp_path, of=(".json",))
    assert listing(tmp_path) == [".b.csv.17-0a1b2c3d.part", ".user.part"]
    atomic.remove_parts(tmp_path)
    assert listing(tmp_path) == [".user.part"]


def test_names_beside_a_file_are_never_shared_nor_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 120 + ".json")
    assert atomic.part_of(path) != atomic.part_of(path)
    atomic.write_text(path, "{}")
    assert path.read_text() == "{}"


def test_the_folder_is_synced_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        atomic.os, "replace", lambda a, b, own=os.replace: (done.append("rename"), own(a, b))
    )
    monkeypatch.setattr(atomic, "sync_folder", lambda folder: done.append(str(folder)))
    atomic.write_text(tmp_path / "a", "text")
    assert done == ["rename", str(tmp_path)]
