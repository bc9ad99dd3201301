"""Workers that are given GPUs, on a node that only says it has two: who gets which, and what a
worker does without CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerscope import profile
from layerscope.engines import RayEngine
from layerscope.errors import LayerscopeError
from tests.engines.works import mapped, meet
from tests.profiling.support import assert_same_numbers
from tests.ray_cluster import fake_gpus


@pytest.fixture(scope="module")
def gpu_engine(cluster: Any) -> Iterator[RayEngine]:
    """Three workers with a GPU each are asked for; there are two GPUs."""
    import torch

    if torch.cuda.is_available():
        pytest.skip(
            "these GPUs are not real, and a worker that takes them for those of this machine would use them"
        )
    with fake_gpus(cluster, 2), RayEngine(cluster.address, workers=3, gpus_per_worker=1) as opened:
        yield opened


def test_every_worker_has_one_gpu_of_its_own(gpu_engine: RayEngine, tmp_path: Path) -> None:
    found = mapped(gpu_engine, meet, [tmp_path] * 6)
    by_process = {process: (given, visible) for process, given, visible in found}
    assert sorted(by_process.values()) == [([0], "0"), ([1], "1")]
    assert len(set(map(str, found))) == 2  # a worker keeps its GPU from item to item
    assert gpu_engine.facts()["workers"] == 2
    assert gpu_engine.facts()["gpus_per_worker"] == 1


def test_more_gpus_than_a_machine_has(gpu_engine: RayEngine, cluster: Any) -> None:
    with (
        RayEngine(cluster.address, gpus_per_worker=3) as asked,
        pytest.raises(
            LayerscopeError,
            match=r"3 GPUs per worker were asked for.* more than 2\. Lower gpus_per_worker= \(0: use",
        ),
    ):
        mapped(asked, len, ["a"])


def test_gpus_that_others_use(gpu_engine: RayEngine, cluster: Any, tmp_path: Path) -> None:
    mapped(gpu_engine, meet, [tmp_path] * 2)  # its two workers stay, and keep both
    with (
        RayEngine(cluster.address, gpus_per_worker=1, start_timeout=1) as waiting,
        pytest.raises(
            LayerscopeError,
            match=r"no worker could start .* needs 1 cores and 1 GPUs, .* and 0 GPUs are free\. End what",
        ),
    ):
        mapped(waiting, len, ["a"])


def test_a_worker_without_cuda_uses_its_cpu_and_says_so(
    gpu_engine: RayEngine, model_folder: Path, prompts: list[str]
) -> None:
    given: dict[str, Any] = {"max_length": 16, "views": 2, "permutations": 2}
    here = profile(model_folder, prompts[:24], **given)
    there = profile(model_folder, prompts[:24], engine=gpu_engine, **given)
    assert_same_numbers(here.table, there.table, 1e-6)
    assert there.manifest["environment"]["device"] == "cpu"
    assert there.manifest["environment"]["engine"]["devices"] == ["cpu"]
    assert there.manifest["environment"]["engine"]["gpus_per_worker"] == 1
    assert there.manifest["conventions"]["precision"] == here.manifest["conventions"]["precision"]
