"""Mistakes and circumstances that a user meets: one line that says what to do, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layerscope.errors import LayerscopeError, UnknownNameError, one_line, printable
from tests.cli.support import Cli, assert_refused


def test_a_precision_that_is_none(cli: Cli, model_folder: Path) -> None:
    assert_refused(cli("evaluate", model_folder, "--tasks", "STS13", "--store-dtype", "x"), "unknown store_dtype 'x'", "float16")


def test_names_that_are_too_long(cli: Cli, model_folder: Path, data: Path) -> None:
    long = "x" * 5000
    assert_refused(cli("profile", long, "--data", data), "unknown model", "xxx...")
    assert_refused(cli("profile", model_folder, "--data", data, "--out", f"runs/{long}", "-q"), "cannot write", "too long")
    assert_refused(cli("report", long), "holds no run")


def test_a_cache_that_cannot_be_written(cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", "/proc/layerscope")
    assert_refused(cli("fetch", "lee"), "cannot be written to /proc/layerscope", "LAYERSCOPE_CACHE")


def test_a_damaged_run_in_a_report(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    manifest = {"kind": "profile", "status": "complete", "model": [], "conventions": 3}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    assert_refused(cli("report", tmp_path / "run"), "holds no profile table")


def test_what_a_terminal_obeys_does_not_reach_it() -> None:
    text = "a\x1b[31mb\x9bc\u202ed\te\nf\x07"
    assert printable(text) == "a\ufffd[31mb\ufffdc\ufffdd\te\nf\ufffd"
    assert one_line(text) == "a\ufffd[31mb\ufffdc\ufffdd e f\ufffd"
    assert "\x1b" not in str(LayerscopeError(text))
    assert "\x1b" not in str(UnknownNameError("metric", "\x1b[2J", ["a"]))
