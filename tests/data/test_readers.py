"""Every source of texts, the columns beside them, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerscope.data import load_corpus
from layerscope.data.corpus import TextStream, columns_beside
from layerscope.data.readers import read_rows
from layerscope.errors import DataError
from layerscope.extras import MissingExtraError
from tests.data.workbook import write_workbook

SHAPES = Path(__file__).parents[1] / "fixtures" / "shapes"
CASES: dict[str, dict[str, Any]] = json.loads(
    (SHAPES / "expected.json").read_text(encoding="utf-8")
)
TEXTS = ("first text, with a comma", "zweiter Text: Größe", "third 第三")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows_of(data: Any, **options: Any) -> list[tuple[Any, dict[str, Any]]]:
    return [tuple(row) for row in TextStream(data, **options).rows()]


@pytest.mark.parametrize("name", CASES)
def test_a_shape(name: str) -> None:
    case = CASES[name]
    if case["file"].endswith(".xlsx"):
        pytest.importorskip("python_calamine")
    options = case.get("options", {})
    corpus = load_corpus(SHAPES / case["file"], **options)
    assert list(corpus.texts) == case["texts"]
    assert corpus.name == Path(case["file"]).name
    assert corpus.source["path"] == str(SHAPES / case["file"])
    json.dumps(corpus.source)
    rows = rows_of(SHAPES / case["file"], **options)
    assert [text for text, _ in rows] == case["texts"]
    for column, values in case.get("columns", {}).items():
        cells = [others.get(column) for _, others in rows]
        assert [None if cell is None else str(cell) for cell in cells] == values


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_types_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"n": [1, 2, 3, 4], "body": pa.array([*TEXTS, None], pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    corpus = load_corpus(tmp_path / "t.parquet")
    assert corpus.texts == TEXTS
    assert corpus.dropped == {"null": 1}
    assert corpus.source["column"] == "body"


@pytest.mark.parametrize(
    ("name", "content", "column", "texts"),
    [
        ("t.TXT", "one\u2028still one\x0band on\ntwo", None, ["one\u2028still one\x0band on", "two"]),
        ("export.tsv.csv", "text,id\na b,1\n", "text", ["a b"]),
        ("export.csv.tsv", "text\tid\na b\t1\n", "text", ["a b"]),
        ("t.csv", 'id,text\n1,"a\rb"\n2,hello\n', "text", ["a\rb", "hello"]),
        ("t.csv", "Comment (free; optional)\nhello there\nagain\n", None, ["hello there", "again"]),
        ("t.tsv", "text, all\nhello\nagain\n", None, ["hello", "again"]),
        ("t.csv", '"id","text (a;b)"\n"1","x;y"\n"2","z;w"\n', "text (a;b)", ["x;y", "z;w"]),
        ("t.csv", 'text;score, in\n"one, two, three";1\nfour;2\n', "text", ["one, two, three", "four"]),
        ("t.csv", "text,notes; or none\none,two\nthree,four; five\n", "text", ["one", "three"]),
        ("t.csv", 'text,a; b\n"two\nlines",1\n', "text", ["two\nlines"]),
        ("t.csv", "text\n" + "word " * 40_000 + "\n", None, ["word " * 40_000]),
        ("t.jsonl", '{"doc": {"text": "one"}}\n{"doc": {"text": "two"}}', "doc.text", ["one", "two"]),
    ],
)  # fmt: skip
def test_texts_of_a_file(
    tmp_path: Path, name: str, content: str, column: str | None, texts: list[str]
) -> None:
    assert list(load_corpus(write(tmp_path / name, content), column=column).texts) == texts


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
@pytest.mark.parametrize("quote", ["", '"'])
def test_delimiters(tmp_path: Path, delimiter: str, quote: str) -> None:
    rows = "".join(f"{quote}text number {i} about things{quote}{delimiter}{i}\n" for i in range(3))
    file = write(tmp_path / "t.csv", f"text{delimiter}label\n{rows}")
    corpus = load_corpus(file)
    assert corpus.texts == tuple(f"text number {i} about things" for i in range(3))
    assert corpus.source["delimiter"] == delimiter
    assert read_rows(file)[1][0][1] == {"text": "text number 0 about things", "label": "0"}


def test_cp1252(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", "naïve café\nGröße".encode("cp1252"))
    assert load_corpus(path, encoding="cp1252").texts == ("naïve café", "Größe")


BAD = {
    "not UTF-8": ("t.txt", b"good\nbad \xe9 byte\n", {}, r"0xe9 in line 2.*latin-1.*iconv"),
    "UTF-16": ("t.txt", "abc".encode("utf-16"), {}, "encoding='utf-16'"),
    "wrong encoding": ("t.txt", b"ab\xff\n", {"encoding": "ascii"}, "is not ascii"),
    "unknown encoding": ("t.txt", b"ab", {"encoding": "klingon"}, "unknown encoding 'klingon'"),
    "empty file": ("t.txt", b"", {}, "is empty"),
    "blank lines only": ("t.txt", b"\n  \n\t\n", {}, "no usable text: 3 read .1 empty, 2 whitespace"),
    "suffix": ("t.docx", b"abc", {}, r"'.docx'.*Valid: .txt"),
    "no suffix": ("texts", b"abc", {}, "(none)"),
    "parquet.gz": ("t.parquet.gz", b"abc", {}, "'.parquet.gz'"),
    "column in txt": ("t.txt", b"abc", {"column": "x"}, "no column 'x'"),
    "JSON line": ("t.jsonl", b'{"text": "a"}\n{"text": \n', {}, "line 2 is not valid JSON"),
    "JSON list": ("t.json", b'["a",\n"b"', {}, "line 2 is not valid JSON"),
    "JSON number": ("t.jsonl", b'{"text": "a"}\n{"text": 3}\n', {}, "line 2 is not a string: int 3"),
    "JSON key gone": ("t.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', {}, "line 2 has no 'text'. It has: 'txt'"),
    "JSON mixed": ("t.jsonl", b'{"text": "a"}\n"b"\n', {}, "line 2 is not an object with the key 'text'"),
    "JSON several": ("t.jsonl", b'{"q": "a", "r": "b"}', {}, "2 columns of text.*'q', 'r'"),
    "JSON inside": ("t.jsonl", b'{"doc": {"text": "a"}}', {"column": "doc.txt"}, r"no column 'doc\.txt'"),
    "missing column": ("t.csv", b"review,label\na b,c\n", {"column": "reviews"}, "Did you mean 'review'.*'label'"),
    "CSV several": ("t.csv", b"q,r\na,b\n", {}, "2 columns of text. Name the one to read with column=.*'q', 'r'"),
    "CSV numbers": ("t.csv", b"q,r\n1,2\n", {}, "0 columns of text"),
    "CSV header only": ("t.csv", b"text\n", {}, "no usable text"),
    "CSV names": ("t.csv", b"text,n,n\nsome words,1,2\n", {}, "two columns named 'n'"),
    "CSV ragged": ("t.csv", b"text,n\na,1\na, and b,1\n", {}, "line 3 has 3 fields, the header has 2"),
    "CSV semicolons": ("t.csv", b"text;n\na;1\na; and b;1\n", {}, "line 3 has 3 fields, the header has 2.*hold ';'"),
    "CSV ragged at once": ("t.csv", b"text;n\na; and b;1\n", {}, "line 2 has 3 fields, the header has 2"),
    "CSV quote": ("t.csv", b'text,n\n"a,1\n', {}, "not valid CSV"),
    "not parquet": ("t.parquet", b"plain", {}, "not a readable parquet file"),
    "not gzip": ("t.txt.gz", b"plain", {}, "not a whole gzip file"),
    "half a gzip file": ("t.txt.gz", gzip.compress(b"some text\n" * 1000)[:-12], {}, "not a whole gzip file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    name, content, options, message = BAD[case]
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=r"(?s)" + message):
        load_corpus(tmp_path / name, **options)


def test_parquet_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "a": ["x"], "b": ["y"]}), tmp_path / "t.parquet")
    with pytest.raises(
        DataError, match=r"column 'n' does not hold text\. Columns that do: 'a', 'b'"
    ):
        load_corpus(tmp_path / "t.parquet", column="n")
    with pytest.raises(DataError, match="2 columns of text"):
        load_corpus(tmp_path / "t.parquet")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", "abc")
    path.chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        load_corpus(path)


def test_a_spreadsheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.xlsx", "no spreadsheet")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtraError, match="xlsx"):
        load_corpus(file)
    monkeypatch.undo()
    pytest.importorskip("python_calamine")
    with pytest.raises(DataError, match=r"not a readable \.xlsx file"):
        load_corpus(file)
    rows = [["n", None, "text"], [1, "a note", "some words"], [2], [3, None, "more"]]
    write_workbook(file, rows, [["another"]])
    assert rows_of(file) == [("some words", {"n": 1}), ("more", {"n": 3})]
    write_workbook(file, [["n", "n", "text"], *rows[1:]])
    with pytest.raises(DataError, match="two columns named 'n'"):
        load_corpus(file)


def test_columns_without_a_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text,,\nsome words,1,2\n")
    assert rows_of(file) == [("some words", {"column_2": "1", "column_3": "2"})]


def test_a_folder_of_documents_is_a_text_each(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "one\ntwo")
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "b.md", "# three")
    write(tmp_path / ".hidden.txt", "not this")
    assert rows_of(tmp_path) == [
        ("one\ntwo", {"file": "a.txt"}),
        ("# three", {"file": "deep/b.md"}),
    ]
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "x.csv.gz", "text\na")
    with pytest.raises(DataError, match=r"is a folder without documents.*It holds: x\.csv\.gz\."):
        load_corpus(tmp_path / "other")


def test_tables_of_polars_and_datasets() -> None:
    polars, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    columns = {"n": [1, 2, 3], "body": ["one", None, "two"]}
    for table in (polars.DataFrame(columns), datasets.Dataset.from_dict(columns)):
        assert load_corpus(table).texts == ("one", "two")
        assert rows_of(table) == [("one", {"n": 1}), ("two", {"n": 3})]
    with pytest.raises(DataError, match=r"Give one: dataset\['train'\]"):
        load_corpus(datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)}))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_columns_beside_texts(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": f"text {i}", "topic": "ab"[i % 2], "stars": i / 2} for i in range(30)]
    file = tmp_path / f"reviews.{suffix}"
    table = pd.DataFrame(rows)
    if suffix == "parquet":
        table.to_parquet(file)
    elif suffix == "jsonl":
        file.write_text("".join(json.dumps({**row, "deep": [1]}) + "\n" for row in rows))
    else:
        table.to_csv(file, index=False)
    stream = TextStream(file, column="text")
    assert len(list(stream)) == 30
    columns = columns_beside(stream.source, ["text 5", "text 2", "elsewhere"])
    assert list(columns) == ["topic", "stars"]
    assert columns["topic"] == ["b", "a", None]
    assert [None if x is None else float(x) for x in columns["stars"]] == [2.5, 1.0, None]


def test_no_columns_beside_texts(tmp_path: Path) -> None:
    stream = TextStream(write(tmp_path / "lines.txt", "one text\nanother\n"))
    assert len(list(stream)) == 2
    assert columns_beside(stream.source, ["one text"]) == {}
    broken = write(tmp_path / "broken.jsonl", "{\n")
    for path in (tmp_path / "gone.csv", broken):
        assert columns_beside({"kind": "file", "path": str(path), "column": "text"}, ["a"]) == {}
    bad = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], dtype=np.int32)), pa.py_buffer(b"\xff\xfe")
    )
    pq.write_table(pa.table({"text": ["one text"], "other": bad}), tmp_path / "a.parquet")
    stream = TextStream(tmp_path / "a.parquet", column="text")
    assert list(stream) == ["one text"]
    assert columns_beside(stream.source, ["one text"]) == {}
