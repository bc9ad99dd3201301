"""The loop of an evaluation over its tasks: encode the missing texts of a task, then score every
layer and readout of it.

Where the model is on a GPU, a task is encoded while the one before it is scored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core.formatting import count_of
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import LayerscopeError, ModelError, RunFolderError, os_advice
from layerscope.evaluation.pool import ScoringPool
from layerscope.evaluation.results import ScoreResult, read_result
from layerscope.evaluation.run import texts_file
from layerscope.evaluation.scorers import LeftToMteb, Scorer
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    encoded_texts,
    open_task,
    quiet_mteb,
    reason_of,
)
from layerscope.evaluation.tasks import TaskSpec
from layerscope.evaluation.tasks.facts import refuse_constant
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store import checked
from layerscope.vectors import VectorStore, text_key
from layerscope.vectors.encode import (
    MissingTexts,
    encode,
    find_missing,
    make_requests,
    space_description,
)

# A process holds a task's vectors as they are read, as mteb asks for them, and as mteb changes them.
_COPIES = 3
_SCORING_BYTES = 2**34  # for all processes together


@dataclass(frozen=True)
class EvaluationRequest:
    """The tasks, sites and readouts of one model that are scored, and how texts become vectors."""

    model: LoadedModel
    specs: tuple[TaskSpec, ...]
    readouts: tuple[Readout, ...]
    sites: tuple[Site, ...]
    max_length: int
    seed: int
    scoring: str = "mteb"

    @property
    def unit_length(self) -> bool:
        """Return whether vectors are scaled to length 1, as the model's own pipeline does."""
        return bool(self.model.identity.get("normalizes"))


@dataclass(frozen=True)
class Resources:
    """The store, engine and processes that an evaluation is run with.

    With a `recipe`, the engine's workers run the model. Without a `scorer`, mteb's code scores in
    `workers` processes.
    """

    store: VectorStore
    engine: Engine
    recipe: ModelRecipe | None
    scorer: Scorer | None
    workers: int
    batch_size: int | None
    bar: Progress


@dataclass(frozen=True)
class CollectedTasks:
    """The texts and facts of each task that could be read, and the reasons why others could not."""

    texts: dict[str, list[str]]
    facts: dict[str, dict[str, Any]]
    failed: dict[str, str]


@dataclass(frozen=True)
class ScoredTasks:
    """The results of all tasks, their files, the tasks that could not be encoded, and counts.

    `files` are by task, readout and layer. `truncated` counts cut texts by template.
    """

    results: list[ScoreResult]
    files: dict[tuple[str, Readout, int], Path]
    failed: dict[str, str]
    encoded: int
    truncated: dict[str, int]


def collect_tasks(request: EvaluationRequest, resources: Resources, folder: Path) -> CollectedTasks:
    """Read the tasks, and write down the keys of the texts that each encodes."""
    quiet_mteb()
    texts_of = encoded_texts if resources.scorer is None else resources.scorer.texts_of
    tasks = CollectedTasks({}, {}, {})
    resources.bar.begin("reading tasks|tasks", len(request.specs))
    for spec in request.specs:
        try:
            loaded = spec.load()
            refuse_constant(loaded.task)
            texts = texts_of(loaded.task)
            tasks.facts[spec.name] = spec.facts(loaded)
        except Exception as error:
            tasks.failed[spec.name] = reason_of(error)
            continue
        finally:
            resources.bar.advance(1)
        tasks.texts[spec.name] = texts
        keys = np.frombuffer(b"".join(map(text_key, texts)), dtype=np.uint8)
        checked.write_arrays(texts_file(folder, spec.name), {"keys": keys.reshape(-1, 32)})
    if not tasks.texts:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in tasks.failed.items())
        raise LayerscopeError(f"no task could be read:\n{reasons}")
    return tasks


