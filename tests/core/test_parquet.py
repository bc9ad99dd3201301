"""Parquet files are counted by their pages, whatever their ends say, before anything is
unpacked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerscope.core import bounds
from layerscope.core.parquet import check_parquet, parquet_batches, parquet_parts, weight
from layerscope.data import load_corpus
from layerscope.errors import DataError, LayerscopeError
from tests.liars import Fields, lie, numbered, page, parts, small

LEAST = 2**20
TOO_LARGE = "more than is read of a file of its size"


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_LEAST", LEAST)


def check(path: Path) -> int:
    with pq.ParquetFile(path) as table:
        return check_parquet(table, path)


def fields(*pairs: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in pairs])


def test_what_the_pages_say(tmp_path: Path) -> None:
    """Of an honest file they say what its end does."""
    table = pd.DataFrame(
        {
            "text": [f"text {i}" for i in range(5000)],
            "n": range(5000),
            "s": [{"a": b"x", "b": 1.5}] * 5000,
        }
    )
    file = tmp_path / "a.parquet"
    table.to_parquet(file, row_group_size=700)
    with pq.ParquetFile(file) as opened:
        groups = [opened.metadata.row_group(g) for g in range(opened.metadata.num_row_groups)]
        told = [group.column(c) for group in groups for c in range(opened.metadata.num_columns)]
        found = parquet_parts(opened, file)
    assert [(part.path, part.values) for part in found] == [
        (one.path_in_schema, one.num_values) for one in told
    ]
    heads = [
        one.total_uncompressed_size - part.unpacked for one, part in zip(told, found, strict=True)
    ]  # which the end counts too
    assert min(heads) > 0
    assert max(heads) < 300
    assert [part.numbered for part in found if part.path == "s.a"] == [700] * 7 + [100]


def test_an_end_that_lies_about_sizes(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["a" * 3 * LEAST]}).to_parquet(
        file, compression="zstd", use_dictionary=False
    )
    lie(file, small)
    with pq.ParquetFile(file) as opened:
        assert opened.metadata.row_group(0).column(0).total_uncompressed_size == 10
        assert len(opened.read()["text"][0].as_py()) == 3 * LEAST  # it is a file that can be read
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)
    with pytest.raises(LayerscopeError, match=TOO_LARGE):
        load_corpus(file)


def dictionary_offset(part: Fields) -> None:
    """pyarrow passes over a number of another kind: it begins elsewhere than it seems."""
    part[11, 5] = 4


def twice(part: Fields) -> None:
    part[5, 5] = 1


@pytest.mark.parametrize("change", [dictionary_offset, twice])
def test_an_end_that_means_two_things_is_read_as_pyarrow_does(
    tmp_path: Path, change: Callable[[Fields], None]
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": ["a" * 3 * LEAST]}), file, compression="zstd", use_dictionary=False
    )
    lie(file, small)
    lie(file, lambda footer: change(parts(footer)[0]))
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)


def test_a_page_of_distinct_values_with_an_unusual_head(tmp_path: Path) -> None:
    """Its fields are numbered in another way than pyarrow writes them."""
    file = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["a" * (LEAST // 4)] * 100}).to_parquet(file, compression="zstd")
    page(file, 0, lambda head: None)
    lie(file, small)
    with pq.ParquetFile(file) as opened:
        assert opened.read_row_group(0)["text"][-1].as_py() == "a" * (LEAST // 4)
        assert parquet_parts(opened, file)[0].distinct == LEAST // 4 + 4
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)


def test_lists_of_shared_texts_are_weighed(tmp_path: Path) -> None:
    """One row may hold any number of them: they are counted before any is written out."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tags": [["a" * 1000] * 2000]}), file, compression="zstd")
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)
    pq.write_table(pa.table({"tags": [["a" * 10, "b" * 500] * 100] * 10}), file, compression="zstd")
    assert check(file) > 1000


def test_many_columns_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({f"c{i}": pa.nulls(400_000, pa.int64()) for i in range(200)}),
        file,
        compression="zstd",
    )
    assert file.stat().st_size < 300_000
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)


def test_wide_values_that_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.nulls(100, pa.binary(2**20))}), file)
    with pytest.raises(DataError, match=TOO_LARGE):
        check(file)


def test_more_lengths_than_values(tmp_path: Path) -> None:
    """Thirty bytes for which pyarrow would make room for four billion."""
    file, many = tmp_path / "a.parquet", 2**30
    table = pa.table({"text": ["x", "yy"]}, schema=fields(("text", pa.string())))
    ways = {"text": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(table, file, use_dictionary=False, column_encoding=ways, compression="none")
    assert check(file) > 1000
    body = (
        numbered(many)
        + numbered(1)
        + numbered(many)
        + numbered(2)
        + numbered(0)
        + b"\0"
        + b"x" * 10
    )

    def head(fields: Fields) -> None:
        fields[2, 5] = len(body)

    page(file, 0, head, body)
    with pytest.raises(DataError, match="more lengths than values"):
        check(file)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_lengths_in_every_kind_of_page(tmp_path: Path, version: str, codec: str) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"s": ["abc", None, "d"] * 100, "l": [["a", "b"], [], None] * 100})
    ways = dict.fromkeys(("s", "l.list.element"), "DELTA_LENGTH_BYTE_ARRAY")
    pq.write_table(
        table,
        file,
        use_dictionary=False,
        column_encoding=ways,
        compression=codec,
        data_page_version=version,
    )
    with pq.ParquetFile(file) as opened:
        assert pa.Table.from_batches(parquet_batches(opened, file)) == table


