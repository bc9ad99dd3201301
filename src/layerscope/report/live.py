"""A page that follows a running profile, and which page to show of runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.report.contents import gather
from layerscope.report.write import write, write_report
from layerscope.store import atomic

if TYPE_CHECKING:
    from layerscope.forward import Plan
    from layerscope.profiling.job import Job
    from layerscope.profiling.run import Profile
    from layerscope.store import ShardStore


LIVE_PAGE = "live.html"
# Metrics of what is there so far may take at most this share of the run's time.
_SHARE = 0.1
_EVERY = 5


class LivePage:
    """Writes RUN/live.html as shards of texts are finished, and the full report at the end."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LIVE_PAGE
        self.started = time.perf_counter()
        self.spent = 0.0
        self.written = 0

    def update(self, job: Job, plan: Plan, store: ShardStore) -> None:
        """After a shard: the metrics of all finished texts, unless that would slow the run down. Never fails the run."""
        elapsed = time.perf_counter() - self.started
        if self.written and self.spent > _SHARE * elapsed:
            return
        start = time.perf_counter()
        try:
            done = [i for i in range(len(plan.shards)) if store.has(i)]
            self._write(job, plan, store, done, elapsed)
        except (LayerscopeError, ValueError, OSError):  # too few texts for a metric, or a full disk: the run itself goes on
            return
        finally:
            self.spent += time.perf_counter() - start

    def finish(self, run: Profile) -> None:
        """The run is complete: the page is its report."""
        write_report([run], self.path)

    def _write(self, job: Job, plan: Plan, store: ShardStore, done: list[int], elapsed: float) -> None:
        from layerscope.profiling.run import Profile
        from layerscope.profiling.tables import TableBuilder
        from layerscope.report.page import page

        shards = [replace(store.read(i), prompts=plan.shards[i]) for i in done]
        builder = TableBuilder(job.config, job.sites, plan, job.model.width)
        table = builder.build(shards)
        n = sum(len(shard.prompts) for shard in shards)
        manifest = job.manifest(plan, builder, {"resumed_prompts": 0, "residual_error": None, "empty_views": 0}, {})
        manifest["counts"]["prompts"] = n
        run = Profile(table, manifest, table.iloc[:0])
        live: dict[str, Any] = {
            "done": False,
            "every": _EVERY,
            "text": f"Running: {n} of {plan.n_prompts} texts in {elapsed:.0f} s. "
            "These are the metrics of those texts; the page follows.",
        }
        atomic.write_text(self.path, page(gather([run], live=live)))
        self.written += 1


def page_for(runs: Sequence[Path], others: Sequence[Any] = (), asks: bool = False, texts: bool = True) -> Path:
    """The file to show: a running profile's live page, or a new report in the only run's folder or a temporary one.

    A page that `asks` has a box for questions, which only its server can answer: it goes to a temporary folder.
    """
    if asks:
        report = replace(gather([*runs, *others], texts=texts), asks=True)
        return write(report, Path(tempfile.mkdtemp(prefix="layerscope-")) / "report.html")
    if len(runs) == 1 and not others:
        live = runs[0] / LIVE_PAGE
        if live.exists() and _running(runs[0]):
            return live
        try:
            return write_report(runs, runs[0] / "report.html", texts=texts)
        except RunFolderError:
            if not runs[0].is_dir() or not (runs[0] / "manifest.json").exists() or _running(runs[0]):
                raise
    return write_report([*runs, *others], Path(tempfile.mkdtemp(prefix="layerscope-")) / "report.html", texts=texts)


def _running(folder: Path) -> bool:
    from layerscope.store import RunFolder

    manifest = RunFolder(folder).manifest()
    return manifest is not None and manifest.get("status") != "complete"
