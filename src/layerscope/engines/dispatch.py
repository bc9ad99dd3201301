"""Work on a cluster: how many workers there are, and who does which item."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import platform
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerscope.engines.base import Advance, Work
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.version import VERSION


@dataclass(frozen=True)
class ItemOutcome:
    """What a worker answers: `result`, unless there is a `reason`. An exception itself may not
    survive the way.

    `refused` is the error's class where trying again would change nothing."""

    result: Any = None
    reason: str | None = None
    refused: type[LayerscopeError] | None = None
    trace: str = ""

    def error(self) -> LayerscopeError:
        """A refusal as the error that it was."""
        kind = self.refused or LayerscopeError
        error: LayerscopeError = kind.__new__(kind)  # some take more than their message
        Exception.__init__(error, self.reason)
        return error


def attempt(function: Callable[..., Any], *given: Any) -> ItemOutcome:
    """Call a function; whatever it raises becomes part of the outcome."""
    try:
        return ItemOutcome(function(*given))
    except LayerscopeError as error:
        return ItemOutcome(reason=str(error), refused=type(error))
    except Exception as error:
        return ItemOutcome(reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


@dataclass(frozen=True)
class Job:
    """A piece of work as workers get it: `work` is its reference in Ray's store."""

    work: Any
    number: int
    threads: int
    version: str = VERSION


class Actor:
    """A worker. It does one piece of work after the other.

    Two items at most are inside at a time: one is run, the next is prepared meanwhile. Ray starts a
    worker that died again; it then opens its work again with the first item.
    """

    def __init__(self, hide_gpus: bool = False) -> None:
        if hide_gpus:  # Ray leaves all of a machine's GPUs visible to a worker that asked for none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.work: Any = None
        self.number = -1  # of the work
        self.facts: dict[str, Any] = {}
        self.opening = threading.Lock()
        self.preparing = threading.Lock()  # a tokenizer serves one thread at a time
        self.busy = threading.Lock()

    def open(self, job: Job) -> ItemOutcome:
        """Get ready for a piece of work; the result says where this worker is."""
        outcome = attempt(self._open, job)
        return (
            outcome
            if outcome.reason is None
            else replace(outcome, reason=f"on {platform.node()}: {outcome.reason}")
        )

    def _open(self, job: Job) -> dict[str, Any]:
        import ray
        import torch

        with self.opening:
            if self.number == job.number:
                return self.facts
            if job.version != VERSION:
                raise LayerscopeError(
                    f"the worker has layerscope {VERSION}, the run {job.version}. Install the same on every machine."
                )
            torch.set_num_threads(job.threads)
            self._drop()
            self.work = ray.get(job.work)
            common = self.work.open()
            self.facts = {
                **_location(),
                "pid": os.getpid(),
                "torch": torch.__version__,
                "cuda": torch.cuda.is_available(),
                "device": self.work.device,
                "common": common,
            }
            self.number = job.number
            return self.facts

    def release(self, number: int) -> None:
        """Let go of a piece of work and of the memory that it took, unless there is another
        already."""
        with self.opening:
            if self.number == number:
                self._drop()

    def _drop(self) -> None:
        import torch

        self.number = -1
        if self.work is not None:
            attempt(self.work.close)
            self.work = None
            gc.collect()  # about half of what a model took: 0.43 of 0.90 GB for smollm2-135m, in 0.2 s that nobody waits for
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def run(self, job: Job, item: Any, common: Any) -> ItemOutcome:
        """Return the outcome of an item: its result, and how many units it was."""
        return attempt(self._run, job, item, common)

    def _run(self, job: Job, item: Any, common: Any) -> tuple[Any, int]:
        self._open(job)
        units: list[int] = []
        with self.preparing:
            prepared = self.work.prepare(item)
        with self.busy:
            result = self.work.run(item, prepared, units.append, common)
        return result, sum(units)


def _location() -> dict[str, Any]:
    """This worker's machine (several nodes of a cluster may run on one), and the numbers of the
    GPUs that it was given."""
    import ray

    return {
        "node": f"{platform.node()} ({ray.get_runtime_context().get_node_id()[:8]})",
        "gpus": ray.get_gpu_ids(),
    }


log = logging.getLogger("layerscope")

_POLL_S = 0.5
_RESUME = "What was finished is kept: run the same command again to resume."


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
    """How many workers there are, and the cores (0: whatever is free), GPUs and threads of each."""

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
    """Divide a cluster among workers. By default a worker gets a GPU where there are any, else one
    core, within memory.

    With fewer workers than cores the cores are divided: `threads` is how many of them a worker may
    use. GPUs are not shared unless a share of one was asked for: there are no more workers than
    GPUs for them.

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
            "Lower gpus_per_worker= (0: use the CPUs), or start a machine that has them."
        )
    if gpus:
        room = sum(_fits(machine.gpus, gpus) for machine in machines)
        count = min(workers or room, room, max(1, items))
        each = min(
            (machine.cpus * gpus / machine.gpus for machine in machines if machine.gpus),
            default=1.0,
        )
        return Placement(count, 1 if each >= 1 else 0, gpus, max(1, int(each)))
    most_cores = int(max((machine.cpus for machine in machines), default=1))
    if workers is None:
        room = sum(
            int(min(machine.cpus, machine.memory // memory if memory else machine.cpus))
            for machine in machines
        )
        workers = max(1, room)
    count = min(workers, max(1, items))
    threads = next(
        (t for t in range(most_cores, 0, -1) if sum(int(m.cpus // t) for m in machines) >= workers),
        0,
    )
    return Placement(count, threads, 0.0, max(1, threads))


def _fits(have: float, want: float) -> int:
    return int(have / want + 1e-9)


def check_request(workers: int | None, gpus: float | None) -> None:
    """Refuse a request that no cluster can meet."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"workers= must be 1 or more, not {workers}.")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise InvalidValueError(
            f"gpus_per_worker= is a whole number, or a share of one GPU such as 0.5, not {gpus:g}."
        )


