"""The zoo's tests share what the core's tests have: a cache of their own, one thread, a tiny
model."""

from tests.conftest import (
    caches,
    few_experiments,
    model_folder,
    one_thread,
    own_cache,
    pytest_runtest_setup,
    texts,
)

__all__ = [
    "caches",
    "few_experiments",
    "model_folder",
    "one_thread",
    "own_cache",
    "pytest_runtest_setup",
    "texts",
]
