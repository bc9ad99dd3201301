"""Stored arrays and JSON carry checksums: a changed byte is noticed, wherever it is."""

from __future__ import annotations

import errno
import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.store import checked
from layerscope.store.checked import CheckedArray, DamagedFileError

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def write_npy(path: Path) -> None:
    checked.write_array(path, ARRAY)


def write_parts(path: Path) -> None:
    checked.write_array(path, ARRAY, parts=True)


def read_parts(path: Path) -> Any:
    array = CheckedArray.open(path)
    return np.stack([array.read_part(i) for i in range(array.shape[0])])


def write_npz(path: Path) -> None:
    checked.write_arrays(path, {"a": ARRAY, "b": np.array("mean")})


def read_npz(path: Path) -> Any:
    arrays = checked.read_arrays(path)
    return arrays["a"].tolist(), str(arrays["b"])


def write_json(path: Path) -> None:
    checked.write_json(
        path, {"task": "sts", "scores": [{"score": 0.8125, "split": "test"}], "name": "é"}
    )


def read_json(path: Path) -> Any:
    value = checked.read_checked_json(path)
    return {name: value[name] for name in ("task", "scores", "name")}


def write_bytes(path: Path) -> None:
    checked.write_bytes(path, bytes(range(64)))


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "npy": (write_npy, checked.read_array),
    "parts": (write_parts, read_parts),
    "npz": (write_npz, read_npz),
    "json": (write_json, read_json),
    "bytes": (write_bytes, checked.read_bytes),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_is_watched(name: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    path = tmp_path / "file"
    write(path)
    whole, value = path.read_bytes(), read(path)
    noticed = 0
    for place in range(len(whole)):
        for bit in (0, 6):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(bytes(damaged))
            try:
                found = read(path)
            except DamagedFileError:
                noticed += 1
            else:  # a byte that means nothing, such as the date of a zip file's member
                assert (
                    np.array_equal(found, value)
                    if isinstance(value, np.ndarray)
                    else found == value
                ), place
    assert noticed > len(whole)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_anywhere_is_damaged(name: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    path = tmp_path / "file"
    write(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if name == "json" and length == len(whole) - 1:
            continue  # the last line end
        with pytest.raises(DamagedFileError):
            read(path)


def test_arrays_of_any_shape_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array in (
        np.float64(3.5),
        np.empty((0, 3)),
        np.arange(5),
        ARRAY[:, ::2],
        np.asfortranarray(np.ones((3, 2))),
        ARRAY[:1],
    ):
        for parts in (False, True)[: 1 + bool(np.ndim(array) > 1)]:
            checked.write_array(path, np.asarray(array), parts)
            assert np.array_equal(checked.read_array(path), array)
            assert np.array_equal(np.load(path), array)  # numpy reads it as any other file


def test_a_file_without_a_checksum_is_not_ours(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAY)
    with pytest.raises(DamagedFileError, match="it carries no checksum"):
        checked.read_array(tmp_path / "a.npy")
    assert not checked.has_checksum(tmp_path / "a.npy")
    (tmp_path / "a.json").write_text('{"score": 1}')
    assert not checked.has_checksum(tmp_path / "a.json")


def test_a_damaged_file_is_named_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers.npz"
    assert checked.read_or_discard(path, checked.read_arrays) is None
    path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "layerscope"):
        assert checked.read_or_discard(path, checked.read_arrays) is None
    assert "answers.npz is damaged" in caplog.text
    assert "computed again" in caplog.text
    assert not path.exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.json"])
def test_what_cannot_be_opened_is_not_discarded(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, or no right to read, say nothing about a file's content."""
    path = tmp_path / name
    read: Any = {
        ".npy": checked.read_array,
        ".npz": checked.read_arrays,
        ".json": checked.read_checked_json,
    }[path.suffix]
    if name == "a.json":
        checked.write_json(path, {"a": 1})
    elif name == "a.npz":
        checked.write_arrays(path, {"a": np.arange(3)})
    else:
        checked.write_array(path, np.arange(3))
    own = io.open

    def refused(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file) == str(path):
            raise OSError(code, os.strerror(code), str(path))
        return own(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", refused)
        patch.setattr(Path, "open", lambda self, *args, **kwargs: refused(self, *args, **kwargs))
        with pytest.raises(OSError, match=os.strerror(code)):
            checked.read_or_discard(path, read)
    assert checked.read_or_discard(path, read) is not None