def score_tasks(
    request: EvaluationRequest, resources: Resources, folder: Path, tasks: CollectedTasks
) -> ScoredTasks:
    """Encode and score every task. A task that cannot be encoded stops no other."""
    context = _make_context(request, resources, folder)
    jobs = _make_jobs(request, tasks)
    results: list[ScoreResult] = []
    failed: dict[str, str] = {}
    problem: Exception | None = None
    distinct = list(dict.fromkeys(chain.from_iterable(tasks.texts.values())))
    missing_before = _find_missing(request, resources, distinct)
    resources.store.check_room(sum(of_template.bytes for of_template in missing_before))
    if resources.recipe is not None:  # in one go, for which workers load the model once
        _encode(request, resources, distinct)
    ahead = _tasks_ahead(request.model)
    started: list[tuple[Iterator[ScoreResult], int]] = []

    def finish(remaining: int) -> None:
        """Wait for the results of all tasks but the last `remaining`."""
        while len(started) > remaining:
            scores, count = started.pop(0)
            resources.bar.begin("scoring|scores", count)
            for result in scores:
                results.append(result)
                resources.bar.advance(1)
                count -= 1
            if count:
                raise LayerscopeError(
                    f"{count_of(count, 'scores')} did not come back. What was scored is kept: "
                    "run the same command again."
                )

    with (
        ThreadPoolExecutor(1) as thread,
        ScoringPool(_fitting_workers(request, resources, tasks)) as pool,
        ExitStack() as end,
    ):
        if resources.scorer is not None:
            end.callback(resources.scorer.stopped.set)
        for name, texts in tasks.texts.items():
            try:
                _encode(request, resources, texts)
            except Exception as error:
                if _ends_all(error):
                    raise
                problem = error
                failed[name] = reason_of(error)
                continue
            scores = _score(resources.scorer, pool, context, jobs[name])
            if ahead:
                scores = _results_of(thread.submit(list, scores))
            started.append((scores, len(jobs[name])))
            finish(remaining=ahead)
        finish(remaining=0)
    if problem is not None and not results:
        raise problem
    still_missing = _find_missing(request, resources, distinct)
    encoded = [texts for name, texts in tasks.texts.items() if name not in failed]
    keys = [text_key(text) for text in dict.fromkeys(chain.from_iterable(encoded))]
    return ScoredTasks(
        results,
        {
            (name, job.readout, job.layer): job.file(context)
            for name, of_task in jobs.items()
            for job in of_task
        },
        failed,
        _count_texts(missing_before) - _count_texts(still_missing),
        {
            missing.request.template.name: int(missing.space.read_numbers(keys, "truncated").sum())
            for missing in still_missing
        },
    )


def _results_of(scoring: Future[list[ScoreResult]]) -> Iterator[ScoreResult]:
    yield from scoring.result()


def _tasks_ahead(model: LoadedModel) -> int:
    """Return how many tasks are encoded before the first is scored: on one CPU, the model and the
    scores would only be in each other's way."""
    return 0 if model.device.type == "cpu" else 1


def _fitting_workers(
    request: EvaluationRequest, resources: Resources, tasks: CollectedTasks
) -> int:
    """Return how many processes may score at a time, by the bytes of the largest task's vectors."""
    texts = max(len(texts) for texts in tasks.texts.values())
    task_bytes = _COPIES * 4 * request.model.width * max(1, texts)
    return min(resources.workers, max(1, _SCORING_BYTES // task_bytes))


def _make_context(request: EvaluationRequest, resources: Resources, folder: Path) -> ScoringContext:
    model = request.model
    spaces = []
    for name in dict.fromkeys(readout.template for readout in request.readouts):
        description = space_description(model.identity, get_template(name), request.max_length)
        spaces.append((name, json.dumps(description)))
    return ScoringContext(
        folder,
        resources.store.root,
        model.name,
        model.identity.get("revision"),
        model.width,
        tuple(spaces),
        request.unit_length,
        request.scoring,
    )


def _make_jobs(request: EvaluationRequest, tasks: CollectedTasks) -> dict[str, list[ScoreJob]]:
    """Return the jobs of each task that could be read."""
    return {
        spec.name: [
            ScoreJob(spec, tasks.facts[spec.name]["fingerprint"], readout, site.name, site.layer)
            for readout in request.readouts
            for site in request.sites
        ]
        for spec in request.specs
        if spec.name in tasks.texts
    }


def _find_missing(
    request: EvaluationRequest, resources: Resources, texts: Sequence[str]
) -> list[MissingTexts]:
    """Return the texts that the store lacks, by template."""
    requests = make_requests(
        request.readouts, request.sites, request.max_length, resources.batch_size
    )
    return find_missing(request.model, resources.store, requests, texts)


def _encode(request: EvaluationRequest, resources: Resources, texts: Sequence[str]) -> None:
    """Encode the texts that are not in the store yet."""
    bar = resources.bar
    missing = _find_missing(request, resources, texts)
    total = len(texts) * len(missing)
    bar.begin(f"{request.model.name}|texts", total, total - _count_texts(missing))
    encode(
        request.model,
        missing,
        engine=resources.engine,
        recipe=resources.recipe,
        advance=bar.advance,
    )


def _count_texts(missing: Sequence[MissingTexts]) -> int:
    return sum(len(of_template.texts) for of_template in missing)


def _ends_all(error: Exception) -> bool:
    """Return whether the other tasks would fail alike: of the model, the folder, the disk."""
    return isinstance(error, (RunFolderError, ModelError)) or bool(os_advice(error))


def _score(
    scorer: Scorer | None, pool: ScoringPool, context: ScoringContext, jobs: Sequence[ScoreJob]
) -> Iterator[ScoreResult]:
    """Yield the results of the jobs of one task; those that an earlier run left are read."""
    missing = []
    for job in jobs:
        result = checked.read_or_discard(job.file(context), read_result)
        if result is None:
            missing.append(job)
        else:
            yield result
    if not missing:
        return
    if scorer is None:
        yield from pool.score(context, missing)
        return
    try:
        yield from scorer.score(context, open_task(context, missing[0].task), missing)
    except LeftToMteb as reason:
        yield from pool.score(replace(context, mteb_reason=str(reason)), missing)
    except Exception as error:  # the other tasks go on
        for job in missing:
            if not job.file(context).exists():
                yield job.failed(error)
