"""Mutated inputs end in a result or in one clear line: no traceback, no warning in place of an
answer."""

from __future__ import annotations

import logging
import os

import pytest

from tests.faults.fuzz import CASES, fuzz

# a few hundred in every test run; `make faults` has more than ten thousand
QUICK = {
    "corpus": 60, "rows": 25, "labels": 40, "model": 25, "run": 9, "choice": 20, "task": 20,
    "command": 7, "layer_map": 6, "embedding": 10,
}  # fmt: skip
SEED = int(os.environ.get("LAYERSCOPE_FAULTS_SEED", "0"))


@pytest.mark.parametrize("name", CASES)
def test_mutated_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LAYERSCOPE_CACHE", "LAYERSCOPE_DEBUG", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(
            variable, os.environ.get(variable, "")
        )  # put back what the fuzzer and the command line set
    try:
        found = fuzz(name, QUICK[name], SEED)
    finally:
        logging.disable(logging.NOTSET)
    assert found["inputs"] == QUICK[name]
    assert not found["defects"], "\n".join(found["defects"])
