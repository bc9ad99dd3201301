"""What people have: folders of documents, nested JSON, tables in memory, spreadsheets,
addresses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from layerscope.data import load_corpus
from layerscope.data.corpus import TextStream
from layerscope.errors import DataError
from layerscope.extras import MissingExtraError
from tests.data.workbook import write_workbook


def test_a_folder_of_documents_is_a_text_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.md").write_text("# three")
    (tmp_path / ".hidden.txt").write_text("not this")
    assert load_corpus(tmp_path).texts == ("one\ntwo", "# three")
    assert [row.others for row in TextStream(tmp_path).rows()] == [
        {"file": "a.txt"},
        {"file": "deep/b.md"},
    ]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.csv").write_text("text\na")
    with pytest.raises(DataError, match=r"without documents.*It holds: x\.csv"):
        load_corpus(tmp_path / "other")


def test_a_text_inside_an_object(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        "\n".join(json.dumps({"doc": {"text": text}, "id": 1}) for text in ("one", "two"))
    )
    assert load_corpus(file, column="doc.text").texts == ("one", "two")
    with pytest.raises(DataError, match=r"no column 'doc\.txt'"):
        load_corpus(file, column="doc.txt")


def test_tables_of_polars_and_datasets() -> None:
    polars, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    columns = {"n": [1, 2, 3], "body": ["one", None, "two"]}
    for table in (polars.DataFrame(columns), datasets.Dataset.from_dict(columns)):
        assert load_corpus(table).texts == ("one", "two")
        assert [row.others for row in TextStream(table).rows()] == [{"n": 1}, {"n": 3}]
    with pytest.raises(DataError, match=r"Give one: dataset\['train'\]"):
        load_corpus(datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)}))


def test_an_address_is_a_clear_no() -> None:
    with pytest.raises(
        DataError, match=r"nothing is downloaded.*curl -LO https://x\.org/a\.csv.*give a\.csv"
    ):
        load_corpus("https://x.org/a.csv")


def test_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café\nthé".encode("latin-1"))
    assert load_corpus(tmp_path / "a.txt", encoding="latin-1").texts == ("café", "thé")


def test_a_spreadsheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.xlsx"
    file.write_bytes(b"no spreadsheet")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtraError, match="xlsx"):
        load_corpus(file)
    monkeypatch.undo()
    pytest.importorskip("python_calamine")
    with pytest.raises(DataError, match=r"not a readable \.xlsx file"):
        load_corpus(file)
    write_workbook(file, [["id", "comment"], [1, "one"], [2, None], [3, "two"]], [["another"]])
    assert load_corpus(file).texts == ("one", "two")
    assert [row.others for row in TextStream(file).rows()] == [{"id": 1}, {"id": 3}]
