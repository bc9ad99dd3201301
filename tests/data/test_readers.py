"""Every file format, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerscope.data import load_corpus
from layerscope.data.corpus import TextStream
from layerscope.data.readers import read_rows
from layerscope.errors import DataError
from tests.data.workbook import write_workbook

TEXTS = ("first text, with a comma", "zweiter Text: Größe", "third 第三")


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


FORMATS = {
    "a.txt": "\n".join(TEXTS),
    "b.txt.gz": "\n".join(TEXTS) + "\n",
    "crlf.TXT": "\r\n".join(TEXTS) + "\r\n",
    "bom.txt": "\ufeff" + "\n".join(TEXTS),
    "c.jsonl": "\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(TEXTS)),
    "d.jsonl.gz": "\n".join(json.dumps(t) for t in TEXTS),
    "e.json": "\n".join(json.dumps({"body": t}) for t in TEXTS),
    "list.json": json.dumps([{"content": t, "title": "x"} for t in TEXTS], indent=1),
    "strings.json": json.dumps(TEXTS),
    "f.csv": "id,score,body\n" + "\n".join(f'{i},0.{i},"{t}"' for i, t in enumerate(TEXTS)),
    "g.csv.gz": "\ufeffsentence,label\n" + "\n".join(f'"{t}",good' for t in TEXTS),
    "h.tsv": "Text\tlabel\n" + "\n".join(f"{t}\tgood" for t in TEXTS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(tmp_path: Path, name: str) -> None:
    corpus = load_corpus(write(tmp_path / name, FORMATS[name]))
    assert corpus.texts == TEXTS
    assert corpus.dropped == {}
    assert corpus.name == name
    assert corpus.source["kind"] == "file"
    assert corpus.source["path"] == str(tmp_path / name)
    json.dumps(corpus.source)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"n": [1, 2, 3, 4], "body": pa.array([*TEXTS, None], pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    corpus = load_corpus(str(tmp_path / "t.parquet"))
    assert corpus.texts == TEXTS
    assert corpus.dropped == {"null": 1}
    assert corpus.source["column"] == "body"


def test_parquet_written_by_pandas(tmp_path: Path) -> None:
    pd.DataFrame({"a": TEXTS, "b": TEXTS[::-1]}).to_parquet(tmp_path / "t.parquet")
    assert load_corpus(tmp_path / "t.parquet", column="b").texts == TEXTS[::-1]


def test_the_last_ending_says_what_separates_columns(tmp_path: Path) -> None:
    (tmp_path / "export.tsv.csv").write_text("text,id\na b,1\n")
    (tmp_path / "export.csv.tsv").write_text("text\tid\na b\t1\n")
    assert [
        load_corpus(tmp_path / name, column="text").texts
        for name in ("export.tsv.csv", "export.csv.tsv")
    ] == [("a b",)] * 2


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path / "t.txt", "one\u2028still one\x0band on\ntwo"))
    assert corpus.texts == ("one\u2028still one\x0band on", "two")


@pytest.mark.parametrize(
    ("name", "content", "column", "found"),
    [
        ("t.csv", 'id,text\n1,"a\rb"\n2,hello\n', "text", ["a\rb", "hello"]),
        ("t.csv", "Comment (free; optional)\nhello there\nagain\n", None, ["hello there", "again"]),
        ("t.tsv", "text, all\nhello\nagain\n", None, ["hello", "again"]),
        ("t.csv", '"id","text (a;b)"\n"1","x;y"\n"2","z;w"\n', "text (a;b)", ["x;y", "z;w"]),
    ],
)
def test_marks_in_a_header_or_in_quotes_separate_nothing(
    tmp_path: Path, name: str, content: str, column: str | None, found: list[str]
) -> None:
    assert list(load_corpus(write(tmp_path / name, content), column=column).texts) == found


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
@pytest.mark.parametrize("quote", ["", '"'])
def test_csv_fields_may_be_separated_otherwise(tmp_path: Path, delimiter: str, quote: str) -> None:
    rows = "".join(f"{quote}text number {i} about things{quote}{delimiter}{i}\n" for i in range(3))
    file = write(tmp_path / "t.csv", f"text{delimiter}label\n{rows}")
    corpus = load_corpus(file)
    assert corpus.texts == tuple(f"text number {i} about things" for i in range(3))
    assert corpus.source["delimiter"] == delimiter
    assert read_rows(file)[1][0][1] == {"text": "text number 0 about things", "label": "0"}


def test_rows_tell_where_several_could_separate_the_header(tmp_path: Path) -> None:
    read = [
        write(tmp_path / "a.csv", 'text;score, in points\n"one, two, three";1\nfour;2\n'),
        write(tmp_path / "b.csv", "text,notes; or none\none,two\nthree,four; five\n"),
    ]
    assert [load_corpus(file, column="text").texts for file in read] == [
        ("one, two, three", "four"),
        ("one", "three"),
    ]


def test_csv_fields_may_hold_newlines_and_be_long(tmp_path: Path) -> None:
    long = "word " * 40_000
    corpus = load_corpus(write(tmp_path / "t.csv", f'text\n"two\nlines"\n"{long}"\n'))
    assert corpus.texts == ("two\nlines", long)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "t.txt", "naïve café\nGröße".encode(encoding))
    assert load_corpus(path, encoding=encoding).texts == ("naïve café", "Größe")


BAD = {
    "not UTF-8": (
        "t.txt",
        b"good\nbad \xe9 byte\n",
        {},
        r"0xe9 in line 2.*latin-1.*iconv -f LATIN-1",
    ),
    "UTF-16": ("t.txt", "abc".encode("utf-16"), {}, "encoding='utf-16'"),
    "wrong encoding": ("t.txt", b"ab\xff\n", {"encoding": "ascii"}, "is not ascii"),
    "unknown encoding": ("t.txt", b"ab", {"encoding": "klingon"}, "unknown encoding 'klingon'"),
    "empty file": ("t.txt", b"", {}, "is empty"),
    "blank lines only": (
        "t.txt",
        b"\n  \n\t\n",
        {},
        "no usable text: 3 read .1 empty, 2 whitespace",
    ),
    "suffix": ("t.docx", b"abc", {}, r"'.docx'.*Valid: .txt"),
    "no suffix": ("texts", b"abc", {}, "(none)"),
    "parquet.gz": ("t.parquet.gz", b"abc", {}, "'.parquet.gz'"),
    "column in txt": ("t.txt", b"abc", {"column": "x"}, "no column 'x'"),
    "JSON line": ("t.jsonl", b'{"text": "a"}\n{"text": \n', {}, "line 2 is not valid JSON"),
    "JSON list": ("t.json", b'["a",\n"b"', {}, "line 2 is not valid JSON"),
    "JSON number": (
        "t.jsonl",
        b'{"text": "a"}\n{"text": 3}\n',
        {},
        "line 2 is not a string: int 3",
    ),
    "JSON key gone": (
        "t.jsonl",
        b'{"text": "a"}\n{"txt": "b"}\n',
        {},
        "line 2 has no 'text'. It has: 'txt'",
    ),
    "JSON mixed": (
        "t.jsonl",
        b'{"text": "a"}\n"b"\n',
        {},
        "line 2 is not an object with the key 'text'",
    ),
    "JSON surrogate": (
        "t.jsonl",
        rb'"ok \ud800"',
        {},
        "line 1 is not valid Unicode: lone surrogate",
    ),
    "JSON several": ("t.jsonl", b'{"q": "a", "r": "b"}', {}, "2 columns of text.*'q', 'r'"),
    "missing column": (
        "t.csv",
        b"review,label\na b,c\n",
        {"column": "reviews"},
        "Did you mean 'review'.*'label'",
    ),
    "CSV several": (
        "t.csv",
        b"q,r\na,b\n",
        {},
        "2 columns of text. Name the one to read with column=.*'q', 'r'",
    ),
    "CSV numbers": ("t.csv", b"q,r\n1,2\n", {}, "no column of text"),
    "CSV header only": ("t.csv", b"text\n", {}, "no usable text"),
    "CSV ragged": (
        "t.csv",
        b"text,n\na,1\na, and b,1\n",
        {},
        "line 3 has 3 fields, the header has 2",
    ),
    "CSV semicolons": (
        "t.csv",
        b"text;n\na;1\na; and b;1\n",
        {},
        "line 3 has 3 fields, the header has 2.*hold ';'",
    ),
    "CSV doubtful": ("t.csv", b"text;n,m\na;1,2\n", {}, "may be separated by ',' or by ';'"),
    "CSV quote": ("t.csv", b'text,n\n"a,1\n', {}, "not valid CSV"),
    "not parquet": ("t.parquet", b"plain", {}, "not a readable parquet file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    name, content, options, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"(?s)" + message):
        load_corpus(tmp_path / name, **options)


def test_broken_gzip(tmp_path: Path) -> None:
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"some text\n" * 1000)[:-12])
    with pytest.raises(DataError, match="not a whole gzip file"):
        load_corpus(tmp_path / "t.txt.gz")
    (tmp_path / "t.txt.gz").write_bytes(b"plain")
    with pytest.raises(DataError, match="not a whole gzip file"):
        load_corpus(tmp_path / "t.txt.gz")


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


def test_columns_keep_their_places_and_their_names(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [["n", None, "text"], [1, "a note", "some words"], [2], [3, None, "more"]]
    write_workbook(tmp_path / "a.xlsx", rows)
    assert list(TextStream(tmp_path / "a.xlsx").rows()) == [
        ("some words", {"n": 1}),
        ("more", {"n": 3}),
    ]
    file = write(tmp_path / "a.csv", "text,,\nsome words,1,2\n")
    assert list(TextStream(file).rows()) == [("some words", {"column_2": "1", "column_3": "2"})]
    write_workbook(tmp_path / "b.xlsx", [["n", "n", "text"], *rows[1:]])
    for file in (tmp_path / "b.xlsx", write(tmp_path / "b.csv", "text,n,n\nsome words,1,2\n")):
        with pytest.raises(DataError, match="two columns named 'n'"):
            load_corpus(file)


def test_documents_of_an_unknown_encoding(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "some words")
    with pytest.raises(DataError, match="unknown encoding 'klingon'"):
        load_corpus(tmp_path, encoding="klingon")