_NUMBERS = itertools.count()
Shape = tuple[
    float, float, int
]  # cores and GPUs of a worker, and how many items it can have at a time


class IdleWorkers(list[tuple[Shape, Any]]):
    """Workers that have done their work, kept for the next piece of it: a new process imports torch
    first, for seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.without_cuda: set[str] = set()  # nodes whose workers found no CUDA: it is said once

    def trim(self, ray: Any, shape: Shape | None, count: int) -> None:
        """End all but `count` workers of this shape: the others hold cores and GPUs that new
        workers need."""
        kept = [worker for worker in self if worker[0] == shape][:count]
        for worker in self:
            if worker not in kept:
                ray.kill(worker[1])
        self[:] = kept


class Dispatch:
    """Runs one piece of work on a cluster, from the first item to the last.

    Ray starts workers again that died. The items that were with one are given to the next that is
    free, at most `attempts` times each.
    """

    def __init__(
        self,
        ray: Any,
        work: Work[Any, Any],
        items: Sequence[Any],
        placement: Placement,
        advance: Advance,
        attempts: int,
        start_timeout: float,
        idle: IdleWorkers,
    ) -> None:
        self.ray, self.work, self.items, self.advance = ray, work, items, advance
        self.placement, self.attempts, self.start_timeout = placement, attempts, start_timeout
        self.idle, self.shape = idle, (placement.cpus, placement.gpus, max(2, work.under_way))
        self.job = Job(ray.put(work), next(_NUMBERS), placement.threads)
        self.opening: dict[Any, Any] = {}  # workers by the references of their answers to `open`
        self.running: dict[Any, tuple[Any, int]] = {}  # workers and items, likewise
        self.pids: dict[Any, int] = {}  # of the workers that are open
        self.waiting = deque(range(len(items)))
        self.tried: Counter[int] = Counter()
        self.common: Any = None
        self.facts: dict[str, Any] = {
            "nodes": set(),
            "replaced": 0,
            "torch": set(),
            "devices": set(),
        }
        self.heard = time.monotonic()

    def results(self) -> Iterator[tuple[int, Any]]:
        """(number of an item, its result), as they are done."""
        self.idle.trim(self.ray, self.shape, self.placement.workers)
        done = 0
        try:
            for _ in range(self.placement.workers):
                self._open(self.idle.pop(0)[1] if self.idle else self._new_actor())
            while done < len(self.items):
                self._assign()
                for reference in self._ready():
                    for result in self._receive(reference):
                        done += 1
                        yield result
        finally:
            self._end(complete=done == len(self.items))

    def _new_actor(self) -> Any:
        cpus, gpus, items = self.shape
        options = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_concurrency": items,
            "max_restarts": -1,
        }
        return (
            self.ray.remote(Actor)
            .options(**options, scheduling_strategy="SPREAD")
            .remote(hide_gpus=not gpus)
        )

    def _open(self, actor: Any) -> None:
        # it waits for a worker that is being started again, and for room for it
        opened = actor.open.options(max_task_retries=-1).remote(self.job)
        self.opening[opened] = actor

    def _assign(self) -> None:
        """Give items to the workers that have the fewest: so that near the end no item waits behind
        another."""
        for count in range(self.work.under_way):
            for actor in self.pids:
                held = sum(other is actor for other, _ in self.running.values())
                if held == count and self.waiting:
                    index = self.waiting.popleft()
                    given = actor.run.remote(self.job, self.items[index], self.common)
                    self.running[given] = (actor, index)

    def _ready(self) -> list[Any]:
        ready, _ = self.ray.wait([*self.opening, *self.running], num_returns=1, timeout=_POLL_S)
        if ready or self.running:
            self.heard = time.monotonic()
        elif time.monotonic() - self.heard > self.start_timeout:
            place, free = self.placement, self.ray.available_resources()
            raise LayerscopeError(
                f"no worker could start within {self.start_timeout:.0f} s: each needs {place.cpus:g} cores and {place.gpus:g} "
                f"GPUs, and of the cluster {free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs are free. End what uses "
                f"the rest, add a machine, or lower workers= or gpus_per_worker=. {_RESUME}"
            )
        return list(ready)

    def _receive(self, reference: Any) -> Iterator[tuple[int, Any]]:
        """Take the answer of a worker; yields the results that are known by it."""
        try:
            outcome: ItemOutcome = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            outcome = ItemOutcome(reason=f"its worker died: {_first_line(error)}")
            if reference in self.opening:
                raise LayerscopeError(f"a worker could not start: {_first_line(error)}") from error
            self._died(self.running[reference][0], outcome.reason)
        if outcome.refused:
            raise outcome.error()
        if reference in self.opening:
            self._opened(self.opening.pop(reference), outcome)
            return
        _, index = self.running.pop(reference)
        if outcome.reason is None:
            result, units = outcome.result
            if units:
                self.advance(units)
            yield index, result
            return
        log.debug("%s", outcome.trace)
        self.tried[index] += 1
        if self.tried[index] < self.attempts:
            self.waiting.appendleft(index)
            return
        reason = f"failed {self.attempts} times, the last time: {outcome.reason}"
        yield index, self.work.give_up(self.items[index], reason)

    def _died(self, actor: Any, reason: str | None) -> None:
        """Open a worker again that Ray starts again, as soon as there is room for it."""
        if self.pids.pop(actor, None) is None:
            return  # another of its items told
        log.warning("a worker died: %s. It is started again.", reason)
        self.facts["replaced"] += 1
        self._open(actor)

    def _opened(self, actor: Any, outcome: ItemOutcome) -> None:
        if outcome.reason is not None:
            log.debug("%s", outcome.trace)
            raise LayerscopeError(f"a worker could not start: {outcome.reason}")
        facts = outcome.result
        self.pids[actor] = facts["pid"]
        self.common = facts["common"] if self.common is None else self.common
        self.facts["nodes"].add(facts["node"])
        self.facts["torch"].add(facts["torch"])
        if facts["device"] is not None:
            self.facts["devices"].add(facts["device"])
        if facts["gpus"] and not facts["cuda"] and facts["node"] not in self.idle.without_cuda:
            self.idle.without_cuda.add(facts["node"])
            log.warning(
                "a worker on %s was given a GPU, but its torch (%s) finds none: it uses the CPU. Install a torch built for CUDA "
                "there (`layerscope doctor` says what it finds), or give gpus_per_worker=0.",
                facts["node"],
                facts["torch"],
            )

    def _end(self, complete: bool) -> None:
        """Keep the workers that have nothing left to do for the next piece of work."""
        busy = [actor for actor, _ in self.running.values()]
        for actor in [*self.pids, *self.opening.values()]:
            if complete or (actor in self.pids and actor not in busy):
                actor.release.remote(self.job.number)
                self.idle.append((self.shape, actor))
            else:
                self.ray.kill(actor)
        for name in ("nodes", "torch", "devices"):
            self.facts[name] = sorted(self.facts[name])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no more is known'}"
