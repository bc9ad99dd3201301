"""One progress bar with an ETA, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from layerscope.errors import printable

__all__ = ["Progress", "progress_bar"]


class Progress(Protocol):
    """What long work tells about itself."""

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""
        return

    def advance(self, units: int) -> None:
        """Some units are done."""
        return


class Silent(Progress):
    """No progress bar."""


class Bar:
    """tqdm's bar on stderr, the same in a terminal and in a notebook; a stage that is over leaves
    nothing behind."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""
        from tqdm import tqdm

        self.close()
        name, _, unit = label.partition("|")
        self._bar = tqdm(
            desc=printable(name), total=total, initial=done, unit=f" {unit}", leave=False, dynamic_ncols=True, file=sys.stderr,
        )  # fmt: skip

    def advance(self, units: int) -> None:
        """Some units are done."""
        if self._bar is not None:
            self._bar.update(units)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def progress_bar(show: bool | Progress | None = None) -> Iterator[Progress]:
    """A bar on stderr; by default only where a person is likely to look (a terminal or a notebook).

    A bar that is given is used as it is: work inside other work shows its stages on the same line.
    """
    if show is not None and not isinstance(show, bool):
        yield show
    elif show is False or (show is None and not (sys.stderr.isatty() or in_notebook())):
        yield Silent()
    else:
        bar = Bar()
        try:
            yield bar
        finally:
            bar.close()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter, Colab)."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules
