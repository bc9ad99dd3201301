"""The tests of images and speech share what the core's tests have: a cache of their own, one thread, a tiny
model."""

from tests.cli.conftest import cli
from tests.conftest import (
    caches,
    cluster,
    few_experiments,
    model_folder,
    one_thread,
    own_cache,
    pytest_runtest_setup,
    texts,
)
from tests.engines.conftest import engine

__all__ = [
    "caches",
    "cli",
    "cluster",
    "engine",
    "few_experiments",
    "model_folder",
    "one_thread",
    "own_cache",
    "pytest_runtest_setup",
    "texts",
]
