"""What several tests share: the command in this process, and the settings of a small sweep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from layerscope_paper.cli import main

SETTINGS = {"max_length": 24, "metrics": ["prompt_entropy", "dataset_entropy"]}


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> Ended:
    """Run `layerscope-paper WORDS…`."""
    monkeypatch.setattr(sys, "argv", ["layerscope-paper", *map(str, words)])
    capsys.readouterr()
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    printed = capsys.readouterr()
    return Ended(code, printed.out, printed.err)


def assert_refused(ended: Ended, *phrases: str) -> None:
    """Exit code 1, nothing on stdout, one line on stderr that holds the phrases."""
    assert ended.code == 1, ended
    assert ended.out == ""
    (line,) = ended.err.strip().splitlines()
    assert line.startswith("layerscope-paper: ")
    for phrase in phrases:
        assert phrase in line
