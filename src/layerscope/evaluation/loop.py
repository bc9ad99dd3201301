"""The loop of an evaluation over its tasks: encode the missing texts, then score every layer and
readout. Where scores are computed elsewhere than the model runs, a task is encoded while the one
before it is scored."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import torch

from layerscope.core.formatting import count_of
from layerscope.core.templates import get_template
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import LayerscopeError, ModelError, RunFolderError, os_advice
from layerscope.evaluation.plan import EvaluationPlan, Texts
from layerscope.evaluation.pool import ScoringPool
from layerscope.evaluation.scorers import Scorer
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    read_result,
    reason_of,
)
from layerscope.progress import Progress
from layerscope.vectors import VectorStore, text_key
from layerscope.vectors.encode import (
    MissingTexts,
    encode,
    find_missing,
    make_requests,
    space_description,
)

log = logging.getLogger(__name__)

Results = Iterator[dict[str, Any]]


class Scorers(AbstractContextManager["Scorers"]):
    """Processes or a device that score the jobs of a task.

    With `apart` they go on while this process does other things.
    """

    def __init__(self, workers: int, device: Scorer | None, apart: bool) -> None:
        self.pool, self.device = ScoringPool(workers if device is None else 0), device
        self.apart = apart and (device is not None or workers > 0)
        self._thread = ThreadPoolExecutor(1)
        self._started: list[Future[list[dict[str, Any]]]] = []

    def __exit__(self, *error: object) -> None:
        if self.device is not None:
            self.device.stopped.set()
        if not all(future.done() for future in self._started):
            log.warning("finishing what is being scored.")
        self._thread.shutdown(cancel_futures=True)
        self.pool.__exit__(*error)

    def start(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Results:
        """Results of jobs, as they are done."""
        if self.device is None:
            return self.pool.score(context, jobs)
        if not self.apart:
            return self.device.run(context, jobs)
        names = dict.fromkeys(job.task.name for job in jobs)
        futures = [
            self._thread.submit(self._run, context, [job for job in jobs if job.task.name == name])
            for name in names
        ]
        self._started += futures
        return (result for future in futures for result in future.result())

    def _run(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[dict[str, Any]]:
        device = self.device
        assert device is not None
        # a new thread begins on the first GPU
        with torch.cuda.device(device.device) if device.device.type == "cuda" else nullcontext():
            return list(
                takewhile(lambda result: not device.stopped.is_set(), device.run(context, jobs))
            )


@dataclass(frozen=True)
class Resources:
    """What an evaluation is run with. With a `recipe`, the engine's workers run the model."""

    plan: EvaluationPlan
    store: VectorStore
    batch_size: int | None
    bar: Progress
    engine: Engine
    recipe: ModelRecipe | None = None


