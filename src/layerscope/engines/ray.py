"""The engine that spreads work over the machines of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from layerscope.engines.base import Advance, Engine, Item, Result, Results, Work, ignore_progress
from layerscope.engines.dispatch import Dispatch, IdleWorkers, Machine, check_request, place
from layerscope.errors import LayerscopeError
from layerscope.extras import missing

log = logging.getLogger("layerscope")


class RayEngine(Engine):
    """Workers on a Ray cluster, each an actor that opens its work once.

    `address` is the address of a cluster (`auto`: the one this machine belongs to). Without it,
    `RAY_ADDRESS` is used, or a cluster is started here and stopped at the end: it listens on the
    loopback address only and needs a token that only its own processes have. An item that fails or
    loses its worker is tried `attempts` times; Ray starts a worker that died again. The engine
    connects when there is something to do. Its workers stay until it is closed, so that the next
    piece of work need not start them again.

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
        self.address, self.workers, self.gpus_per_worker = address, workers, gpus_per_worker
        self.attempts, self.start_timeout = attempts, start_timeout
        self._connected_here = False
        self._idle = IdleWorkers()
        self._restore_output: Callable[[], object] = lambda: None
        self._facts: dict[str, Any] = {}
        self.current: Dispatch | None = None  # the work that is being done

    @property
    def device_type(self) -> str:
        """What workers compute on."""
        machines = self._machines(self._connected())
        return "cuda" if place(machines, 1, self.workers, self.gpus_per_worker).gpus else "cpu"

    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """(number of an item, its result), as workers finish them."""
        if not items:
            return
        ray = self._connected()
        machines = self._machines(ray)
        placement = place(machines, len(items), self.workers, self.gpus_per_worker, work.memory)
        wanted = min(self.workers or 0, len(items))
        if placement.workers < wanted:
            log.warning(
                "%d workers with %g GPUs each were asked for, and the cluster has %g GPUs: %d workers are started. Lower "
                "workers=, add machines, or let workers share a GPU (gpus_per_worker=0.5).",
                *(
                    self.workers,
                    placement.gpus,
                    sum(machine.gpus for machine in machines),
                    placement.workers,
                ),
            )
        limits = (self.attempts, self.start_timeout)
        self.current = dispatch = Dispatch(
            ray, work, items, placement, advance, *limits, self._idle
        )
        try:
            yield from dispatch.results()
        finally:
            self.current = None
            self._facts = {
                "workers": placement.workers,
                "gpus_per_worker": placement.gpus,
                "threads_per_worker": placement.threads,
                **dispatch.facts,
            }

    def facts(self) -> dict[str, Any]:
        """What did the last work."""
        return {"name": self.name, "ray": require_ray().__version__, **self._facts}

    def close(self) -> None:
        """End the workers, close the connection, and stop the cluster if it was started here."""
        ray = require_ray()
        if ray.is_initialized():
            self._idle.trim(ray, None, 0)
        self._idle = IdleWorkers()
        if self._connected_here:
            ray.shutdown()
            _read_authentication_again()
            self._restore_output()
            self._connected_here = False

    def _connected(self) -> Any:
        ray = require_ray()
        if ray.is_initialized():
            return ray
        self._check_address()
        self._idle = IdleWorkers()  # those of an earlier connection ended with it
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        options = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": "layerscope",
        }
        if "//" not in address:
            options["job_config"] = _job_config()
        self._restore_output = _redirect_output()
        try:
            with _closed_to_others(started_here=address == "local"):
                ray.init(address=address, include_dashboard=False, **options)
        except (
            ConnectionError,
            ValueError,
            RuntimeError,
            OSError,
            ray.exceptions.RayError,
        ) as error:
            self._restore_output()
            raise self._no_cluster(error) from error
        self._connected_here = True
        return ray

    def _check_address(self) -> None:
        """Fail early: Ray would try for minutes to reach an address where nothing listens."""
        host, _, port = (self.address or "").rpartition(":")
        if "//" in host or not host or not port.isdigit():
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise self._no_cluster(error) from error

    def _no_cluster(self, error: Exception) -> LayerscopeError:
        where = (
            f"no Ray cluster answers at {self.address!r}"
            if self.address
            else "Ray could not be started on this machine"
        )
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        return LayerscopeError(
            f"{where} ({reason}). Start one with `ray start --head`, add machines with `ray start --address HEAD:6379`, and give "
            "address='HEAD:6379' (or 'auto' on one of its machines)."
        )

    @staticmethod
    def _machines(ray: Any) -> list[Machine]:
        return [Machine.of(node["Resources"]) for node in ray.nodes() if node["Alive"]]


@contextmanager
def _closed_to_others(started_here: bool) -> Iterator[None]:
    """Bind a cluster that is started in the block to the loopback address, with a token of its own.

    Ray would bind it to all addresses of the machine, and would keep its token in a file of the
    home folder that other users can often read. The token is in the environment of the cluster's
    processes, which no other user can read. The current folder is not on their path. A cluster of
    the user's own is left as it is.
    """
    if not started_here:
        yield
        return
    from ray._private import ray_constants

    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PYTHONSAFEPATH": "1",
    }
    environment_before = {name: os.environ.get(name) for name in settings}
    clusters_before = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(settings)
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray's own switch for "this machine alone"
    _read_authentication_again()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters_before
        for name, value in environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _read_authentication_again() -> None:
    """Make Ray read its authentication settings from the environment again: it keeps the first."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _job_config() -> Any:
    """Return job settings by which workers import only from folders that this process imports from.

    Ray puts the current folder first on the path of all workers, so that a `numpy.py` beside the
    data would be run there. Ray has no setting for this, so its method is extended.
    """
    job_config: Any = importlib.import_module("ray.job_config")

    class SamePath(job_config.JobConfig):
        _py_driver_sys_path: list[str]

        def _get_proto_job_config(self) -> Any:
            folders = {os.path.abspath(folder) for folder in sys.path}
            self._py_driver_sys_path = [
                folder for folder in self._py_driver_sys_path if folder in folders
            ]
            return super()._get_proto_job_config()

    return SamePath()


def _redirect_output() -> Callable[[], object]:
    """Send what the cluster prints to the log, until the returned function is called.

    Ray prints a page on stdout, where `--json` writes, for every worker and node that dies; our own
    warning says that a worker died. Ray has no setting for this, so its function is replaced; a
    version without that function is left alone.
    """
    from ray._private import worker

    before = getattr(worker, "print_to_stdstream", None)
    if before is None:
        return lambda: None

    def to_log(data: Any, *_: Any, **__: Any) -> None:
        for line in data.get("lines", ()):
            log.info("%s", line)

    worker.print_to_stdstream = to_log
    return partial(setattr, worker, "print_to_stdstream", before)


def require_ray() -> Any:
    """The ray package, without its telemetry; says which extra is missing where it is not
    installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # or Ray warns about how it hides GPUs
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise missing("ray") from None
    return ray
