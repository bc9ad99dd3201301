"""An engine on a cluster of two nodes, and what its workers are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerscope.engines import RayEngine


@pytest.fixture(scope="package")
def engine(cluster: Any) -> Iterator[RayEngine]:
    """One for all tests of this folder: its workers stay, and take seconds to start."""
    with RayEngine(cluster.address) as opened:
        yield opened


@pytest.fixture
def free_cluster(cluster: Any, engine: RayEngine) -> Any:
    """The cluster with all its cores free, for tests that start another engine. The shared one
    connects again when it is used."""
    engine.close()
    return cluster


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
