"""Work on a cluster: how many workers there are, who does which item, and what happens when a
worker dies."""

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
from dataclasses import dataclass, field, replace
from typing import Any

from layerscope import errors
from layerscope.engines.base import Advance, Work
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.version import VERSION


@dataclass(frozen=True)
class ItemOutcome:
    """What a worker answers: `result`, unless there is a `reason`. An exception itself may not
    survive the way.

    `refused` names the error's class where trying again would change nothing."""

    result: Any = None
    reason: str | None = None
    refused: str | None = None
    trace: str = ""

    def error(self) -> LayerscopeError:
        """A refusal as the error that it was."""
        kind = getattr(errors, self.refused or "", LayerscopeError)
        error: LayerscopeError = kind.__new__(kind)  # some take more than their message
        Exception.__init__(error, self.reason)
        return error


def attempt(function: Callable[..., Any], *given: Any) -> ItemOutcome:
    """Call a function; whatever it raises becomes part of the outcome."""
    try:
        return ItemOutcome(function(*given))
    except LayerscopeError as error:
        return ItemOutcome(reason=str(error), refused=type(error).__name__)
    except Exception as error:
        return ItemOutcome(reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


class Actor:
    """A worker. It does one piece of work after the other.

    Two items at most are inside at a time: one is run, the next is prepared meanwhile."""

    def __init__(self, hide_gpus: bool = False) -> None:
        if hide_gpus:  # Ray leaves all of a machine's GPUs visible to a worker that asked for none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.work: Any = None
        self.number = -1  # of the work
        self.changing = threading.Lock()  # calls may overtake each other
        self.busy = threading.Lock()
        self.preparing = threading.Lock()  # a tokenizer serves one thread at a time

    def open(self, work: Any, number: int, version: str, threads: int) -> ItemOutcome:
        """Get ready for a piece of work; the answer says where this worker is."""
        with self.changing:
            if number < self.number:  # of a piece of work that ended before this call was heard
                return ItemOutcome(reason="there is a later piece of work")
            outcome = attempt(self._open, work, number, version, threads)
        return (
            outcome
            if outcome.reason is None
            else replace(outcome, reason=f"on {platform.node()}: {outcome.reason}")
        )

    def _open(self, work: Any, number: int, version: str, threads: int) -> dict[str, Any]:
        import torch

        if version != VERSION:
            raise LayerscopeError(
                f"the worker has layerscope {VERSION}, the run {version}. Install the same on every machine."
            )
        torch.set_num_threads(threads)
        self._drop()
        self.work, self.number = work, number
        common = work.open()
        facts = {
            "pid": os.getpid(),
            "torch": torch.__version__,
            "device": work.device,
            "common": common,
        }
        return {**_location(), "cuda": torch.cuda.is_available(), **facts}

    def answer(self) -> None:
        """Whoever answers is neither stopped nor out of reach, however long its items take."""

    def release(self, number: int) -> None:
        """Let go of a piece of work and of the memory that it took, unless there is another
        already."""
        with self.changing:
            if self.number == number:
                self._drop()

    def _drop(self) -> None:
        import torch

        if self.work is not None:
            attempt(self.work.close)
            self.work = None
            gc.collect()  # about half of what a model took: 0.43 of 0.90 GB for smollm2-135m, in 0.2 s that nobody waits for
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def run(self, number: int, item: Any, common: Any) -> ItemOutcome:
        """The outcome of an item of a piece of work: its result, and how many units it was."""
        if number != self.number:
            return ItemOutcome(
                reason=f"this worker has another piece of work ({self.number}, not {number})"
            )
        return attempt(self._run, item, common)

    def _run(self, item: Any, common: Any) -> tuple[Any, int]:
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


@dataclass(eq=False)
class Member:
    """One worker: its actor, the answer to `open` while that is awaited, and the items it has, by
    their references."""

    actor: Any
    opening: Any
    where: str = "a worker that was still starting"
    pid: int | None = None
    items: dict[Any, int] = field(default_factory=dict)
    asked: Any = None  # whether it still answers
    silent: float = 0.0  # seconds since it last did


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
    """Runs one piece of work on a cluster, from the first item to the last."""

    def __init__(
        self,
        ray: Any,
        work: Work[Any, Any],
        items: Sequence[Any],
        placement: Placement,
        advance: Advance,
        attempts: int,
        start_timeout: float,
        answer_timeout: float,
        idle: IdleWorkers,
    ) -> None:
        self.ray, self.work, self.items, self.placement, self.advance = (
            ray,
            work,
            items,
            placement,
            advance,
        )
        self.number = next(_NUMBERS)
        self.idle, self.shape = idle, (placement.cpus, placement.gpus, max(2, work.under_way))
        self.attempts, self.start_timeout, self.answer_timeout = (
            attempts,
            start_timeout,
            answer_timeout,
        )
        self.members: list[Member] = []
        self.waiting = deque(range(len(items)))
        self.tried: Counter[int] = Counter()
        self.suspects: set[int] = set()
        self.given_up: list[tuple[int, Any]] = []
        self.finished = 0
        self.deaths = 0  # since the last result: a cluster on which nothing survives is given up
        self.facts: dict[str, Any] = {
            "nodes": set(),
            "replaced": 0,
            "torch": set(),
            "devices": set(),
        }
        self.common: Any = None
        self.heard = self.listened = time.monotonic()

    def results(self) -> Iterator[tuple[int, Any]]:
        """(number of an item, its result), as they are done."""
        self.sent = self.ray.put(self.work)  # once; every worker reads it from there
        self.idle.trim(self.ray, self.shape, self.placement.workers)
        try:
            for _ in range(self.placement.workers):
                self._start()
            while self.finished < len(self.items):
                self._assign()
                for reference in self._ready():
                    result = self._receive(reference)
                    if result is not None:
                        self.finished += 1
                        yield result
                while self.given_up:
                    self.finished += 1
                    yield self.given_up.pop()
        finally:
            self._end()

    def _start(self) -> None:
        actor = self.idle.pop(0)[1] if self.idle else self._new_actor()
        self.members.append(
            Member(
                actor, actor.open.remote(self.sent, self.number, VERSION, self.placement.threads)
            )
        )

    def _new_actor(self) -> Any:
        cpus, gpus, items = self.shape
        options = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_concurrency": items + 1,
            "max_restarts": 0,
        }  # one more to answer
        return (
            self.ray.remote(Actor)
            .options(**options, scheduling_strategy="SPREAD")
            .remote(hide_gpus=not gpus)
        )

    def _assign(self) -> None:
        """Give items to the workers that have the fewest: so that near the end no item waits behind
        another."""
        for count in range(self.work.under_way):
            for member in self.members:
                if member.opening is None and len(member.items) == count and self.waiting:
                    self._give_item(member)

    def _give_item(self, member: Member) -> None:
        """Give a worker the next item. An item whose worker died is run alone: if the next one dies
        too, the item is to blame."""
        if self.suspects.intersection(member.items.values()):
            return
        index = next((i for i in self.waiting if not member.items or i not in self.suspects), None)
        if index is not None:
            self.waiting.remove(index)
            member.silent = member.silent if member.items else 0.0
            member.items[member.actor.run.remote(self.number, self.items[index], self.common)] = (
                index
            )

    def _ready(self) -> list[Any]:
        every = [m.opening for m in self.members if m.opening is not None]
        every += [reference for member in self.members for reference in member.items]
        ready, _ = self.ray.wait(every, num_returns=1, timeout=_POLL_S)
        self._listen()
        if ready:
            self.heard = time.monotonic()
        elif (
            not any(m.items for m in self.members)
            and time.monotonic() - self.heard > self.start_timeout
        ):
            place, free = self.placement, self.ray.available_resources()
            raise LayerscopeError(
                f"no worker could start within {self.start_timeout:.0f} s: each needs {place.cpus:g} cores and {place.gpus:g} "
                f"GPUs, and of the cluster {free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs are free. End what uses "
                f"the rest, add a machine, or lower workers= or gpus_per_worker=. {_RESUME}"
            )
        return list(ready)

    def _listen(self) -> None:
        """Replace a worker that has items but no longer answers: a stopped one would be waited for
        forever."""
        now = time.monotonic()
        # time in which this process itself was stopped, or busy with a result, does not count as
        # silence
        passed, self.listened = min(now - self.listened, 2 * _POLL_S), now
        for member in [member for member in self.members if member.items]:
            member.silent += passed
            if member.asked is not None and self.ray.wait([member.asked], timeout=0)[0]:
                member.asked, member.silent = None, 0.0
            elif member.asked is None and member.silent > self.answer_timeout / 10:
                member.asked = member.actor.answer.remote()
            elif member.silent > self.answer_timeout:
                self._replace_worker(
                    member,
                    f"it was stopped or is out of reach, without an answer for {member.silent:.0f} s",
                )

    def _receive(self, reference: Any) -> tuple[int, Any] | None:
        member = next(
            (m for m in self.members if reference in m.items or reference is m.opening), None
        )
        if member is None:  # its worker was found dead a moment ago
            return None
        try:
            outcome: ItemOutcome = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._replace_worker(member, _first_line(error))
            return None
        if outcome.refused:
            raise outcome.error()
        if reference is member.opening:
            self._opened(member, outcome)
            return None
        index, member.silent = member.items.pop(reference), 0.0
        self.suspects.discard(index)
        if outcome.reason is not None:
            log.debug("%s", outcome.trace)
            self._retry(index, f"{outcome.reason} (on {member.where})")
            return None
        self.deaths = 0
        result, units = outcome.result
        if units:
            self.advance(units)
        return index, result

    def _opened(self, member: Member, outcome: ItemOutcome) -> None:
        if outcome.reason is not None:
            log.debug("%s", outcome.trace)
            self._replace_worker(member, outcome.reason)
            return
        facts, member.opening = outcome.result, None
        member.pid, member.where = facts["pid"], f"{facts['node']}, process {facts['pid']}"
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

    def _replace_worker(self, member: Member, reason: str) -> None:
        """Replace a worker that died. Its items go back to the front of the queue."""
        self.members.remove(member)
        self.ray.kill(member.actor)  # it may be out of reach rather than dead
        self.deaths += 1
        if self.deaths > 3 * self.placement.workers + self.attempts:
            raise LayerscopeError(
                f"{self.deaths} workers died one after the other without finishing anything, the last: {reason}"
            )
        log.warning("a worker died (%s): %s. Another takes its place.", member.where, reason)
        self.facts["replaced"] += 1
        self.suspects.update(member.items.values())
        for index in reversed(member.items.values()):
            self._retry(index, f"its worker died: {reason} ({member.where})")
        self._start()

    def _retry(self, index: int, reason: str) -> None:
        self.tried[index] += 1
        if self.tried[index] < self.attempts:
            self.waiting.appendleft(index)
            return
        result = self.work.give_up(
            self.items[index], f"failed {self.attempts} times, the last time: {reason}"
        )
        self.given_up.append((index, result))
        self.deaths = 0

    def _end(self) -> None:
        complete = self.finished == len(self.items)
        for member in self.members:
            if not member.items and (member.opening is None or complete):
                member.actor.release.remote(self.number)
                self.idle.append((self.shape, member.actor))
            else:
                self.ray.kill(member.actor)
        self.members.clear()
        for name in ("nodes", "torch", "devices"):
            self.facts[name] = sorted(self.facts[name])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no more is known'}"
