"""Numbers in the columns beside the texts come out of `embed` with all their digits."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.support import Cli

ID = 1234567890123456789
FAR = 4096
"""Rows between the last id and the first decimal are in blocks of `embed` of their own."""


def rows(ids: list[str], file: Path) -> None:
    """Write texts with ids, each as it is spelled in the list."""
    if file.suffix == ".csv":
        lines = ["id,text", *(f"{one},text {i}" for i, one in enumerate(ids))]
    else:
        lines = [f'{{"id": {one}, "text": "text {i}"}}' for i, one in enumerate(ids)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path) -> list[str]:
    return [str(one) for one in pq.read_table(file).column("id").to_pylist()]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([str(ID), str(ID + 1), "0.5"], id="a decimal later"),
        pytest.param([str(ID), "1e-7", "0.50"], id="decimals as they are spelled"),
        pytest.param(["0.5", f"{ID}.25"], id="a decimal of many digits"),
        pytest.param([str(ID), str(10 * ID)], id="more than 64 bits"),
        pytest.param([str(ID), str(ID + 1)], id="ids alone"),
    ],
)
def test_ids_of_nineteen_digits(
    cli: Cli, model_folder: Path, tmp_path: Path, suffix: str, ids: list[str]
) -> None:
    data = tmp_path / f"data{suffix}"
    rows(ids, data)
    assert (
        cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--column", "text").code
        == 0
    )
    assert read(tmp_path / "v.parquet") == ids


def test_a_decimal_in_another_part(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    """The file is written in parts, which have one type each."""
    ids = [*(str(ID + i) for i in range(FAR)), "0.50", "0.25"]
    data = tmp_path / "data.jsonl"
    rows(ids, data)
    ended = cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--max-length", 8)
    assert ended.code == 0, ended.err
    assert read(tmp_path / "v.parquet") == ids


def test_lists_of_ids(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    lines = [f'{{"id": [{ID}], "text": "one"}}', '{"id": [0.5], "text": "other"}']
    data.write_text("\n".join(lines), encoding="utf-8")
    assert (
        cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--column", "text").code
        == 0
    )
    assert str(ID) in read(tmp_path / "v.parquet")[0]


def test_small_numbers_stay_numbers(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    """Scores and counts are numbers in the file that is written, as before."""
    data = tmp_path / "data.jsonl"
    values = [{"text": "one", "score": 1, "count": 3}, {"text": "two", "score": 0.5, "count": 4}]
    data.write_text("\n".join(map(json.dumps, values)), encoding="utf-8")
    assert (
        cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--column", "text").code
        == 0
    )
    table = pq.read_table(tmp_path / "v.parquet")
    assert [str(table.schema.field(name).type) for name in ("score", "count")] == [
        "double",
        "int64",
    ]
    assert table.column("score").to_pylist() == [1.0, 0.5]
