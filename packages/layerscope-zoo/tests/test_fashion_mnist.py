"""Files out of a Debian package, and MNIST's format."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from layerscope_zoo.fashion_mnist import FASHION_MNIST, read_idx
from layerscope_zoo.origins import File, Published
from layerscope_zoo.packages import Package, extract_members, fetch_package

from layerscope.errors import DataError, DownloadError
from layerscope_media import ImageSetEntry

INSIDE = "usr/share/datasets/fashion-mnist"


@dataclass(frozen=True)
class Small:
    """A small Fashion-MNIST, its package, what it holds, and the file that is fetched."""

    entry: ImageSetEntry
    package: Package
    arrays: dict[str, np.ndarray]
    file: Path


def package(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:xz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": held.getvalue()}
    out = b"!<arch>\n"
    for name, data in members.items():
        out += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
            + data
            + b"\n" * (len(data) % 2)
        )
    return out


def idx(values: np.ndarray) -> bytes:
    head = b"\0\0\x08" + bytes([values.ndim]) + b"".join(struct.pack(">I", n) for n in values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Small:
    """A package with four small files in place of the real one, served from a file beside an
    address that has nothing."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte.gz": rng.integers(0, 256, (5, 28, 28)), "train-labels-idx1-ubyte.gz": np.arange(5),
        "t10k-images-idx3-ubyte.gz": rng.integers(0, 256, (3, 28, 28)), "t10k-labels-idx1-ubyte.gz": np.arange(3),
    }  # fmt: skip
    files = {name: idx(values) for name, values in arrays.items()}
    data = package({f"{INSIDE}/{name}": content for name, content in files.items()})
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "some.deb"
    path.write_bytes(data)
    debian = Package(
        "some",
        "1",
        hashlib.sha256(data).hexdigest(),
        urls=((tmp_path / "gone.deb").as_uri(), path.as_uri()),
    )
    found = tuple(
        File.inside(debian, f"{INSIDE}/{name}", hashlib.sha256(c).hexdigest())
        for name, c in files.items()
    )
    return Small(replace(FASHION_MNIST, origin=Published(found)), debian, arrays, path)


def test_fetched_checked_and_kept(small: Small) -> None:
    images, labels = small.entry.read("test", small.entry.fetch())
    np.testing.assert_array_equal(images, small.arrays["t10k-images-idx3-ubyte.gz"])
    assert labels.tolist() == [0, 1, 2]
    small.file.unlink()
    assert len(small.entry.read("train", small.entry.fetch())[0]) == 5
    assert not list(small.entry.path.glob(".fetch-*"))


def test_a_changed_file_in_the_cache_is_fetched_again(small: Small) -> None:
    small.entry.fetch()
    (small.entry.path / "train-labels-idx1-ubyte.gz").write_bytes(b"changed")
    assert not small.entry.is_cached()
    small.entry.fetch()
    assert small.entry.is_cached()


def test_what_is_not_expected_is_refused(small: Small, tmp_path: Path) -> None:
    wrong = replace(small.package, sha256="0" * 64)
    with pytest.raises(DownloadError, match="sha256 expected 0000"):
        fetch_package(wrong, tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []
    small.file.write_bytes(b"!<arch>\n")
    with pytest.raises(DownloadError, match="has no data"):
        extract_members(small.file, {"a": "a"}, tmp_path / "out")
    small.file.write_bytes(b"something else")
    with pytest.raises(DownloadError, match="not a readable package"):
        extract_members(small.file, {"a": "a"}, tmp_path / "out")
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(b"not idx"))
    with pytest.raises(DataError, match="not an idx file"):
        read_idx(other)
