"""Damage to any file of a stopped run or of the store: the same command again gives the same
numbers, or a clear refusal."""

from __future__ import annotations

import os

import pytest

from tests.faults.damage import KINDS
from tests.faults.support import run_tool

SEED = int(os.environ.get("LAYERSCOPE_FAULTS_SEED", "0"))
# a few in every test run; `make faults` damages thousands of files of every kind
QUICK = {"profile-killed": 6, "evaluate-killed": 6, "store": 40}
SLOW = ("evaluate-killed",)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in QUICK]
)
def test_damage(kind: str) -> None:
    assert kind in KINDS
    found = run_tool("damage", kind, QUICK[kind], SEED)
    assert found["files"] == QUICK[kind]
    assert found["silent"] == []
    assert found["errors"] == []
