"""An engine on a cluster of two nodes, and models as folders that its workers can load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerscope.engines import RayEngine
from tests.ray_cluster import two_nodes


@pytest.fixture(scope="session")
def cluster() -> Any:
    return two_nodes()


@pytest.fixture
def engine(cluster: Any) -> Iterator[RayEngine]:
    with RayEngine(cluster.address) as opened:
        yield opened


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Enough texts for several shards of 32."""
    sentence = "the quick brown fox jumps over a lazy dog while seven wizards mix odd potions"
    return [f"{sentence[i % 20 : 24 + i % 37]} {i}" for i in range(200)]


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    return {"max_length": 32, "views": 2, "permutations": 2}


@pytest.fixture(scope="session")
def local(model_folder: Path, prompts: list[str], settings: dict[str, Any]) -> Any:
    """The profile that one process computes."""
    from layerscope import profile

    return profile(model_folder, prompts, **settings)
