"""The other columns of a file, for the texts on a map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerscope.data.corpus import TextStream, columns_beside

ROWS = [{"text": f"text {i}", "topic": ["a", "b"][i % 2], "stars": i / 2} for i in range(30)]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_of_every_format(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"reviews.{suffix}"
    table = pd.DataFrame(ROWS)
    if suffix == "parquet":
        table.to_parquet(file)
    elif suffix == "jsonl":
        file.write_text("".join(json.dumps({**row, "deep": [1]}) + "\n" for row in ROWS))
    else:
        table.to_csv(file, index=False, sep="," if suffix == "csv" else "\t")
    stream = TextStream(file, column="text")
    assert len(list(stream)) == 30
    found = columns_beside(stream.source, ["text 5", "text 2", "elsewhere"])
    assert list(found) == ["topic", "stars"]
    assert found["topic"] == ["b", "a", None]
    assert [None if value is None else float(value) for value in found["stars"]] == [2.5, 1.0, None]


def test_what_is_no_table_has_no_columns(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("one text\nanother\n")
    stream = TextStream(file)
    list(stream)
    assert columns_beside(stream.source, ["one text"]) == {}
    assert columns_beside({}, ["one text"]) == {}
    assert (
        columns_beside(
            {"kind": "file", "path": str(tmp_path / "gone.csv"), "format": "csv", "column": "text"},
            [],
        )
        == {}
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{\n")
    assert (
        columns_beside(
            {"kind": "file", "path": str(broken), "format": "jsonl", "column": "text"}, ["a"]
        )
        == {}
    )


def test_other_columns_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    bad = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], dtype=np.int32)), pa.py_buffer(b"\xff\xfe")
    )
    pq.write_table(pa.table({"text": ["one text"], "other": bad}), tmp_path / "a.parquet")
    stream = TextStream(tmp_path / "a.parquet", column="text")
    assert list(stream) == ["one text"]
    assert columns_beside(stream.source, ["one text"]) == {}
