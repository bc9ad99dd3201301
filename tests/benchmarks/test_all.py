"""The table of all short benchmarks."""

from __future__ import annotations

import importlib

import pytest
from rows import Row

module = importlib.import_module("all")


def test_finds_the_short_versions() -> None:
    assert {"memory", "profile_overhead", "all_layers"} <= set(module.names())
    with pytest.raises(SystemExit, match="no short version of 'gpu'"):
        module.main(["gpu"])


def test_prints_ratios(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row("a profile", "bare passes", 3.0, 2.0),
        Row("memory", "few", 5.0, 4.0, "MB", "+1 byte"),
    ]
    monkeypatch.setattr(importlib.import_module("all_layers"), "short", lambda: rows)
    module.main(["all_layers"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split("  ")[-1] == "1.50 ×"
    assert "5.00 MB" in lines[2]
    assert lines[2].endswith("+1 byte")
