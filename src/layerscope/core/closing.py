"""A thing that is closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """The base of what has a `close` and may be used as a context."""

    def close(self) -> None:
        """Let go of processes, connections and the like."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
