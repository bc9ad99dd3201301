"""The folder beside `out` from which a stopped improvement resumes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.exporting.folder import check_free
from layerscope.store import RunFolder, atomic
from layerscope.store.atomic import lock_beside
from layerscope.store.folder import config_key, is_complete

PLAN = "plan.json"
_TRAINING = "training"


@dataclass(frozen=True)
class FitPlan:
    """The number of texts that a fit reads, and of prompts that teach it."""

    texts: int
    prompts: int = 1


@contextmanager
def working_folder(out: Path | None) -> Iterator[Path | None]:
    """Be the only process that improves into `out`; yield the folder for unfinished work."""
    if out is None:
        yield None
        return
    with lock_beside(out.resolve(), "improving") as work:
        yield work
        _clear(work)


@contextmanager
def training_folder(work: Path | None) -> Iterator[Path]:
    """Yield the folder for the checkpoints of a training."""
    if work is None:
        with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
            yield Path(folder)
        return
    place = work / _TRAINING
    place.mkdir(exist_ok=True)
    yield place


def settle_plan(work: Path | None, key: str, plan: FitPlan) -> FitPlan:
    """Return the plan that a stopped run of the same key began with, or record this one.

    A limit in minutes allows another number of texts each time it is estimated.
    """
    if work is None:
        return plan
    file = work / PLAN
    recorded = read_json(file) if file.is_file() else {}
    if recorded.get("key") == key:
        return FitPlan(recorded["texts"], recorded["prompts"])
    _clear(work)
    atomic.write_json(file, {"key": key, **asdict(plan)})
    return plan


def _clear(work: Path) -> None:
    (work / PLAN).unlink(missing_ok=True)
    shutil.rmtree(work / _TRAINING, ignore_errors=True)


def is_done(out: Path | None, overwrite: bool, config: dict[str, Any]) -> bool:
    """Return whether `out` holds this very run, finished; refuse a folder that is in the way."""
    if out is None:
        return False
    manifest = RunFolder(out).manifest() if out.is_dir() else None
    if not overwrite and manifest is not None and is_complete(manifest):
        is_same = config_key(manifest.get("config") or {}) == config_key(config)
        if is_same:
            return True
    check_free(out, overwrite)
    return False
