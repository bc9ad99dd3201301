"""Reloading in this process: quick, for what does not need a fresh one."""

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
) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """What the fresh process does, in this one."""
    jobs = [{**job, "out": str(scratch / f"{i}.npz")} for i, job in enumerate(jobs)]
    listed = scratch / "jobs.json"
    listed.write_text(
        json.dumps({"threads": 1, "jobs": jobs, "facts": str(scratch / "facts.json")})
    )
    reload_child.main(str(listed))
    facts = json.loads((scratch / "facts.json").read_text())
    assert facts["layerscope_loaded"]  # it is: these are its tests
    return [dict(np.load(job["out"])) for job in jobs], {**facts, "layerscope_loaded": False}


@contextmanager
def verified_here() -> Iterator[None]:
    """What is exported is verified in this process."""
    pytest.importorskip("sentence_transformers")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verifying, "reload", reload_here)
        yield


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Verify in this process. By the test's own `monkeypatch`: what a test puts there itself is
    undone in the right order."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(verifying, "reload", reload_here)
    return reload_here
