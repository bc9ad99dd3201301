"""How long it will take, and where it is: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from layerscope.core.formatting import format_duration
from layerscope.progress import Progress, Silent, in_notebook, progress_bar


class StageLines:
    """One line when a stage begins, one when it ends; between them one whenever half a minute has
    passed."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self.stream, self.every = stream or sys.stderr, every
        self.label, self.total, self.done, self.before = "", 0, 0, 0
        self.start = self.said = time.monotonic()

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage; the one before it is over."""
        self.label, _, self.unit = label.partition("|")
        self.total, self.done, self.before = total, done, done
        self.start = self.said = time.monotonic()
        left = f"{total - done} {self.unit} to do" + (f", {done} are there already" if done else "")
        self._say(
            f"{self.label}: {left if total > done else f'all {total} {self.unit} are there already'}"
        )

    def advance(self, units: int) -> None:
        """Some units are done."""
        self.done += units
        now = time.monotonic()
        if self.done >= self.total > self.before:
            self._say(f"{self.label}: done in {now - self.start:.0f} s")
        elif now - self.said >= self.every:
            speed = (self.done - self.before) / max(now - self.start, 1e-9)
            left = (self.total - self.done) / max(speed, 1e-9)
            self.said = now
            self._say(
                f"{self.label}: {self.done} of {self.total} {self.unit}, about {format_duration(left)} left"
            )

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


@contextmanager
def stages(show: bool | Progress | None) -> Iterator[Progress]:
    """A bar on a terminal or in a notebook, lines elsewhere, nothing where `show` is False."""
    if show is False:
        yield Silent()
        return
    if show is None and not (sys.stderr.isatty() or in_notebook()):
        yield StageLines()
        return
    with progress_bar(show) as bar:
        yield bar


def announce(bar: Progress, text: str) -> None:
    """A line of its own, wherever progress is shown."""
    if not isinstance(bar, Silent):
        print(text, file=getattr(bar, "stream", sys.stderr), flush=True)
