"""Shared by the tests of the kernels: a cache of their own and one thread. They need no GPU:
kernels run in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.conftest import few_experiments

__all__ = ["few_experiments"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
