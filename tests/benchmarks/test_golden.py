"""The comparison with golden tables: what it finds equal, and what it reports."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import golden
import pytest

TABLE: dict[str, Any] = {
    "cpu_seconds": 1.0,
    "commit": "none",
    "numbers": {"rankme value": {"layer 0": 2.5, "layer 1": 400.0, "layer 2": None}},
    "choices": {"select": {"layer": "1", "readout": "plain/mean"}},
}


def changed(part: str, group: str, key: str, value: Any) -> dict[str, Any]:
    table = copy.deepcopy(TABLE)
    table[part][group][key] = value
    return table


def sentences(table: dict[str, Any]) -> list[str]:
    return [sentence for _, sentence in golden.differences(TABLE, table)]


def test_equal_tables_have_no_difference() -> None:
    assert sentences(copy.deepcopy(TABLE)) == []
    rounding = changed("numbers", "rankme value", "layer 0", 2.5 + 3e-4)  # of a scale of 400
    assert sentences(rounding) == []


@pytest.mark.parametrize(
    ("part", "group", "key", "value", "sentence"),
    [
        ("numbers", "rankme value", "layer 0", 2.501, "number 'layer 0': 2.5 before, 2.501 now"),
        ("numbers", "rankme value", "layer 2", 1.0, "number 'layer 2': None before, 1.0 now"),
        ("numbers", "rankme value", "layer 1", None, "number 'layer 1': 400.0 before, None now"),
        ("numbers", "rankme value", "layer 3", 1.0, "number 'layer 3' is new"),
        ("choices", "select", "layer", "2", "choice 'layer': 1 before, 2 now"),
    ],
)
def test_what_changed_is_named(part: str, group: str, key: str, value: Any, sentence: str) -> None:
    assert sentences(changed(part, group, key, value)) == [sentence]


def test_what_is_missing_is_named() -> None:
    table = copy.deepcopy(TABLE)
    del table["numbers"]["rankme value"]["layer 1"]
    del table["choices"]["select"]
    assert sentences(table) == [
        "number 'layer 1' is missing",
        "the group of choices is missing",
    ]


def test_a_comparison_counts_rows_that_differ_or_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("probes", "search"):
        (tmp_path / f"{name}.json").write_text(golden.dump(TABLE))
    different = changed("choices", "select", "layer", "2")
    tables = {"probes": TABLE, "search": different}
    monkeypatch.setattr(golden, "run_row", lambda name: (copy.deepcopy(tables[name]), 1.0))
    assert golden.compare(["probes", "search", "gguf"], tmp_path) == 2
    printed = capsys.readouterr().out
    assert "probes: equal (3 numbers, 2 choices)" in printed
    assert "search: 1 differences" in printed
    assert "gguf: there is no golden table" in printed
    (tmp_path / golden.CHANGES).write_text(json.dumps({"search": {"select": "a better rule"}}))
    assert golden.compare(["probes", "search"], tmp_path) == 0
    (tmp_path / "gone.json").write_text(golden.dump(TABLE))
    assert golden.compare(["probes"], tmp_path) == 1
    assert "gone: its golden table has no row" in capsys.readouterr().out


def test_every_table_has_a_row_that_says_what_it_is() -> None:
    tables = {file.stem for file in golden.TABLES.glob("*.json") if file.name != golden.CHANGES}
    assert tables <= set(golden.ROWS)
    assert all(function.__doc__ for function in golden.ROWS.values())


def test_a_row_runs_in_a_process_of_its_own() -> None:
    table, seconds = golden.run_row("correlation")
    assert seconds > 0
    assert list(golden.differences(json.loads(golden.dump(table)), table)) == []
