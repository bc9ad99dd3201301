"""Fashion-MNIST: 70,000 pictures of clothes, 28 × 28, in the original files from a Debian package.
Nothing in the package is installed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from layerscope.errors import DataError
from layerscope_media import ImageSetEntry
from layerscope_zoo.origins import File, Published
from layerscope_zoo.packages import Package

_FASHION_VERSION = "0.0~git20200523.55506a9-1"
_FASHION_FILE = (
    f"pool/main/d/dataset-fashion-mnist/dataset-fashion-mnist_{_FASHION_VERSION}_all.deb"
)
_FASHION_PACKAGE = Package(
    "Debian dataset-fashion-mnist",
    _FASHION_VERSION,
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    urls=(
        f"http://deb.debian.org/debian/{_FASHION_FILE}",
        f"https://snapshot.debian.org/archive/debian/20250520T000000Z/{_FASHION_FILE}",
    ),
)
_FASHION_FILES = {
    "train-images-idx3-ubyte": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
_FASHION_PREFIX = {"train": "train", "test": "t10k"}
_FASHION_INSIDE = "usr/share/datasets/fashion-mnist"


def _read_fashion(split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of `train` (60,000) or `test` (10,000)."""
    prefix = _FASHION_PREFIX[split]
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    return images, read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz").astype(np.int64)


def read_idx(path: Path) -> np.ndarray:
    """Read an array of bytes in MNIST's format: a magic number with the number of dimensions, their
    sizes, and the values."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes.")
    dimensions = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


FASHION_MNIST = ImageSetEntry(
    name="fashion-mnist",
    summary="70,000 pictures of clothes, 28 × 28, gray, 10 classes (train 60,000; test 10,000)",
    license="MIT",
    citation="Xiao, Rasul & Vollgraf (2017), Fashion-MNIST, arXiv 1708.07747",
    origin=Published(
        tuple(
            File.inside(_FASHION_PACKAGE, f"{_FASHION_INSIDE}/{name}.gz", sha256)
            for name, sha256 in _FASHION_FILES.items()
        )
    ),
    splits=("train", "test"),
    classes=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    read=_read_fashion,
)
