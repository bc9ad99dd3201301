"""Files of a hub's datasets: what they unpack to is counted before another library does, or they
are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from layerscope.core import bounds
from layerscope.data.published import check_published
from layerscope.errors import DataError
from tests.liars import lie, small

LEAST = 2**20
TOO_LARGE = "more than is read of a file of its size"
LINES = b'{"text": "the same words"}\n' * 100


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_LEAST", LEAST)


def refused(file: Path, why: str = TOO_LARGE) -> None:
    with pytest.raises(DataError, match=why) as caught:
        check_published(file)
    assert len(str(caught.value).splitlines()) == 1


def zipped(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = (
        size,
        kind,
        "other.jsonl" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else "",
    )
    return info


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lzma.compress, lambda raw: lzma.compress(raw, lzma.FORMAT_ALONE)],
)
def test_packed_streams(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a").write_bytes(pack(LINES))
    check_published(tmp_path / "a")
    (tmp_path / "a").write_bytes(pack(b"a" * 3 * LEAST))
    refused(tmp_path / "a")
    (tmp_path / "a").write_bytes(pack(np.random.default_rng(0).bytes(2000))[:-500])
    refused(tmp_path / "a", "damaged, or not whole")


def test_zeros_after_a_gzip_file_are_no_content(tmp_path: Path) -> None:
    """Tapes and some tools fill the last block with them."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES) + bytes(512))
    check_published(tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize(
    "start",
    [
        b"7z\xbc\xaf'\x1c\0\4",
        b"Rar!\x1a\x07\0",
        b"Rar!\x1a\x07\1\0",
        b"\x89HDF\r\n\x1a\n",
        b"\x50\x2a\x4d\x18",
        b"VTXF",
    ],
)
def test_what_cannot_be_counted_is_refused(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "a").write_bytes(start + bytes(100))
    refused(tmp_path / "a", "which layerscope does not unpack")


def test_a_file_with_holes_in_an_archive_counts_with_them(tmp_path: Path) -> None:
    """As GNU tar writes one: a map of what is there, and the size with the holes."""
    info = member("a.jsonl", 512, tarfile.GNUTYPE_SPARSE)
    raw = bytearray(tarred(info, content=b"a" * 512))
    told = b"%011o\0%011o\0" % (0, 512)
    raw[386 : 386 + len(told)] = told
    raw[483:495] = b"%011o\0" % (2**30)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    (tmp_path / "a.tar").write_bytes(raw)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.next().size == 2**30  # type: ignore[union-attr]
    refused(tmp_path / "a.tar")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(raw))
    refused(tmp_path / "a.tar.gz")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_archives_hold_files_and_folders_only(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(
        tarred(member("inner", 0, tarfile.DIRTYPE), member("b.jsonl", len(LINES)), content=LINES)
    )
    check_published(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(tarred(member("a.jsonl", 0, kind)))
    refused(tmp_path / "a.tar", "'a.jsonl', which is a link, a pipe or a device")


@pytest.mark.parametrize("name", ["a.csv.gz", "A.PARQUET", "b.arrow", "c.zip", "d.npz"])
def test_packed_files_in_archives_are_refused(tmp_path: Path, name: str) -> None:
    """What they hold in their turn is unpacked too, by their names."""
    (tmp_path / "a.zip").write_bytes(zipped((name, b"x"), ("b.txt", b"y")))
    refused(tmp_path / "a.zip", "which is packed itself")
    (tmp_path / "a.tar").write_bytes(tarred(member(name)))
    refused(tmp_path / "a.tar", "which is packed itself")
    (tmp_path / "a.zip").write_bytes(zipped(("b\x1b[31m.gz", b"x")))
    with pytest.raises(DataError) as caught:
        check_published(tmp_path / "a.zip")
    assert "\x1b" not in str(caught.value)


def test_a_zip_with_bytes_before_it_is_counted(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n' + zipped(("a.jsonl", b"0" * 5 * LEAST)))
    refused(tmp_path / "rows.jsonl")
    (tmp_path / "a.zip").write_bytes(LINES)
    refused(tmp_path / "a.zip", "not a zip file")


def test_a_parquet_file_whose_end_lies(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a" * 3 * LEAST]}).to_parquet(
        tmp_path / "a.parquet", compression="zstd", use_dictionary=False
    )
    lie(tmp_path / "a.parquet", small)
    refused(tmp_path / "a.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(b"####" + raw[4:])  # no reader looks at the beginning
    refused(tmp_path / "a.parquet")


@pytest.mark.parametrize("write", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_are_refused(tmp_path: Path, write: Callable[..., Any]) -> None:
    table = pa.table({"text": ["a" * 100]})
    for name in ("a.arrow", "b.zip"):  # a name under which the library reads it, too
        with write(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
        refused(tmp_path / name, "is an Arrow file.* Read the dataset with `datasets`")


def test_texts_that_are_no_file_of_any_kind(tmp_path: Path) -> None:
    for raw in (b"", b"a", LINES, b"\0" * 600, b"PK", b"text,label\na,b\n"):
        (tmp_path / "a.txt").write_bytes(raw)
        check_published(tmp_path / "a.txt")
