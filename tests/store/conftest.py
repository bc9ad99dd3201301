"""What is written here is synced to the disk, as users' runs are."""

from __future__ import annotations

import os

import pytest

from tests.conftest import FSYNC


@pytest.fixture(autouse=True)
def sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", FSYNC)
