"""Reloading in this process: quick, for tests that do not need a fresh one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.exporting import reload_child, verifying


def reload_here(
    jobs: Sequence[dict[str, Any]], scratch: Path
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Do the work of the fresh process in this one."""
    facts_file = scratch / "facts.json"
    jobs = [{**job, "out": str(scratch / f"{i}.npy")} for i, job in enumerate(jobs)]
    work = {"threads": 1, "jobs": jobs, "facts": str(facts_file)}
    (scratch / "jobs.json").write_text(json.dumps(work))
    reload_child.main(str(scratch / "jobs.json"))
    facts = json.loads(facts_file.read_text())
    assert facts.pop("layerscope_loaded")  # it is: these are its tests
    return [np.load(job["out"]) for job in jobs], facts


@contextmanager
def verified_here() -> Iterator[None]:
    """Verify exports in this process."""
    pytest.importorskip("sentence_transformers")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verifying, "reload", reload_here)
        yield


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Verify exports in this process, by the test's own `monkeypatch`."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(verifying, "reload", reload_here)
    return reload_here
