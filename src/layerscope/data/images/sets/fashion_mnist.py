"""Fashion-MNIST: 70,000 pictures of clothes, 28 × 28; the original files, from a Debian package that carries them.

The package is only a container here: nothing in it is installed.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

import numpy as np

from layerscope.cache import cache_dir
from layerscope.data.images.sets.base import ImageSetEntry
from layerscope.data.images.sets.debian import open_deb
from layerscope.errors import DataError, DownloadError, OfflineError
from layerscope.packages import fetch_bytes, sha256_of

VERSION = "0.0~git20200523.55506a9-1"
_PACKAGE = f"pool/main/d/dataset-fashion-mnist/dataset-fashion-mnist_{VERSION}_all.deb"
URLS = (f"http://deb.debian.org/debian/{_PACKAGE}", f"https://snapshot.debian.org/archive/debian/20250520T000000Z/{_PACKAGE}")
SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
FILES = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
_PREFIX = {"train": "train", "test": "t10k"}
_INSIDE = "usr/share/datasets/fashion-mnist"


def folder() -> Path:
    """Where the files are kept."""
    return cache_dir() / "images" / f"fashion-mnist-{VERSION}"


def is_cached() -> bool:
    """Whether all files are there and are the right ones."""
    return all((folder() / name).is_file() and sha256_of(folder() / name) == digest for name, digest in FILES.items())


def fetch() -> Path:
    """Fetch what is not there; a file appears only once it is checked."""
    target = folder()
    if is_cached():
        return target
    data = fetch_bytes(URLS, SHA256)
    target.mkdir(parents=True, exist_ok=True)
    with open_deb(data) as archive, tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as scratch:
        for name, digest in FILES.items():
            member = archive.extractfile(f"./{_INSIDE}/{name}")
            if member is None:
                raise DownloadError(f"the package of Fashion-MNIST holds no file {name}.")
            path = Path(scratch) / name
            path.write_bytes(member.read())
            if sha256_of(path) != digest:
                raise DownloadError(f"{name} in the package of Fashion-MNIST is not the expected file.")
        for name in FILES:
            os.replace(Path(scratch) / name, target / name)
    return target


def read(split: str, offline: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """`train` (60,000) or `test` (10,000)."""
    if not is_cached():
        if offline:
            raise OfflineError(
                f"fashion-mnist is not in the cache ({folder()}), and downloads are off. "
                "Run `layerscope fetch fashion-mnist` while online."
            )
        fetch()
    prefix = _PREFIX[split]
    images = read_idx(folder() / f"{prefix}-images-idx3-ubyte.gz")
    return images, read_idx(folder() / f"{prefix}-labels-idx1-ubyte.gz").astype(np.int64)


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in MNIST's format: a magic number with the count of dimensions, their sizes, the values."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes.")
    dimensions = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


ENTRY = ImageSetEntry(
    name="fashion-mnist",
    summary="70,000 pictures of clothes, 28 × 28, grey, 10 classes (train 60,000; test 10,000)",
    licence="MIT",
    citation="Xiao, Rasul & Vollgraf (2017), Fashion-MNIST, arXiv 1708.07747",
    version=f"Debian dataset-fashion-mnist {VERSION}",
    splits=("train", "test"),
    classes=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    read=read,
    is_cached=is_cached,
    fetch=fetch,
)
