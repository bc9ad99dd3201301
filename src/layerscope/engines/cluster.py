"""The connection to a Ray cluster, a cluster of one's own that is closed to others, and how a
cluster is divided among workers."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.extras import missing

__all__ = ["Machine", "Placement", "connect", "place", "require_ray"]

log = logging.getLogger("layerscope")


def require_ray() -> Any:
    """Return the ray package, with its telemetry off; name the extra where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it, Ray warns about how it hides GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise missing("ray") from None
    return ray


def connect(ray: Any, address: str) -> Callable[[], None]:
    """Connect to a cluster, or start one; return what ends the connection."""
    options: dict[str, Any] = {"address": address, "include_dashboard": False}
    if "//" not in address:
        options["job_config"] = _job_config()
    restore_output = _redirect_output()
    try:
        with _closed_to_others(started_here=address == "local"):
            ray.init(
                **options,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="layerscope",
            )
    except BaseException:
        restore_output()
        raise

    def end() -> None:
        ray.shutdown()
        _read_authentication_again()
        restore_output()

    return end


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

    Ray prints a page on stdout, where `--json` writes, for every worker that dies. Ray has no
    setting for this, so its function is replaced; a version without that function is left alone.
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


# Workers of a cluster


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
        room = sum(int(machine.gpus / gpus + 1e-9) for machine in machines)
        if not room:
            most = max((machine.gpus for machine in machines), default=0)
            raise LayerscopeError(
                f"{gpus:g} GPUs per worker were asked for, and no machine of the cluster has more "
                f"than {most:g}. Lower gpus_per_worker= (0: use the CPUs)."
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


def check_request(workers: int | None, gpus: float | None) -> None:
    """Raise where no cluster can meet a request."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"workers= must be 1 or more, not {workers}.")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise InvalidValueError(
            f"gpus_per_worker= is a whole number, or a share of one GPU such as 0.5, not {gpus:g}."
        )