def test_differences_are_refused(tmp_path: Path) -> None:
    """A text may be all of the one before it and one letter more."""
    file = tmp_path / "a.parquet"
    table = pa.table({"text": ["a" * n for n in range(500)]})
    pq.write_table(table, file, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    with pytest.raises(DataError, match="written as differences"):
        load_corpus(file)


@pytest.mark.parametrize("field", [(2, 5), (3, 5)])
def test_sizes_below_nothing(tmp_path: Path, field: tuple[int, int]) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["abc"] * 9}), file, use_dictionary=False)
    page(file, 0, lambda head: head.update({field: -5}))
    with pytest.raises(DataError, match="a size that cannot be"):
        check(file)


def test_parts_that_overlap(tmp_path: Path) -> None:
    """Many descriptions of one place: walking them all would take for ever."""
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({f"c{i}": ["abc" * 2000] * 2 for i in range(30)}),
        file,
        use_dictionary=False,
        compression="none",
    )

    def change(footer: Fields) -> None:
        for part in parts(footer):
            part[9, 6], part[7, 6] = parts(footer)[0][9, 6], parts(footer)[0][7, 6]

    lie(file, change)
    raw = file.read_bytes()
    file.write_bytes(raw[:13_000] + raw[-8 - int.from_bytes(raw[-8:-4], "little") :])
    with pytest.raises(DataError, match="overlap"):
        check(file)


@pytest.mark.parametrize(
    "start",
    [-1, 2**40, 2**63 - 1],
    ids=["before the file", "after the file", "beyond what a disk holds"],
)
def test_offsets_that_cannot_be(tmp_path: Path, start: int) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["abc"] * 9}), file, use_dictionary=False)
    lie(file, lambda footer: parts(footer)[0].update({(9, 6): start}))
    with pytest.raises(DataError, match="is not a readable parquet file") as caught:
        check(file)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "told",
    [
        b"\x19\xf2" + b"\xff\xff\xff\xff\x0f",  # a list of four billion truths, and then nothing
        b"\x18" + b"\xff" * 9 + b"\x01",  # a text of so many bytes that the number does not fit
        b"\x19\x19" * 400,  # lists in lists
        b"\x1c" * 400,
        b"\x15" + b"\xff" * 30,
        b"\x15\x04" * 3 + b"\x05\x02\x04",  # a field that is there twice
    ],
)  # fmt: skip
def test_a_head_that_never_ends(tmp_path: Path, told: bytes) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["abc"] * 9}), file, use_dictionary=False)

    raw = file.read_bytes()
    length = int.from_bytes(raw[-8:-4], "little")
    place = len(raw) - 8 - length
    file.write_bytes(raw[:place] + told + raw[place:])
    lie(file, lambda footer: parts(footer)[0].update({(9, 6): place, (7, 6): len(told)}))
    with pytest.raises(
        DataError, match=r"is not a readable parquet file: .*Write or download it again"
    ) as caught:
        check(file)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_parquet_file_does_not_end_the_process() -> None:
    """pyarrow itself ends it, where a column's description does not fit its statistics."""
    with pytest.raises(LayerscopeError, match="is not a readable parquet file"):
        load_corpus(Path(__file__).parents[1] / "fixtures" / "histogram.parquet", column="text")


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["ab", None, "cdef"]),
        pa.array([["ab"], [], None, ["c", "d"]]),
        pa.array([{"a": "xy", "b": 1}, None]),
        pa.array([[("k", "value")]], pa.map_(pa.string(), pa.string())),
        pa.array([b"0123", b"4567"], pa.binary(4)),
        pa.array([1.5, 2.5]),
    ],
    ids=str,
)  # fmt: skip
def test_the_weight_of_values_is_at_least_theirs(column: pa.Array) -> None:
    assert column.nbytes <= weight(column) <= column.nbytes + 16 * 3 * (len(column) + 3)


def test_shared_values_weigh_as_often_as_they_are_meant() -> None:
    shared = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(50, dtype=np.int32)), pa.array(["a" * 1000])
    )
    assert weight(shared) >= 50_000
    assert weight(pa.ListArray.from_arrays(pa.array([0, 50]), shared)) >= 50_000
    assert weight(pa.array([1, 1, 2]).dictionary_encode()) < 200
    with pytest.raises(DataError, match="cannot be counted"):
        weight(pa.array(["a"], pa.string_view()))
