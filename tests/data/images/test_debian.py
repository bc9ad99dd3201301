"""Files out of a Debian package, and MNIST's format."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layerscope.data.images.sets import debian, fashion_mnist
from layerscope.errors import DataError, DownloadError


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
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def idx(values: np.ndarray) -> bytes:
    head = b"\0\0\x08" + bytes([values.ndim]) + b"".join(struct.pack(">I", n) for n in values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, np.ndarray]:
    """A package with four small files in place of the real one, served from memory."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte.gz": rng.integers(0, 256, (5, 28, 28)), "train-labels-idx1-ubyte.gz": np.arange(5),
        "t10k-images-idx3-ubyte.gz": rng.integers(0, 256, (3, 28, 28)), "t10k-labels-idx1-ubyte.gz": np.arange(3),
    }  # fmt: skip
    files = {name: idx(values) for name, values in arrays.items()}
    data = package({f"usr/share/datasets/fashion-mnist/{name}": content for name, content in files.items()})
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(fashion_mnist, "SHA256", hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(fashion_mnist, "FILES", {name: hashlib.sha256(c).hexdigest() for name, c in files.items()})
    path = tmp_path / "some.deb"
    path.write_bytes(data)
    monkeypatch.setattr(fashion_mnist, "URLS", ((tmp_path / "gone.deb").as_uri(), path.as_uri()))
    return arrays


def test_fetched_checked_and_kept(small: dict[str, np.ndarray], tmp_path: Path) -> None:
    images, labels = fashion_mnist.read("test")
    np.testing.assert_array_equal(images, small["t10k-images-idx3-ubyte.gz"])
    assert labels.tolist() == [0, 1, 2]
    (tmp_path / "some.deb").unlink()
    assert len(fashion_mnist.read("train", offline=True)[0]) == 5
    assert not list(fashion_mnist.folder().glob(".fetch-*"))


def test_a_changed_file_in_the_cache_is_fetched_again(small: dict[str, np.ndarray]) -> None:
    fashion_mnist.fetch()
    held = fashion_mnist.folder() / "train-labels-idx1-ubyte.gz"
    held.write_bytes(b"changed")
    assert not fashion_mnist.is_cached()
    fashion_mnist.fetch()
    assert fashion_mnist.is_cached()


def test_what_is_not_expected_is_refused(small: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fashion_mnist, "SHA256", "0" * 64)
    with pytest.raises(DownloadError, match="sha256 expected 0000"):
        fashion_mnist.fetch()
    assert not fashion_mnist.is_cached()
    with pytest.raises(DownloadError, match="not a Debian package"), debian.open_deb(b"something else"):
        pass
    with pytest.raises(DownloadError, match="holds no data"), debian.open_deb(b"!<arch>\n"):
        pass
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(b"not idx"))
    with pytest.raises(DataError, match="not an idx file"):
        fashion_mnist.read_idx(other)
