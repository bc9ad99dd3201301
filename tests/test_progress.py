"""Progress bars: what a terminal and a notebook are shown, and what they are not."""

from __future__ import annotations

import sys
import types

import pytest

from layerscope.progress import Bar, Silent, announce, progress_bar


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process seems to be a notebook's kernel."""
    for name in ("IPython", "ipykernel"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def test_a_notebook_gets_a_bar_that_is_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as bar:
        bar.begin("reading \x1b[31m|texts", 4, 1)
        bar.advance(3)
        announce(bar, "a line of its own")
    assert isinstance(bar, Bar)
    told = capsys.readouterr().err
    assert "reading" in told
    assert "\x1b[31m" not in told  # names from files do not color the terminal
    assert "1/4" in told
    assert "a line of its own\n" in told
    assert told.rpartition("\r")[2] == ""
    assert not told.split("\r")[-2].strip()


def test_a_bar_that_was_not_asked_for_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(False) as bar:
        bar.begin("work", 1)
        announce(bar, "nothing")
    assert isinstance(bar, Silent)
    assert capsys.readouterr().err == ""
