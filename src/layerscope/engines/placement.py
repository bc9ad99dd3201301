"""How many workers a cluster is asked for, and what each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.errors import LayerscopeError


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster."""

    cpus: float
    gpus: float
    memory: float

    @classmethod
    def of(cls, resources: dict[str, Any]) -> Machine:
        """From what Ray says about a node."""
        return cls(*(float(resources.get(name, 0.0)) for name in ("CPU", "GPU", "memory")))


@dataclass(frozen=True)
class Placement:
    """So many workers, each with these cores (0: whatever is there), GPUs and threads."""

    workers: int
    cpus: float
    gpus: float
    threads: int


def place(machines: Sequence[Machine], items: int, workers: int | None, gpus: float | None, memory: int = 0) -> Placement:
    """Divide a cluster. Unasked, a worker gets a GPU where there are any, else one core, as far as memory goes.

    With fewer workers than cores the cores are divided: `threads` is how many of them a worker may use.

    >>> place([Machine(4, 0, 64e9), Machine(4, 0, 64e9)], items=100, workers=4, gpus=None)
    Placement(workers=4, cpus=2, gpus=0.0, threads=2)
    """
    check_request(workers, gpus)
    if gpus is None:
        gpus = 1.0 if any(machine.gpus >= 1 for machine in machines) else 0.0
    if gpus and not any(_fits(machine.gpus, gpus) for machine in machines):
        most = max((machine.gpus for machine in machines), default=0)
        raise LayerscopeError(
            f"{gpus:g} GPUs per worker were asked for, and no machine of the cluster has more than {most:g}. "
            "Lower --gpus-per-worker (0: use the CPUs), or start a machine that has them."
        )
    if gpus:
        room = sum(_fits(machine.gpus, gpus) for machine in machines)
        count = min(workers or room, max(1, items))
        each = min((machine.cpus * gpus / machine.gpus for machine in machines if machine.gpus), default=1.0)
        return Placement(count, 1 if each >= 1 else 0, gpus, max(1, int(each)))
    most_cores = int(max((machine.cpus for machine in machines), default=1))
    if workers is None:
        room = sum(int(min(machine.cpus, machine.memory // memory if memory else machine.cpus)) for machine in machines)
        workers = max(1, room)
    count = min(workers, max(1, items))
    threads = next((t for t in range(most_cores, 0, -1) if sum(int(m.cpus // t) for m in machines) >= workers), 0)
    return Placement(count, threads, 0.0, max(1, threads))


def _fits(have: float, want: float) -> int:
    return int(have / want + 1e-9)


def check_request(workers: int | None, gpus: float | None) -> None:
    """Refuse what no cluster could give."""
    if workers is not None and workers < 1:
        raise LayerscopeError(f"--workers must be 1 or more, not {workers}.")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise LayerscopeError(f"--gpus-per-worker is a whole number, or a share of one GPU such as 0.5, not {gpus:g}.")
