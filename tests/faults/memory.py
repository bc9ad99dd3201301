"""Runs that the system kills for want of memory, resumed and compared: the killer's, by the
kernel's own hand.

    python -m tests.faults.memory profile 20 0       # a command, how many kills, a seed

A control group of one's own inside that of this process gets a limit below what the command takes,
and the child enters it. It needs the right to make one (root, or a group that was delegated). Where
it is missing the tool says that it is impossible.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.killer import Fate, forked, kill

_LEAST = 2 * 2**20  # bytes; with less a child does not get as far as the command


class NoGroupError(OSError):
    """No control group can be made here."""


class Group:
    """A control group for memory, of version 1 or 2."""

    def __init__(self) -> None:
        self.path, self.second = _place()
        try:
            self.path.mkdir()
            if self.second and not (self.path / "memory.max").exists():
                self.path.rmdir()
                raise NoGroupError(f"{self.path.parent} hands no memory controller on")
        except OSError as error:
            raise NoGroupError(str(error)) from None

    def enter(self, limit: int | None) -> None:
        """Put this process into the group, which may have so many bytes."""
        # swap does not count as memory to spare; in version 1 its limit is never below that of
        # memory
        most, both = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        second, first = (
            [("memory.max", limit or "max"), ("memory.swap.max", 0)],
            [(both, -1), (most, limit or -1), (both, limit or -1)],
        )
        for name, value in second if self.second else first:
            with suppress(FileNotFoundError):  # swap is not counted everywhere
                (self.path / name).write_text(str(value))
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The most bytes that were used in it."""
        return int(
            (
                self.path / ("memory.peak" if self.second else "memory.max_usage_in_bytes")
            ).read_text()
        )

    def kills(self) -> int:
        """How many processes the kernel has killed in it."""
        text = (self.path / ("memory.events" if self.second else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def remove(self) -> None:
        """Remove it; the kernel takes a moment to miss the last process."""
        for _ in range(100):
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


def _place() -> tuple[Path, bool]:
    """Where the group goes: inside the one that this process is in, so that no limit on this
    process is got around."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return Path("/sys/fs/cgroup/memory") / path.strip(
                    "/"
                ) / f"layerscope-{os.getpid()}", False
            if number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
                return Path("/sys/fs/cgroup") / path.strip("/") / f"layerscope-{os.getpid()}", True
    except OSError as error:
        raise NoGroupError(str(error)) from None
    raise NoGroupError("this system has no control groups for memory")


def by_memory(
    group: Group, run: Callable[[Path], Any], home: Path
) -> tuple[dict[str, Any], Callable[[np.random.Generator], Fate]]:
    """The peak of an undisturbed run, and how to draw a limit below it."""
    code, said = forked(lambda: run(home / "measured"), partial(group.enter, None))
    assert code == 0, said
    peak = group.peak()
    return {"peak": peak}, lambda rng: partial(
        group.enter, int(rng.integers(_LEAST, max(peak, _LEAST + 1)))
    )


def main(name: str, count: int, seed: int) -> dict[str, Any]:
    """So many kills of one command by the kernel."""
    group = Group()
    try:
        found = kill(name, count, seed, partial(by_memory, group))
        return {**found, "by_the_kernel": group.kills()}
    finally:
        group.remove()


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    except NoGroupError as why:
        print(json.dumps({"command": sys.argv[1], "kills": 0, "impossible": str(why)}))
