"""The engine that spreads work over the machines of a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.engines.base import Advance, Engine, Item, Result, Results, Work, ignore_progress
from layerscope.engines.cluster import connect, require_ray
from layerscope.engines.workers import (
    Job,
    Machine,
    Placement,
    Refusal,
    Worker,
    WorkerFacts,
    check_request,
    place,
)
from layerscope.errors import LayerscopeError

__all__ = ["RayEngine"]

log = logging.getLogger("layerscope")


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
        self._without_cuda: set[str] = set()
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
        placement = self._place(_machines(ray), work.memory, len(items))
        self._facts = {
            "workers": placement.workers,
            "gpus_per_worker": placement.gpus,
            "replaced": 0,
            "devices": [],
        }
        job = Job(ray.put(work), placement.threads)
        idle = self._take_idle(ray, placement)
        opening = {worker.open.remote(job): worker for worker in idle}
        for _ in range(placement.workers - len(idle)):
            worker = _start_worker(ray, placement)
            opening[worker.open.remote(job)] = worker
        running: dict[Any, tuple[Any, int]] = {}
        free: deque[Any] = deque()
        waiting = deque(range(len(items)))
        failures: Counter[int] = Counter()
        try:
            while waiting or running:
                while free and waiting:
                    worker = free.popleft()
                    index = waiting.popleft()
                    running[worker.run.remote(items[index])] = (worker, index)
                timeout = None if running else self.start_timeout
                ready, _ = ray.wait([*opening, *running], timeout=timeout)
                if not ready:
                    raise self._no_room(ray, placement)
                if ready[0] in opening:
                    worker = opening.pop(ready[0])
                    try:
                        self._note_facts(_opened(ray, ready[0]))
                        free.append(worker)
                    except ray.exceptions.RayError as error:
                        if worker not in idle:
                            reason = _describe(error)
                            raise LayerscopeError(f"a worker could not start: {reason}") from error
                        worker = _start_worker(ray, placement)  # the other ended while it was idle
                        opening[worker.open.remote(job)] = worker
                    continue
                worker, index = running.pop(ready[0])
                outcome = _outcome(ray, ready[0])
                if isinstance(outcome, Failure) and outcome.worker_died:
                    self._facts["replaced"] += 1
                    worker = _start_worker(ray, placement)  # as soon as there is room for it
                    opening[worker.open.remote(job)] = worker
                else:
                    free.append(worker)
                if not isinstance(outcome, Failure):
                    result, units = outcome
                    if units:
                        advance(units)
                    yield index, result
                    continue
                failures[index] += 1
                if failures[index] < self.attempts:
                    waiting.appendleft(index)
                else:
                    reason = f"failed {self.attempts} times, the last time: {outcome.reason}"
                    yield index, work.give_up(items[index], reason)
        finally:
            self._keep_workers(ray, free, opening, running)

    def _place(self, machines: list[Machine], memory: int, items: int) -> Placement:
        """Return how the cluster is divided; warn where it has too few GPUs."""
        placement = place(machines, items, self.workers, self.gpus_per_worker, memory)
        if placement.workers < min(self.workers or 0, items):
            log.warning(
                "%d workers with %g GPUs each were asked for, and the cluster has %g GPUs: %d "
                "workers are started. Lower workers=, add machines, or let workers share a GPU "
                "(gpus_per_worker=0.5).",
                self.workers,
                placement.gpus,
                sum(machine.gpus for machine in machines),
                placement.workers,
            )
        return placement

    def _keep_workers(
        self,
        ray: Any,
        free: Iterable[Any],
        opening: Mapping[Any, Any],
        running: Mapping[Any, tuple[Any, int]],
    ) -> None:
        """Keep the workers that have nothing to do, and end the others."""
        idle = list(free)
        if running:  # an error, or the results are not wanted any more
            for worker in [*opening.values(), *(worker for worker, _ in running.values())]:
                ray.kill(worker)
        else:
            idle += opening.values()
        for worker in idle:
            worker.release.remote()
        self._idle = idle

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

    def _take_idle(self, ray: Any, placement: Placement) -> list[Any]:
        """Return the workers of the last work, as far as they fit the next: a new process imports
        torch for seconds."""
        resources = (placement.cpus, placement.gpus)
        workers = self._idle if resources == self._resources else []
        workers = workers[: placement.workers]
        for worker in self._idle:
            if worker not in workers:  # it holds cores and GPUs
                ray.kill(worker)
        self._idle = []
        self._resources = resources
        return workers

    def _no_room(self, ray: Any, placement: Placement) -> LayerscopeError:
        free = ray.available_resources()
        return LayerscopeError(
            f"no worker could start within {self.start_timeout:.0f} s: each needs "
            f"{placement.cpus:g} cores and {placement.gpus:g} GPUs, and of the cluster "
            f"{free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs are free. End what uses "
            "the rest, add a machine, or lower workers= or gpus_per_worker=. What was finished is "
            "kept: run the same command again to resume."
        )

    def _note_facts(self, worker: WorkerFacts) -> None:
        devices = self._facts["devices"]
        if worker.device is not None and worker.device not in devices:
            devices.append(worker.device)
        if worker.gpus and not worker.has_cuda and worker.machine not in self._without_cuda:
            self._without_cuda.add(worker.machine)
            log.warning(
                "a worker on %s was given a GPU, but its torch (%s) finds none: it uses the CPU. "
                "Install a torch built for CUDA there (`layerscope doctor` says what it finds), or "
                "give gpus_per_worker=0.",
                worker.machine,
                worker.torch,
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
            raise self._no_cluster(error) from error
        return ray

    def _no_cluster(self, error: Exception) -> LayerscopeError:
        cluster = "Ray could not be started on this machine"
        if self.address:
            cluster = f"no Ray cluster answers at {self.address!r}"
        return LayerscopeError(
            f"{cluster} ({_describe(error)}). Start one with `ray start --head`, add machines with "
            "`ray start --address HEAD:6379`, and give address='HEAD:6379' (or 'auto' on one of "
            "its machines)."
        )


def _machines(ray: Any) -> list[Machine]:
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [
        Machine(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0), amounts.get("memory", 0.0))
        for amounts in resources
    ]


@dataclass(frozen=True)
class Failure:
    """A worker's failure at an item, which may be tried again."""

    reason: str
    worker_died: bool


def _outcome(ray: Any, reference: Any) -> tuple[Any, int] | Failure:
    """Return the result of an item and its units, or the failure; raise an error of
    layerscope's."""
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
    result, units = outcome
    return result, units


def _start_worker(ray: Any, placement: Placement) -> Any:
    """Return a new worker, which starts as soon as there is room for it."""
    options = {
        "num_cpus": placement.cpus,
        "num_gpus": placement.gpus,
        "scheduling_strategy": "SPREAD",
    }
    return ray.remote(Worker).options(**options).remote(hide_gpus=not placement.gpus)


def _opened(ray: Any, reference: Any) -> WorkerFacts:
    """Return the facts of a worker that opened its work; raise where it could not."""
    facts = ray.get(reference)
    if isinstance(facts, Refusal):
        raise LayerscopeError(f"a worker could not start: {facts.message}")
    assert isinstance(facts, WorkerFacts)
    return facts


def _describe(error: Exception) -> str:
    """Return an error as one line. An error in a worker is that of the code there."""
    source = getattr(error, "cause", None) or error
    lines = str(source).strip().splitlines() or ["no more is known"]
    return f"{type(source).__name__}: {lines[0].rstrip('.')}"
