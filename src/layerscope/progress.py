"""One progress bar with an ETA, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


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
        show = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not show:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

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
            self.task = bar.add_task("", total=None, unit="")

        def begin(self, label: str, total: int, done: int = 0) -> None:
            description, _, unit = label.partition("|")
            bar.reset(self.task, total=total, completed=done, description=description, unit=unit)

        def advance(self, units: int) -> None:
            bar.advance(self.task, units)

    with bar:
        yield Bar()
