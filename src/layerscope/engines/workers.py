"""The workers of a Ray cluster, and how a cluster is divided among them."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.version import VERSION

__all__ = ["Job", "Machine", "Placement", "Refusal", "Worker", "WorkerFacts", "place"]


@dataclass(frozen=True)
class Machine:
    """The resources of one machine of a cluster; memory in bytes."""

    cpus: float
    gpus: float
    memory: float


@dataclass(frozen=True)
class Placement:
    """The number of workers; the cores (0: whatever is free), GPUs and threads of each."""

    workers: int
    cpus: float
    gpus: float
    threads: int


def place(
    machines: Sequence[Machine],
    items: int,
    workers: int | None,
    gpus: float | None,
    memory: int = 0,
) -> Placement:
    """Divide a cluster among workers. By default a worker has a GPU where there are any, else a
    core, as far as `memory` bytes for each suffice.

    With fewer workers than cores, a worker may use several. There are never more workers than
    there are GPUs for them.

    >>> place([Machine(4, 0, 64e9), Machine(4, 0, 64e9)], items=100, workers=4, gpus=None)
    Placement(workers=4, cpus=2, gpus=0.0, threads=2)
    """
    items = max(1, items)
    if gpus is None:
        gpus = 1.0 if any(machine.gpus >= 1 for machine in machines) else 0.0
    if gpus:
        room = sum(_shares(machine.gpus, gpus) for machine in machines)
        if not room:
            most = max((machine.gpus for machine in machines), default=0)
            raise LayerscopeError(
                f"{gpus:g} GPUs per worker were asked for, and no machine of the cluster has more "
                f"than {most:g}. Lower gpus_per_worker= (0: use the CPUs), or start a machine "
                "that has them."
            )
        cores = min(m.cpus * gpus / m.gpus for m in machines if m.gpus)
        cpus = 1 if cores >= 1 else 0
        return Placement(min(workers or room, room, items), cpus, gpus, max(1, int(cores)))
    if workers is None:
        rooms = [
            min(machine.cpus, machine.memory // memory if memory else machine.cpus)
            for machine in machines
        ]
        workers = max(1, sum(int(room) for room in rooms))
    threads = int(max((machine.cpus for machine in machines), default=1))
    while threads and sum(int(machine.cpus // threads) for machine in machines) < workers:
        threads -= 1
    return Placement(min(workers, items), threads, 0.0, max(1, threads))


def _shares(total: float, share: float) -> int:
    return int(total / share + 1e-9)


def check_request(workers: int | None, gpus: float | None) -> None:
    """Raise where no cluster can meet a request."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"workers= must be 1 or more, not {workers}.")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise InvalidValueError(
            f"gpus_per_worker= is a whole number, or a share of one GPU such as 0.5, not {gpus:g}."
        )


@dataclass(frozen=True)
class Refusal:
    """An error of layerscope's in a worker, which trying again would not change. The exception
    itself may not survive the way to the driver."""

    kind: type[LayerscopeError]
    message: str

    def error(self) -> LayerscopeError:
        """Return the error again. Some classes take more than a message."""
        error: LayerscopeError = self.kind.__new__(self.kind)
        Exception.__init__(error, self.message)
        return error


@dataclass(frozen=True)
class Job:
    """A piece of work as workers get it: `work` is its reference in Ray's store."""

    work: Any
    threads: int
    version: str = VERSION


@dataclass(frozen=True)
class WorkerFacts:
    """Facts of an open worker."""

    machine: str
    gpus: int
    has_cuda: bool
    torch: str
    device: str | None


class Worker:
    """A worker, which does one piece of work after the other."""

    def __init__(self, hide_gpus: bool) -> None:
        if hide_gpus:  # Ray leaves all GPUs visible to a worker that asked for none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._work: Any = None

    def open(self, job: Job) -> WorkerFacts | Refusal:
        """Get ready for a piece of work."""
        import ray
        import torch

        if job.version != VERSION:
            message = (
                f"the worker on {platform.node()} has layerscope {VERSION}, the run {job.version}. "
                "Install the same on every machine."
            )
            return Refusal(LayerscopeError, message)
        self.release()
        torch.set_num_threads(job.threads)
        self._work = ray.get(job.work)
        try:
            self._work.open()
        except LayerscopeError as error:
            return Refusal(type(error), f"on {platform.node()}: {error}")
        return WorkerFacts(
            platform.node(),
            len(ray.get_gpu_ids()),
            torch.cuda.is_available(),
            torch.__version__,
            self._work.device,
        )

    def run(self, item: Any) -> tuple[Any, int] | Refusal:
        """Return the result of an item, and how many units it was."""
        units: list[int] = []
        try:
            return self._work.run(item, units.append), sum(units)
        except LayerscopeError as error:
            return Refusal(type(error), str(error))

    def release(self) -> None:
        """Close the work, and release the memory that it took."""
        import torch

        if self._work is not None:
            self._work.close()
        self._work = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
