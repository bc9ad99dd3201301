"""Shared by all tests: a cache of their own, one thread (several fight on a busy machine), texts and a small model."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when numpy is first imported: a small SVD is 30 x slower with threads that fight

import pytest
import torch

from tests.tiny import build_tiny, tiny_tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests, a file stays together, and so do clusters, which would take each other's cores."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("cluster" if "cluster" in item.fixturenames else item.nodeid.split("::")[0]))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing touches the user's cache, except tests marked `real`."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a folder on disk, as a user would have one."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    build_tiny("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Ten short texts of different lengths."""
    sentence = "the quick brown fox jumps over a lazy dog while seven wizards mix odd potions"
    return [f"{sentence[3 * i : 20 + 9 * i]} {i}." for i in range(10)]
