"""One progress bar with an ETA, or none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from layerscope.core.formatting import format_duration
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


class Finish:
    """When all stages together should be over, as far as that was said."""

    at: float | None = None

    def expect(self, seconds: float) -> None:
        """All that is left should take so long."""
        self.at = time.monotonic() + seconds

    def left(self, stage: float) -> str:
        """What is left in all, in words, where this stage alone takes `stage` more seconds."""
        whole = 0.0 if self.at is None else self.at - time.monotonic()
        return (
            f"about {format_duration(max(whole, stage))} left{'' if self.at is None else ' in all'}"
        )


class Silent(Progress):
    """No progress bar."""


class Bar(Finish):
    """tqdm's bar on stderr, the same in a terminal and in a notebook; a stage that is over leaves
    nothing behind.

    Where it is known how long all stages take, it counts down to their end instead of each stage's.
    """

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A new stage of `total` units, `done` of which are finished already."""
        from tqdm import tqdm

        self.close()
        name, _, unit = label.partition("|")
        whole = (
            {}
            if self.at is None
            else {"bar_format": "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}{postfix}"}
        )
        self._bar = tqdm(
            desc=printable(name), total=total, initial=done, unit=f" {unit}", leave=False, dynamic_ncols=True, file=sys.stderr,
            **whole,
        )  # fmt: skip
        self.advance(0)

    def advance(self, units: int) -> None:
        """Some units are done."""
        if self._bar is not None:
            if self.at is not None:
                told = self._bar.format_dict
                speed = (told["n"] - told["initial"]) / max(told["elapsed"], 1e-9)
                self._bar.set_postfix_str(
                    self.left((told["total"] - told["n"]) / speed if speed else 0.0), refresh=False
                )
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
