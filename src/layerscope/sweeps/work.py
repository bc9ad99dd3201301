"""Jobs of a sweep as work for an engine: one job per worker at a time, its folder brought home."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.data import Corpus
from layerscope.engines.base import Advance, Work
from layerscope.store import atomic
from layerscope.sweeps.jobs import SweepJob
from layerscope.sweeps.read import CorpusEntry

_MARK = ".sweep"


@dataclass(frozen=True)
class JobResult:
    """How a job ended; `files` is its folder's content where the worker could not write to the sweep's own."""

    status: str
    seconds: float
    reason: str = ""
    files: dict[str, bytes] | None = None


class JobWork(Work[SweepJob, JobResult]):
    """A job in, its end out: an error belongs to its job alone."""

    def __init__(self, out: Path, corpora: Mapping[CorpusEntry, Corpus], memory: int = 0, alone: bool = True) -> None:
        """`alone`: whether one job at a time runs on a machine."""
        self.out, self.corpora, self.memory, self.alone = out.absolute(), dict(corpora), memory, alone
        self.mark = f"{self.out} {time.time_ns()}"
        atomic.write_text(self.out / _MARK, self.mark)

    def run(self, item: SweepJob, prepared: Any, advance: Advance, common: Any) -> JobResult:
        """Run it in the sweep's folder where this machine sees it, else in its own cache."""
        shared = self._sees_the_folder()
        # a machine's own cache is kept, so that a job that comes back to it goes on where it was
        mine = cache_dir() / "sweeps" / hashlib.sha256(str(self.out).encode()).hexdigest()[:16]
        folder = (self.out if shared else mine) / item.name
        begun = time.perf_counter()
        try:
            found = item.run(folder, self.corpora, self.alone)
        except Exception as error:
            reason = " ".join(str(error).split()) or "no reason given"
            kind = "" if type(error).__module__.startswith("layerscope") else f"{type(error).__name__}: "
            return JobResult("failed", time.perf_counter() - begun, kind + reason)
        finally:
            advance(1)
        problems = [f"{one['task']}: {one['reason']}" for one in getattr(found, "failed", None) or ()]
        files = None if shared else _read_all(folder)
        return JobResult("failed" if problems else "complete", time.perf_counter() - begun, "; ".join(problems), files)

    def give_up(self, item: SweepJob, reason: str) -> JobResult:
        """A job that lost its worker too often has failed; the others go on."""
        return JobResult("failed", 0.0, reason)

    def name(self, item: SweepJob) -> str:
        """The job's name."""
        return item.name

    def _sees_the_folder(self) -> bool:
        try:
            return (self.out / _MARK).read_text(encoding="utf-8") == self.mark
        except OSError:
            return False


def bring_home(folder: Path, result: JobResult) -> None:
    """Write a job's folder from what its worker sent; the manifest comes last, for it says that the rest is there."""
    files = dict(result.files or {})
    for name in sorted(files, key=lambda name: name == "manifest.json"):
        atomic.write_bytes(folder / name, files[name])


def _read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
