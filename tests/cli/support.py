"""Running the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from layerscope.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> Ended:
    """What `layerscope WORDS…` prints and how it ends."""
    monkeypatch.setattr(sys, "argv", ["layerscope", *map(str, words)])
    capsys.readouterr()
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    told = capsys.readouterr()
    return Ended(code, told.out, told.err)


def assert_refused(ended: Ended, *phrases: str) -> None:
    """Exit code 1, nothing on stdout, one message on stderr that holds the phrases, no
    traceback."""
    assert ended.code == 1, ended
    assert ended.out == ""
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("layerscope: ")
    for phrase in phrases:
        assert phrase in lines[0]
