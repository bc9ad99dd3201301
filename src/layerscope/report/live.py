"""A page that follows a running profile: rewritten whole after finished parts, read again by the browser every few seconds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.errors import LayerscopeError
from layerscope.store import atomic

if TYPE_CHECKING:
    from layerscope.profiling.job import Job
    from layerscope.profiling.plan import Plan
    from layerscope.profiling.run import Run
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
        begun = time.perf_counter()
        try:
            done = [i for i in range(len(plan.shards)) if store.has(i)]
            self._write(job, plan, store, done, elapsed)
        except (LayerscopeError, ValueError, OSError):  # too few texts for a metric, or a full disk: the run itself goes on
            return
        finally:
            self.spent += time.perf_counter() - begun

    def finish(self, run: Run) -> None:
        """The run is complete: the page is its report."""
        from layerscope.report.write import write_report

        write_report([run], self.path)

    def _write(self, job: Job, plan: Plan, store: ShardStore, done: list[int], elapsed: float) -> None:
        from layerscope.profiling.run import Run
        from layerscope.profiling.tables import TableBuilder
        from layerscope.report.contents.gather import gather
        from layerscope.report.page import page

        shards = [replace(store.read(i), prompts=plan.shards[i]) for i in done]
        builder = TableBuilder(job.config, job.sites, plan, job.model.width)
        table = builder.build(shards)
        n = sum(len(shard.prompts) for shard in shards)
        manifest = job._manifest(plan, builder, {"resumed_prompts": 0, "residual_error": None, "empty_views": 0}, {})
        manifest["counts"]["prompts"] = n
        run = Run(table, manifest, table.iloc[:0])
        live: dict[str, Any] = {
            "done": False,
            "every": _EVERY,
            "text": f"Running: {n} of {plan.n_prompts} texts in {elapsed:.0f} s. "
            "These are the metrics of those texts; the page follows.",
        }
        atomic.write_text(self.path, page(gather([run], live=live)))
        self.written += 1
