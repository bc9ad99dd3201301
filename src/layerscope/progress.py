"""One progress bar with an ETA, or none; and numbers sent to a function of the user's."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from layerscope.errors import one_line, printable

__all__ = ["Progress", "progress_bar"]

OnRows = Callable[[dict[str, Any]], Any]
"""The type of `on_rows=`: a function that takes a dictionary of names and numbers."""

log = logging.getLogger("layerscope")


class Progress(Protocol):
    """The receiver of the progress of long work."""

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` units, `done` of which are finished already."""
        return

    def advance(self, units: int) -> None:
        """Count finished units."""
        return


class Silent(Progress):
    """No progress bar."""


class Bar:
    """tqdm's bar on stderr, the same in a terminal and in a notebook; a stage that is over leaves
    nothing behind."""

    def __init__(self, watched: bool = True) -> None:
        """Make a bar; one that is not `watched`, in a log, is written twice a minute, and stays."""
        self._bar: Any = None
        self._options: dict[str, Any] = {"leave": False, "dynamic_ncols": True}
        if not watched:
            self._options = {"mininterval": 30.0, "ncols": 100}

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""
        from tqdm import tqdm

        self.close()
        name, _, unit = label.partition("|")
        self._bar = tqdm(
            desc=printable(name),
            total=total,
            initial=done,
            unit=f" {unit}",
            file=sys.stderr,
            **self._options,
        )

    def advance(self, units: int) -> None:
        """Some units are done."""
        if self._bar is not None:
            self._bar.update(units)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def progress_bar(show: bool | Progress | None = None, always: bool = False) -> Iterator[Progress]:
    """Show a bar on stderr.

    By default it is shown only if a person is likely to look (a terminal or a notebook), or
    `always`. A bar that is given is used as it is: work inside other work shows its stages on the
    same line.
    """
    watched = sys.stderr.isatty() or in_notebook()
    if show is not None and not isinstance(show, bool):
        yield show
    elif show or (show is None and (watched or always)):
        bar = Bar(watched)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield Silent()


def announce(bar: Progress, text: str) -> None:
    """Print a line of its own on stderr if progress is shown."""
    if not isinstance(bar, Silent):
        print(text, file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (Jupyter, Colab)."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules


def send(on_rows: OnRows | None, step: int, values: Mapping[str, float]) -> None:
    """Call `on_rows` with the step and the finite values. If it fails, log a warning and go on.

    >>> send(print, 3, {"train/loss": 0.5, "train/grad_norm": float("nan")})
    {'step': 3, 'train/loss': 0.5}
    """
    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    if on_rows is None or not finite:
        return
    try:
        on_rows({"step": step, **finite})
    except Exception as error:
        reason = one_line(str(error))[:200]
        log.warning("on_rows failed (%s: %s): not logged", type(error).__name__, reason)
