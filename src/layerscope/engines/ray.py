"""The engine that spreads work over the machines of a Ray cluster."""

from __future__ import annotations

import gc
import logging
import os
import platform
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.engines.base import Advance, Engine, Item, Result, Results, Work, ignore_progress
from layerscope.engines.cluster import (
    Machine,
    Placement,
    check_request,
    connect,
    place,
    require_ray,
)
from layerscope.errors import LayerscopeError
from layerscope.version import VERSION

__all__ = ["RayEngine"]

log = logging.getLogger("layerscope")


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
class Failure:
    """A worker's failure at an item, which may be tried again."""

    reason: str
    worker_died: bool


@dataclass(frozen=True)
class Job:
    """A piece of work as workers get it: `work` is its reference in Ray's store."""

    work: Any
    threads: int
    version: str = VERSION


class Worker:
    """A worker, which does one piece of work after the other."""

    def __init__(self, hide_gpus: bool) -> None:
        if hide_gpus:  # Ray leaves all GPUs visible to a worker that asked for none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._work: Any = None

    def open(self, job: Job) -> str | Refusal | None:
        """Get ready for a piece of work; return the type of the device that it computes on."""
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
        device: str | None = self._work.device
        return device

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


class RayEngine(Engine):
    """Workers on a Ray cluster, each an actor that opens its work once.

    `address` is the address of a cluster (`auto`: the one this machine belongs to). Without it,
    `RAY_ADDRESS` is used, or a cluster is started here and stopped at the end. That cluster listens
    on the loopback address only, and needs a token that only its own processes have. An item that
    fails or loses its worker is tried `attempts` times. Workers stay until the engine is closed,
    for the next piece of work.

        with RayEngine(workers=4, gpus_per_worker=1) as engine:
            layerscope.profile("smollm2-135m", "lee", engine=engine)
    """

    name = "ray"
    remote = True

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        gpus_per_worker: float | None = None,
        *,
        attempts: int = 4,
        start_timeout: float = 600.0,
    ) -> None:
        require_ray()
        check_request(workers, gpus_per_worker)
        self.address = address
        self.workers = workers
        self.gpus_per_worker = gpus_per_worker
        self.attempts = attempts
        self.start_timeout = start_timeout
        self._close_connection: Callable[[], None] | None = None
        self._idle: list[Any] = []
        self._resources: tuple[float, float] = (0, 0)
        """The cores and GPUs of each idle worker."""
        self._facts: dict[str, Any] = {}

    @property
    def device_type(self) -> str:
        """Return what workers compute on."""
        machines = _machines(self._connect())
        return "cuda" if place(machines, 1, self.workers, self.gpus_per_worker).gpus else "cpu"

    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """Yield the number and the result of each item, as workers finish them."""
        if not items:
            return
        ray = self._connect()
        machines = _machines(ray)
        placement = place(machines, len(items), self.workers, self.gpus_per_worker, work.memory)
        self._facts = {
            "workers": placement.workers,
            "gpus_per_worker": placement.gpus,
            "replaced": 0,
            "devices": [],
        }
        job = Job(ray.put(work), placement.threads)
        # Each worker's present task, with the number of its item; None while it opens the work.
        tasks: dict[Any, tuple[Any, int | None]] = {}
        for worker in self._take_workers(ray, placement):
            tasks[worker.open.remote(job)] = (worker, None)
        free: list[Any] = []
        waiting = deque(range(len(items)))
        failures: Counter[int] = Counter()
        try:
            while waiting or any(index is not None for _, index in tasks.values()):
                while free and waiting:
                    worker = free.pop()
                    index = waiting.popleft()
                    tasks[worker.run.remote(items[index])] = (worker, index)
                is_running = any(index is not None for _, index in tasks.values())
                timeout = None if is_running else self.start_timeout
                ready, _ = ray.wait(list(tasks), timeout=timeout)
                if not ready:
                    raise self._no_room(ray, placement)
                worker, number = tasks.pop(ready[0])
                outcome = _outcome(ray, ready[0])
                if isinstance(outcome, Failure) and outcome.worker_died:
                    self._facts["replaced"] += 1
                    worker = _start_worker(ray, placement)  # as soon as there is room for it
                    tasks[worker.open.remote(job)] = (worker, None)
                else:
                    free.append(worker)
                if number is None:
                    self._note_opened(outcome)
                    continue
                if not isinstance(outcome, Failure):
                    result, units = outcome
                    if units:
                        advance(units)
                    yield number, result
                    continue
                failures[number] += 1
                if failures[number] < self.attempts:
                    waiting.appendleft(number)
                else:
                    reason = f"failed {self.attempts} times, the last time: {outcome.reason}"
                    yield number, work.give_up(items[number], reason)
        finally:
            self._keep_workers(ray, free, list(tasks.values()))

    def _take_workers(self, ray: Any, placement: Placement) -> list[Any]:
        """Return the workers of the last work, as far as they fit the next, and new ones: a new
        process imports torch for seconds."""
        resources = (placement.cpus, placement.gpus)
        reusable = placement.workers if resources == self._resources else 0
        for worker in self._idle[reusable:]:  # it holds cores and GPUs
            ray.kill(worker)
        workers = self._idle[:reusable]
        self._idle = []
        self._resources = resources
        new = range(placement.workers - len(workers))
        return workers + [_start_worker(ray, placement) for _ in new]

    def _keep_workers(
        self, ray: Any, free: list[Any], tasks: Sequence[tuple[Any, int | None]]
    ) -> None:
        """Keep the workers that have nothing to do. Where some still work, after an error or
        because nobody wants the results, those are ended."""
        is_running = any(index is not None for _, index in tasks)
        for worker, _ in tasks:
            if is_running:
                ray.kill(worker)
            else:
                free.append(worker)
        for worker in free:
            worker.release.remote()
        self._idle = free

    def _note_opened(self, outcome: Any) -> None:
        """Note the device of a worker that opened the work, or raise its error. One that died
        while it was idle has been replaced."""
        if not isinstance(outcome, Failure):
            if outcome is not None and outcome not in self._facts["devices"]:
                self._facts["devices"].append(outcome)
        elif not outcome.worker_died or self._facts["replaced"] > self.attempts:
            raise LayerscopeError(f"a worker could not start: {outcome.reason}.")

    def facts(self) -> dict[str, Any]:
        """Return what did the last work."""
        return {"name": self.name, "ray": require_ray().__version__, **self._facts}

    def close(self) -> None:
        """End the workers and the connection, and stop the cluster if it was started here."""
        ray = require_ray()
        if ray.is_initialized():
            for worker in self._idle:
                ray.kill(worker)
        self._idle = []
        if self._close_connection is not None:
            self._close_connection()
            self._close_connection = None

    def _no_room(self, ray: Any, placement: Placement) -> LayerscopeError:
        free = ray.available_resources()
        return LayerscopeError(
            f"no worker could start within {self.start_timeout:.0f} s: each needs "
            f"{placement.cpus:g} cores and {placement.gpus:g} GPUs, and of the cluster "
            f"{free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs are free. End what uses "
            "the rest, or lower workers= or gpus_per_worker=, and run the same command again."
        )

    def _connect(self) -> Any:
        """Return ray, connected to the cluster."""
        ray = require_ray()
        if ray.is_initialized():
            return ray
        self._idle = []  # workers of an earlier connection ended with it
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            # Ray would try for minutes to reach an address where nothing listens.
            host, _, port = address.rpartition(":")
            if host and "//" not in host and port.isdigit():
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            self._close_connection = connect(ray, address)
        except (ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            raise LayerscopeError(
                f"no Ray cluster answers at {address!r} ({_describe(error)}). Start one with "
                "`ray start --head`, add machines with `ray start --address HEAD:6379`, and give "
                "address='HEAD:6379' (or 'auto' on one of its machines)."
            ) from error
        return ray


def _machines(ray: Any) -> list[Machine]:
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [
        Machine(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0), amounts.get("memory", 0.0))
        for amounts in resources
    ]


def _start_worker(ray: Any, placement: Placement) -> Any:
    """Return a new worker, which starts as soon as there is room for it."""
    options = {
        "num_cpus": placement.cpus,
        "num_gpus": placement.gpus,
        "scheduling_strategy": "SPREAD",
    }
    return ray.remote(Worker).options(**options).remote(hide_gpus=not placement.gpus)


def _outcome(ray: Any, reference: Any) -> Any:
    """Return what a worker's task returned, or its failure; raise an error of layerscope's."""
    try:
        outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return Failure(_describe(error), worker_died=False)
    except ray.exceptions.RayError as error:
        reason = f"its worker died: {_describe(error)}"
        log.warning("%s. Another one is started.", reason)
        return Failure(reason, worker_died=True)
    if isinstance(outcome, Refusal):
        raise outcome.error()
    return outcome


def _describe(error: Exception) -> str:
    """Return an error as one line. An error in a worker is that of the code there."""
    source = getattr(error, "cause", None) or error
    lines = str(source).strip().splitlines() or ["no more is known"]
    return f"{type(source).__name__}: {lines[0].rstrip('.')}"
