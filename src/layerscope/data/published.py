"""Files of a hub's datasets, counted before another library unpacks them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from layerscope.core.bounds import check_unpacked
from layerscope.core.parquet import check_parquet
from layerscope.errors import DataError, clean_name, one_line

_PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"]\0\0": lzma.open,
}  # fmt: skip
_STREAMS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
# what only unpacking would tell the size of; the last are streams that begin with something to be
# passed over
_UNCOUNTED = {
    b"7z\xbc\xaf'\x1c": "7z",
    b"Rar!": "rar",
    b"\x89HDF": "HDF5",
    b"VTXF": "Vortex",
    b"TsFile": "TsFile",
}
_UNCOUNTED |= {bytes([0x50 + number]) + b"\x2a\x4d\x18": "zstd or lz4" for number in range(16)}
# files that are unpacked in their turn where they lie in an archive
_INNER = (
    ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lzma", ".zst", ".lz4", ".zip", ".tar", ".7z", ".rar", ".parquet",
    ".geoparquet", ".gpq", ".arrow", ".h5", ".hdf5", ".lance", ".tsfile", ".vortex", ".npz", ".pt", ".pth",
)  # fmt: skip


def check_published(path: os.PathLike[str]) -> None:
    """Refuse a file of a dataset, before another library unpacks it, that takes more than its size
    allows.

    A file can be of several kinds at once: it is held to the bound as each of them."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with open(path, "rb") as stream:
        start = stream.read(8)
        stream.seek(-min(8, stream.seek(0, os.SEEK_END)), os.SEEK_END)
        end = stream.read()
    uncounted = [kind for magic, kind in _UNCOUNTED.items() if start.startswith(magic)] + [
        "Lance"
    ] * (end[-4:] == b"LANC")
    if uncounted:
        raise DataError(
            f"{path} is packed as {uncounted[0]}, which layerscope does not unpack. Unpack it, and give its files."
        )
    if end[-6:] == b"ARROW1" or start[:4] == b"\xff" * 4 or str(path).endswith(".arrow"):
        raise DataError(
            f"{path} is an Arrow file, and what it unpacks to cannot be counted. Read the dataset with `datasets`, and give that."
        )
    try:
        if end[-4:] == b"PAR1":
            with parquet.ParquetFile(path) as table:
                check_parquet(table, path)
        for magic in (*_PACKED, *_STREAMS):
            if start.startswith(magic):
                _check_packed(path, magic)
        if zipfile.is_zipfile(path):  # with other bytes before it, too
            with zipfile.ZipFile(
                path
            ) as archive:  # reading a member ends at the size that it declares
                _check_members(
                    path, ((one.filename, one.file_size, True) for one in archive.infolist())
                )
        elif str(path).endswith(".zip"):
            raise DataError(f"{path} is not a zip file. Download it again.")
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                _check_members(path, _tar_members(archive))
    except (
        pa.ArrowException, OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError
    ) as error:  # fmt: skip
        raise DataError(
            f"{path} is damaged, or not whole ({one_line(str(error))}). Download it again."
        ) from error


def _check_packed(path: os.PathLike[str], magic: bytes) -> None:
    """Unpack a stream to count it: nothing in it says how much it holds."""
    import pyarrow as pa

    size, unpacked = os.stat(path).st_size, 0
    with (
        _PACKED[magic](path)
        if magic in _PACKED
        else pa.input_stream(str(path), compression=_STREAMS[magic]) as stream
    ):
        while part := stream.read(2**20):
            unpacked += len(part)
            check_unpacked(unpacked, size, path)


def _tar_members(archive: tarfile.TarFile) -> Iterator[tuple[str, int, bool]]:
    while (one := archive.next()) is not None:
        vars(archive)["members"].clear()  # it would keep them all
        yield one.name, one.size, one.isreg() or one.isdir()


def _check_members(path: os.PathLike[str], members: Iterator[tuple[str, int, bool]]) -> None:
    """Names, sizes (of a file with holes: with them) and whether they are files or folders."""
    size, unpacked = os.stat(path).st_size, 0
    for name, length, plain in members:
        if not plain or name.lower().endswith(_INNER):
            what = "is packed itself" if plain else "is a link, a pipe or a device"
            raise DataError(
                f"{path} holds {clean_name(name)!r}, which {what}. Unpack it, and give its files."
            )
        unpacked += max(0, length)
        check_unpacked(unpacked, size, path)
