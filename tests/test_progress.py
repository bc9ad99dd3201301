"""Progress bars: what a notebook is shown, without widgets and without a flood of drawings."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from layerscope.progress import NotebookBar, Silent, progress_bar


class Handle:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, content: str) -> None:
        self.shown.append(content)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """A kernel's display, as far as the bar uses it."""
    drawn = Handle()
    module = types.ModuleType("IPython.display")
    module.HTML = str  # type: ignore[attr-defined]
    module.display = lambda content, display_id: drawn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    return drawn


def test_a_notebook_gets_a_bar_that_is_gone_at_the_end(handle: Handle) -> None:
    with progress_bar() as bar:
        bar.begin("reading <b>|texts", 4, 1)
        bar.advance(3)
    assert isinstance(bar, NotebookBar)
    assert "reading &lt;b&gt;" in handle.shown[0]
    assert 'value="1" max="4"' in handle.shown[0]
    assert 'value="4" max="4"' in handle.shown[-2]
    assert "4/4 texts" in handle.shown[-2]
    assert handle.shown[-1] == ""


def test_it_is_drawn_a_few_times_a_second_and_says_how_long_is_left(handle: Handle) -> None:
    now = [0.0]
    bar = NotebookBar(clock=lambda: now[0])
    bar.begin("work|units", 1000)
    for _ in range(500):
        now[0] += 0.01
        bar.advance(1)
    assert len(handle.shown) < 35
    assert "5 s · 5 s left" in handle.shown[-1]


def test_a_bar_that_was_not_asked_for_is_not_drawn(handle: Handle) -> None:
    with progress_bar(False) as bar:
        bar.begin("work", 1)
    assert isinstance(bar, Silent)
    assert handle.shown == []
