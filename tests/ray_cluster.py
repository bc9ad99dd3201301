"""A Ray cluster of two nodes on this machine, started once for all tests that need one."""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from layerscope.engines.cluster import require_ray
from layerscope.extras import MissingExtraError

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
# a node that is gone is noticed within ten seconds; one that only waits for a core on a busy
# machine is not taken for gone
_QUICK = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 20,
}


@functools.cache
def two_nodes() -> Any:
    """The cluster; the test is skipped where ray is not installed."""
    try:
        require_ray()
    except MissingExtraError:
        pytest.skip("ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:  # what the nodes' workers see
        patched.setenv("LAYERSCOPE_CACHE", tempfile.mkdtemp(prefix="layerscope-ray-cache-"))
        cluster = Cluster(
            initialize_head=True,
            head_node_args={**NODE, "include_dashboard": False, "_system_config": _QUICK},
        )
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
    atexit.register(stop)
    return cluster


@contextmanager
def fake_gpus(cluster: Any, count: int) -> Iterator[None]:
    """A third node that says it has GPUs. Ray hands them out as it would real ones; torch finds
    none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(
            "CUDA_VISIBLE_DEVICES", raising=False
        )  # Ray compares it with the number of GPUs
        node = cluster.add_node(**{**NODE, "num_cpus": count, "num_gpus": count})
    cluster.wait_for_nodes()
    try:
        yield
    finally:
        cluster.remove_node(node)
        cluster.wait_for_nodes()  # until the node is missed: other tests count on two


def stop() -> None:
    """End the cluster, if there is one."""
    if two_nodes.cache_info().currsize:
        two_nodes().shutdown()
        two_nodes.cache_clear()
