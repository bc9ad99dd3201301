"""The loop of an evaluation over its turns: encode the missing texts, then score every layer and
readout. Where scores are computed elsewhere than the model runs, one turn is encoded while the
one before it is scored."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import torch

from layerscope.capture import Site
from layerscope.core.formatting import count_of
from layerscope.core.readout import kinds_of
from layerscope.core.templates import get_template
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import LayerscopeError, ModelError, RunFolderError, os_advice
from layerscope.evaluation.encode import (
    EncodePass,
    encode_by_workers,
    open_space,
    space_description,
)
from layerscope.evaluation.plan import EvaluationPlan, Texts, Turn
from layerscope.evaluation.pool import ScoringPool
from layerscope.evaluation.scorers import Scorer
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    clear_caches,
    read_result,
    reason_of,
)
from layerscope.progress import Progress
from layerscope.store.embeddings import EmbeddingStore, Space, text_key

log = logging.getLogger(__name__)

TURNS = "vectors"  # a folder per turn, where not all fit the store; removed after it

Results = Iterator[dict[str, Any]]


class Scorers(AbstractContextManager["Scorers"]):
    """Processes or a device that score the jobs of a turn.

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


@dataclass
class _Started:
    """A turn that is being scored."""

    turn: Turn
    results: Results
    count: int
    spaces: dict[str, Space]  # held, so that nothing prunes them before they are scored


