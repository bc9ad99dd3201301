"""Stored arrays and JSON carry checksums: a changed byte is noticed, wherever it is."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from layerscope.store import checked
from layerscope.store.checked import ArrayFile, DamagedFileError

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def write_arrays(path: Path) -> None:
    checked.write_arrays(path, {"a": ARRAY, "b": np.arange(5)}, {"rule": "mean"})


def read_arrays(path: Path) -> Any:
    arrays = checked.read_arrays(path)
    return arrays["a"].tolist(), arrays["b"].tolist(), ArrayFile(path).facts


def read_parts(path: Path) -> Any:
    file = ArrayFile(path)
    parts = [file.read_part("a", i).tolist() for i in range(file.shape("a")[0])]
    return parts, file.read("b").tolist()


def write_json(path: Path) -> None:
    checked.write_json(
        path, {"task": "sts", "scores": [{"score": 0.8125, "split": "test"}], "name": "é"}
    )


def read_json(path: Path) -> Any:
    value = checked.read_checked_json(path)
    return {name: value[name] for name in ("task", "scores", "name")}


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "arrays": (write_arrays, read_arrays),
    "parts": (write_arrays, read_parts),
    "json": (write_json, read_json),
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
            else:  # a byte that means nothing, such as a space of the header
                assert found == value, place
    assert noticed > len(whole)


def test_arrays_of_any_shape_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for array in (
        np.float64(3.5),
        np.empty((0, 3)),
        np.arange(5),
        ARRAY[:, ::2],
        np.asfortranarray(np.ones((3, 2))),
        ARRAY[:1],
    ):
        checked.write_arrays(path, {"a": array})
        stored = checked.read_arrays(path)["a"]
        assert np.array_equal(stored, array)
        assert stored.shape == np.shape(array)


def test_a_file_without_a_checksum_is_not_ours(tmp_path: Path) -> None:
    save_file({"a": ARRAY}, tmp_path / "a.safetensors")
    with pytest.raises(DamagedFileError, match="it carries no checksum"):
        checked.read_arrays(tmp_path / "a.safetensors")
    assert not checked.has_checksum(tmp_path / "a.safetensors")
    (tmp_path / "a.json").write_text('{"score": 1}')
    assert not checked.has_checksum(tmp_path / "a.json")


def test_a_damaged_file_is_named_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers.safetensors"
    assert checked.read_or_discard(path, checked.read_arrays) is None
    path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "layerscope"):
        assert checked.read_or_discard(path, checked.read_arrays) is None
    assert "answers.safetensors is damaged" in caplog.text
    assert "computed again" in caplog.text
    assert not path.exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("name", ["a.safetensors", "a.json"])
def test_what_cannot_be_opened_is_not_discarded(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, or no right to read, say nothing about a file's content."""
    path = tmp_path / name
    read: Any = checked.read_arrays
    if name == "a.json":
        read = checked.read_checked_json
        checked.write_json(path, {"a": 1})
    else:
        checked.write_arrays(path, {"a": np.arange(3)})
    own = Path.open

    def refused(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file) == str(path):
            raise OSError(code, os.strerror(code), str(path))
        return own(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(checked, "safe_open", refused)
        patch.setattr(Path, "open", lambda self, *args, **kwargs: refused(self, *args, **kwargs))
        with pytest.raises(OSError, match=os.strerror(code)):
            checked.read_or_discard(path, read)
    assert checked.read_or_discard(path, read) is not None
