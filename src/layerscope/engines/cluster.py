"""The connection to a Ray cluster, and a cluster of one's own that is closed to others."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from layerscope.extras import missing

__all__ = ["connect", "require_ray"]

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