class Loop:
    """The turns of an evaluation, and what they leave: counts, jobs, results, and the tasks that
    could not be encoded. With a `recipe`, the engine's workers run the model."""

    def __init__(
        self,
        plan: EvaluationPlan,
        run: Path,
        texts: Texts,
        turns: Sequence[Turn],
        store: EmbeddingStore,
        scorers: Scorers,
        bar: Progress,
        batch_size: int | None = None,
        engine: Engine | None = None,
        recipe: ModelRecipe | None = None,
    ) -> None:
        self.plan, self.run, self.texts, self.turns = plan, run, texts, list(turns)
        self.store, self.scorers, self.bar = store, scorers, bar
        self.batch_size, self.engine, self.recipe = batch_size, engine, recipe
        self.counts: dict[str, Any] = {"encoded": 0, "truncated": {}}
        self.jobs: list[ScoreJob] = []
        self.results: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}
        self.seconds = {"encode": 0.0, "score": 0.0}
        self._counted: set[str] = set()

    def go(self) -> None:
        """Encode and score every turn. The seconds are this process's: of scoring, what it waits
        for."""
        used = {self._folder(turn) for turn in self.turns}
        for old in set((self.run / TURNS).glob("*")) - used:  # of a run that had more room, or less
            shutil.rmtree(old, ignore_errors=True)
        queue = [(turn, self._unscored(turn)) for turn in self.turns]
        if sum(len(jobs) for _, jobs in queue) == 1:
            self.scorers.pool.workers = 0  # not worth a process
        if self.recipe is not None and not any(turn.own for turn in self.turns):
            # in one go, for which workers load the model once
            self._encode(Turn(tuple(self.texts), self.plan.sites, 0))
        problem: Exception | None = None
        started: _Started | None = None
        while queue:
            turn, jobs = queue.pop(0)
            if turn.own and not jobs:
                continue
            if started is not None and turn.own and not self._fits_beside(started.turn, turn):
                self._finish(started)
                started = None
            try:
                spaces = self._encode(turn)
            except Exception as error:
                if self.recipe is not None or _ends_all(error):
                    raise
                if turn.own:
                    shutil.rmtree(self._folder(turn), ignore_errors=True)
                if len(turn.tasks) > 1:  # each alone: what is encoded stays, and the others go on
                    queue[:0] = [
                        (part, [job for job in jobs if job.task.name == part.tasks[0]])
                        for part in turn.alone()
                    ]
                else:
                    problem = error
                    self.failed.setdefault(turn.tasks[0], reason_of(error))
                continue
            results = self.scorers.start(self._context(turn), jobs)
            if started is not None:
                self._finish(started)
            started = _Started(turn, results, len(jobs), spaces)
            if not self.scorers.apart:
                self._finish(started)
                started = None
        if started is not None:
            self._finish(started)
        if problem is not None and not self.results:
            raise problem

    def _fits_beside(self, one: Turn, other: Turn) -> bool:
        return one.bytes + other.bytes <= (self.store.size_limit or 0)

    def _folder(self, turn: Turn) -> Path:
        place = json.dumps([turn.tasks, [site.name for site in turn.sites]])
        return self.run / TURNS / hashlib.sha256(place.encode()).hexdigest()[:16]

    def _store(self, turn: Turn) -> EmbeddingStore:
        return EmbeddingStore(self._folder(turn), None) if turn.own else self.store

    def _passes(
        self, turn: Turn, texts: Sequence[str], sites: Sequence[Site]
    ) -> list[tuple[EncodePass, list[str]]]:
        """A pass per template, with the texts that are not in the store yet."""
        plan, out = self.plan, []
        for name, readouts in plan.by_template().items():
            template = get_template(name)
            space = open_space(
                self._store(turn), plan.model, template, plan.max_length, plan.store_dtype
            )
            kinds = kinds_of(readouts)
            encode = EncodePass(
                plan.model, template, sites, kinds, space, plan.max_length, self.batch_size
            )
            out.append((encode, encode.missing(texts)))
        return out

    def _encode(self, turn: Turn) -> dict[str, Space]:
        """Encode the texts of a turn that are not in the store yet; returns the spaces."""
        clock = time.perf_counter()
        every = list(dict.fromkeys(text for name in turn.tasks for text in self.texts[name]))
        passes = self._passes(turn, every, turn.sites)
        todo = sum(len(missing) for _, missing in passes)
        total = len(every) * len(passes)
        self.bar.begin(f"{self.plan.model.name}|texts", total, total - todo)
        try:
            if todo and self.recipe is not None and self.engine is not None:
                encode_by_workers(self.engine, self.recipe, passes, self.bar.advance)
            else:
                for encode, missing in passes:
                    encode.run(missing, self.bar.advance)
        finally:
            self.seconds["encode"] += time.perf_counter() - clock
        self.counts["encoded"] += todo
        size = self._store(turn).size()
        self.counts["store_bytes"] = max(self.counts.get("store_bytes", 0), size)
        keys = [text_key(text) for text in every if text not in self._counted]
        self._counted.update(every)
        for encode, _ in passes:
            name = encode.template.name
            cut = int(encode.space.read_numbers(keys, "truncated").sum()) if keys else 0
            self.counts["truncated"][name] = self.counts["truncated"].get(name, 0) + cut
        return {encode.template.name: encode.space for encode, _ in passes}

    def _context(self, turn: Turn) -> ScoringContext:
        return self.context(self._store(turn).root)

    def context(self, store: Path | None = None) -> ScoringContext:
        """What scoring needs to know of the run and of the store with the vectors."""
        plan, model = self.plan, self.plan.model
        spaces = tuple(
            (
                name,
                json.dumps(space_description(model.identity, get_template(name), plan.max_length)),
                plan.store_dtype,
            )
            for name in plan.by_template()
        )
        return ScoringContext(
            str(self.run),
            str(store or self.store.root),
            model.name,
            model.identity.get("revision"),
            model.width,
            spaces,
            plan.unit_length,
            plan.scoring,
        )

    def _unscored(self, turn: Turn) -> list[ScoreJob]:
        """The jobs of a turn that have no result yet; results of the others are taken."""
        context = self._context(turn)
        specs = {spec.name: spec for spec in self.plan.specs}
        places = [(readout, site) for readout in self.plan.readouts for site in turn.sites]
        jobs = [
            ScoreJob(specs[name], readout, site.name, site.layer)
            for name, (readout, site) in product(turn.tasks, places)
        ]
        self.jobs += jobs
        unscored = []
        for job in jobs:
            result = read_result(job.file(context))
            if result is None:
                unscored.append(job)
            else:
                self.results.append(result)
        return unscored

    def _finish(self, started: _Started) -> None:
        """Wait for the scores of a turn; its own vectors go."""
        clock = time.perf_counter()
        self.bar.begin("scoring|scores", started.count)
        count = started.count
        for result in started.results:
            self.results.append(result)
            self.bar.advance(1)
            count -= 1
        if count:
            raise LayerscopeError(
                f"{count_of(count, 'scores')} did not come back. What was scored is kept: run it again."
            )
        if started.turn.own:
            clear_caches()
            shutil.rmtree(self._folder(started.turn), ignore_errors=True)
        self.seconds["score"] += time.perf_counter() - clock


def _ends_all(error: Exception) -> bool:
    """Whether the other tasks would fail alike: of the model, the folder, the disk."""
    return isinstance(error, (RunFolderError, ModelError)) or bool(os_advice(error))
