"""One progress bar with an ETA, or none."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from layerscope.core.formatting import format_duration


class Progress(Protocol):
    """What long work tells about itself."""

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""

    def advance(self, units: int) -> None:
        """Some units are done."""


class Silent:
    """No progress bar."""

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """Nothing."""

    def advance(self, units: int) -> None:
        """Nothing."""


@contextmanager
def progress_bar(show: bool | Progress | None = None) -> Iterator[Progress]:
    """A bar on stderr; by default only where a person is likely to look (a terminal or a notebook).

    A bar that is given is used as it is: work inside other work shows its stages on the same line.
    """
    if show is not None and not isinstance(show, bool):
        yield show
        return
    if show is None:
        show = sys.stderr.isatty() or in_notebook()
    if not show:
        yield Silent()
        return
    if in_notebook():
        with notebook_bar() as drawn:
            yield drawn
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from layerscope.terminal import Console

    bar = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]} · elapsed"),
        TimeElapsedColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )

    class Bar:
        def __init__(self) -> None:
            self.task = bar.add_task("", total=None, unit="", visible=False)  # until something begins

        def begin(self, label: str, total: int, done: int = 0) -> None:
            description, _, unit = label.partition("|")
            bar.reset(self.task, total=total, completed=done, description=description, unit=unit, visible=True)

        def advance(self, units: int) -> None:
            bar.advance(self.task, units)

    with bar:
        yield Bar()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter, Colab)."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules


class NotebookBar:
    """A bar that a notebook redraws in place, without widgets to install. At the end it is gone, as in a terminal."""

    EVERY = 0.2  # seconds between two drawings: a browser redraws each

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        self._html, self._clock = HTML, clock
        self._handle = display(HTML(""), display_id=True)
        self._label, self._unit, self._total, self._done, self._drawn = "", "", 0, 0, -1e9
        self._start, self._first = clock(), 0

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""
        self._label, _, self._unit = label.partition("|")
        self._total, self._done, self._first, self._start = total, done, done, self._clock()
        self._draw()

    def advance(self, units: int) -> None:
        """Some units are done."""
        self._done += units
        if self._done >= self._total or self._clock() - self._drawn >= self.EVERY:
            self._draw()

    def close(self) -> None:
        """Take the bar away."""
        self._handle.update(self._html(""))

    def _draw(self) -> None:
        self._drawn = self._clock()
        elapsed, done = self._drawn - self._start, self._done - self._first
        left = ""
        if done > 0 and self._done < self._total:
            left = f" · {format_duration((self._total - self._done) * elapsed / done)} left"
        bar = f'<progress value="{self._done}" max="{max(self._total, 1)}" style="width:16em;vertical-align:middle"></progress>'
        counts = f"{self._done}/{self._total} {html.escape(self._unit)} · {format_duration(elapsed)}{left}"
        self._handle.update(self._html(f'<div style="font-family:monospace">{html.escape(self._label)} {bar} {counts}</div>'))


@contextmanager
def notebook_bar() -> Iterator[Progress]:
    """A bar in the output of a notebook's cell."""
    bar = NotebookBar()
    try:
        yield bar
    finally:
        bar.close()
