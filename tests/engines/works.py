"""Work that goes wrong, in a file of its own: workers import it, and should not have to import all
that tests need."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layerscope.engines import Advance, Engine, Work
from layerscope.errors import UnknownNameError


class MapWork(Work[Any, Any]):
    """A plain function as work."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def run(self, item: Any, advance: Advance) -> Any:
        """The function's result."""
        result = self.function(item)
        advance(1)
        return result


def mapped(
    engine: Engine,
    function: Callable[[Any], Any],
    items: Sequence[Any],
    advance: Advance = lambda units: None,
) -> list[Any]:
    """A function's results for many items, in their order."""
    found = dict(engine.run(MapWork(function), items, advance))
    return [found[i] for i in range(len(items))]


def stumble(item: int) -> int:
    """Fails on 3, and refuses 4."""
    if item == 3:
        raise OSError("the disk of this machine")
    if item == 4:
        raise UnknownNameError("thing", "four", ["three"])
    return item * item


def process_of(_item: int) -> int:
    """Where it is called."""
    return os.getpid()


def visible_gpus(_item: int) -> str | None:
    """What CUDA shows to a worker."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def meet(folder: Path) -> tuple[int, list[Any], str | None]:
    """A worker's process, the GPUs that Ray gave to it, and those that CUDA shows to it. Waits for
    a second worker."""
    import ray

    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    return os.getpid(), ray.get_gpu_ids(), visible_gpus(0)


class Deadly(MapWork):
    """Kills its worker on 3, and says so in the end."""

    def run(self, item: int, advance: Any) -> int:
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return int(super().run(item, advance))

    def give_up(self, item: int, reason: str) -> int:
        assert "failed 2 times" in reason
        assert "its worker died" in reason
        return -1