class Loop:
    """The tasks of an evaluation, and what they leave: counts, jobs, results, and the tasks that
    could not be encoded."""

    def __init__(self, job: Resources, run: Path, texts: Texts, scorers: Scorers) -> None:
        self.plan, self.store, self.bar = job.plan, job.store, job.bar
        self.batch_size, self.engine, self.recipe = job.batch_size, job.engine, job.recipe
        self.run, self.texts, self.scorers = run, texts, scorers
        self.counts: dict[str, Any] = {"encoded": 0, "truncated": {}}
        self.jobs: list[ScoreJob] = []
        self.results: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}
        self.seconds = {"encode": 0.0, "score": 0.0}
        self._counted: set[str] = set()
        self.context = self._make_context()

    def go(self) -> None:
        """Encode and score every task. The seconds are this process's: of scoring, what it waits
        for."""
        queue = [(names, self._unscored(names)) for names in self.plan.groups(self.texts)]
        if sum(len(jobs) for _, jobs in queue) == 1:
            self.scorers.pool.workers = 0  # not worth a process
        missing = self._missing(self._distinct(self.texts))
        self.store.check_room(sum(part.bytes for part in missing))
        if self.recipe is not None:  # in one go, for which workers load the model once
            self._encode(tuple(self.texts))
        problem: Exception | None = None
        started: tuple[Results, int] | None = None
        while queue:
            names, jobs = queue.pop(0)
            try:
                self._encode(names)
            except Exception as error:
                if self.recipe is not None or _ends_all(error):
                    raise
                if len(names) > 1:  # each alone: what is encoded stays, and the others go on
                    queue[:0] = [
                        ((name,), [job for job in jobs if job.task.name == name]) for name in names
                    ]
                else:
                    problem = error
                    self.failed[names[0]] = reason_of(error)
                continue
            results = self.scorers.start(self.context, jobs)
            if started is not None:
                self._finish(*started)
            started = (results, len(jobs))
            if not self.scorers.apart:
                self._finish(*started)
                started = None
        if started is not None:
            self._finish(*started)
        if problem is not None and not self.results:
            raise problem

    def _distinct(self, names: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(text for name in names for text in self.texts[name]))

    def _missing(self, texts: Sequence[str]) -> list[MissingTexts]:
        plan = self.plan
        requests = make_requests(plan.readouts, plan.sites, plan.max_length, self.batch_size)
        return find_missing(plan.model, self.store, requests, texts, plan.store_dtype)

    def _encode(self, names: Sequence[str]) -> None:
        """Encode the texts of some tasks that are not in the store yet."""
        clock = time.perf_counter()
        texts = self._distinct(names)
        missing = self._missing(texts)
        todo = sum(len(part.texts) for part in missing)
        total = len(texts) * len(missing)
        self.bar.begin(f"{self.plan.model.name}|texts", total, total - todo)
        try:
            encode(
                self.plan.model,
                missing,
                engine=self.engine,
                recipe=self.recipe,
                advance=self.bar.advance,
            )
        finally:
            self.seconds["encode"] += time.perf_counter() - clock
        self.counts["encoded"] += todo
        self.counts["store_bytes"] = self.store.size()
        keys = [text_key(text) for text in texts if text not in self._counted]
        self._counted.update(texts)
        for part in missing:
            name = part.request.template.name
            cut = int(part.space.read_numbers(keys, "truncated").sum()) if keys else 0
            self.counts["truncated"][name] = self.counts["truncated"].get(name, 0) + cut

    def _make_context(self) -> ScoringContext:
        plan, model = self.plan, self.plan.model
        spaces = tuple(
            (
                name,
                json.dumps(space_description(model.identity, get_template(name), plan.max_length)),
                plan.store_dtype,
            )
            for name in dict.fromkeys(readout.template for readout in plan.readouts)
        )
        return ScoringContext(
            str(self.run),
            str(self.store.root),
            model.name,
            model.identity.get("revision"),
            model.width,
            spaces,
            plan.unit_length,
            plan.scoring,
        )

    def _unscored(self, names: Sequence[str]) -> list[ScoreJob]:
        """The jobs of some tasks that have no result yet; results of the others are taken."""
        specs = {spec.name: spec for spec in self.plan.specs}
        jobs = [
            ScoreJob(specs[name], readout, site.name, site.layer)
            for name, readout, site in product(names, self.plan.readouts, self.plan.sites)
        ]
        self.jobs += jobs
        stored = {job: read_result(job.file(self.context)) for job in jobs}
        self.results += [result for result in stored.values() if result is not None]
        return [job for job, result in stored.items() if result is None]

    def _finish(self, results: Results, count: int) -> None:
        """Wait for the scores of some tasks."""
        clock = time.perf_counter()
        self.bar.begin("scoring|scores", count)
        for result in results:
            self.results.append(result)
            self.bar.advance(1)
            count -= 1
        if count:
            raise LayerscopeError(
                f"{count_of(count, 'scores')} did not come back. What was scored is kept: run it again."
            )
        self.seconds["score"] += time.perf_counter() - clock


def _ends_all(error: Exception) -> bool:
    """Whether the other tasks would fail alike: of the model, the folder, the disk."""
    return isinstance(error, (RunFolderError, ModelError)) or bool(os_advice(error))
