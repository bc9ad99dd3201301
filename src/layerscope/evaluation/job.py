"""`evaluate`: every layer and readout of a model on labeled tasks, each distinct text encoded
once.

One loop over the tasks: encode the texts that the store lacks, then score every layer and readout.
Where the model is on a GPU, a task is encoded while the one before it is scored.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from layerscope.cache import cache_dir
from layerscope.capture import Site, expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.identity import LAYER, Reading, model_key
from layerscope.core.readout import Readout, parse_readouts
from layerscope.core.sites import pick_layers, site_of
from layerscope.engines import Engine
from layerscope.errors import (
    LayerscopeError,
    ModelError,
    RunFolderError,
    UnknownNameError,
    os_advice,
)
from layerscope.evaluation.results import ScoreResult, read_items, stored_result
from layerscope.evaluation.run import Evaluation, gain_table, score_table
from layerscope.evaluation.scoring import (
    LeftToMteb,
    ScoreJob,
    Scorer,
    ScoringContext,
    encoded_texts,
    find_scorer,
    open_task,
    quiet_mteb,
    reason_of,
    require_mteb,
    score_by_mteb,
    scoring_pool,
    write_keys,
)
from layerscope.evaluation.tasks import TaskSpec, resolve_tasks
from layerscope.models import LoadedModel
from layerscope.store import RunFolder
from layerscope.vectors import VectorStore, text_key
from layerscope.vectors.encode import MissingTexts, encode, find_missing, make_requests
from layerscope.version import VERSION

__all__ = ["evaluate"]

SCORINGS = {
    "mteb": "mteb's own code",
    "device": "layerscope's batched code, with mteb's draws, seeds and objectives",
}
# The folders of a run besides its tables and its manifest.
_OWNED = ("results", "texts", "mteb")
# A process holds a task's vectors as they are read, as mteb asks for them, and as mteb changes
# them.
_COPIES = 3
_SCORING_BYTES = 2**34  # for all processes together


@dataclass(frozen=True)
class EvaluationRequest:
    """The tasks, sites and readouts of one model that are scored, and what they are scored with.

    Without a `scorer`, mteb's code scores in `workers` processes.
    """

    command: Command
    model: LoadedModel
    specs: tuple[TaskSpec, ...]
    readouts: tuple[Readout, ...]
    sites: tuple[Site, ...]
    max_length: int
    seed: int
    store: VectorStore
    scorer: Scorer | None
    workers: int

    @property
    def scoring(self) -> str:
        """The name of the code that scores."""
        return "mteb" if self.scorer is None else "device"

    @property
    def unit_length(self) -> bool:
        """True if vectors are scaled to length 1, as the model's own pipeline does."""
        return bool(self.model.identity.get("normalizes"))

    def missing(self, texts: Sequence[str]) -> list[MissingTexts]:
        """Return the texts that the store lacks, by template."""
        batch_size = self.command.where.batch_size
        requests = make_requests(self.readouts, self.sites, self.max_length, batch_size)
        return find_missing(self.model, self.store, requests, texts)


@dataclass(frozen=True)
class ReadTask:
    """A task that could be read: facts about its data, and the texts that it encodes."""

    spec: TaskSpec
    facts: dict[str, Any]
    texts: list[str]


def evaluate(
    model: str | Path | LoadedModel | torch.nn.Module,
    tasks: str | Sequence[str] = "small",
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    sample: int | None = None,
    max_length: int = 256,
    seed: int = 0,
    scoring: str | None = None,
    scoring_workers: int | None = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Evaluation:
    """Score layers and readouts on labeled tasks.

    Vectors are scaled to length 1 where the model's own sentence-transformers pipeline does so.

    - `tasks`: `paper` (the paper's 32), `small` (a few quick ones from the package index), or
      names.
    - `readouts`: None (the paper's: plain text, mean, final norm applied), `all`, or names (see
      `layerscope.core.readout`).
    - `out`: a folder in which the run is stored and resumed. Without it the result is in memory
      only. In both cases vectors are kept in an embedding store that later runs reuse.
    - `scoring`: `mteb` (its own code, the reference) or `device` (near-equal scores, all layers at
      once, on the model's device). None: `device` where the model is on a GPU.
    - `scoring_workers`: the number of processes that score (0: score in this one).

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine` (`local`:
    this process; `ray`: workers of a cluster). Scoring always runs on this machine.

        run = layerscope.evaluate("smollm2-135m", "small", readouts="all", sample=200)
        run.best(); run.scores
    """
    command = Command("evaluate", options, engine=engine, progress=progress, function=evaluate)
    if scoring not in (None, *SCORINGS):
        raise UnknownNameError("scoring", str(scoring), SCORINGS)
    if scoring == "device":
        find_scorer(required=True)
    require_mteb()
    specs = resolve_tasks(tasks, data_dir=data_dir, sample=sample, seed=seed)
    folder = None if out is None else RunFolder(out)
    with command:
        loaded = command.load(model, tokenizer)
        sites = [site_of(k) for k in pick_layers(layers, loaded.n_blocks, loaded.name)]
        has_norm = loaded.anatomy.final_norm is not None
        on_device = scoring == "device" or (scoring is None and loaded.device.type == "cuda")
        scorer = find_scorer(required=scoring == "device") if on_device else None
        request = EvaluationRequest(
            command,
            loaded,
            tuple(specs),
            tuple(parse_readouts(readouts, loaded.has_class_token, has_norm)),
            tuple(expand_sites(sites, loaded.anatomy)),
            min(max_length, loaded.max_length or max_length),
            seed,
            VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size),
            None if scorer is None else scorer(loaded.device),
            min(os.cpu_count() or 1, 8) if scoring_workers is None else scoring_workers,
        )
        if folder is not None:
            return _run_in(folder, request, overwrite)
        with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
            return _run_in(RunFolder(Path(scratch) / "run"), request).in_memory()


def _run_in(folder: RunFolder, request: EvaluationRequest, overwrite: bool = False) -> Evaluation:
    """Run in a folder: return what is finished there, resume what was started."""
    files = {spec.name: spec.files_sha256() for spec in request.specs}

    def is_finished(manifest: dict[str, Any]) -> bool:
        """Return True if no task failed and no data changed."""
        is_whole = manifest.get("status") == "complete" and not manifest.get("failed")
        return is_whole and manifest.get("task_files") == files

    # everything that decides the scores
    config = {
        "model": model_key(request.model.identity),
        "tasks": [asdict(spec) for spec in request.specs],
        "readouts": [readout.name for readout in request.readouts],
        "sites": [site.name for site in request.sites],
        "max_length": request.max_length,
        "seed": request.seed,
        "unit_length": request.unit_length,
        "layerscope": VERSION,
        "scoring": request.scoring,
    }
    return run_in(
        folder,
        Evaluation,
        config,
        lambda session: _compute(request, session.folder.path),
        overwrite=overwrite,
        owned=_OWNED,
        finished=is_finished,
        task_files=files,
    )


def _compute(request: EvaluationRequest, folder: Path) -> Evaluation:
    """Read, encode and score the tasks. One that fails stops no other."""
    failed: dict[str, str] = {}
    tasks = read_tasks(request, folder, failed)
    distinct = list(dict.fromkeys(chain.from_iterable(task.texts for task in tasks)))
    missing = request.missing(distinct)
    request.store.check_room(sum(lacking.bytes for lacking in missing))
    context = ScoringContext(
        folder,
        request.model.name,
        request.model.identity.get("revision"),
        request.model.width,
        tuple((lacking.request.template.name, lacking.space.folder) for lacking in missing),
        request.unit_length,
        request.scoring,
    )
    encoded = 0

    def advance(count: int) -> None:
        nonlocal encoded
        encoded += count
        request.command.bar.advance(count)

    results = score_tasks(request, context, tasks, failed, advance)
    keys = [text_key(t) for t in dict.fromkeys(_texts_of(tasks, failed))]
    truncated = {
        lacking.request.template.name: int(lacking.space.read_numbers(keys, "truncated").sum())
        for lacking in missing
    }
    scores = score_table(results, request.model.n_blocks)
    file_of = {
        (job.task.name, job.readout, job.layer): job.file(context)
        for task in tasks
        for job in _jobs_of(request, task)
    }
    gains = gain_table(
        scores,
        lambda place, split, subset: read_items(file_of[place], split, subset),
        request.seed,
    )
    counts = {"texts": len(distinct), "encoded": encoded, "truncated": truncated}
    return Evaluation(scores, gains, _describe(request, tasks, results, failed, counts))


def _texts_of(tasks: Sequence[ReadTask], failed: Mapping[str, str]) -> Iterator[str]:
    return chain.from_iterable(task.texts for task in tasks if task.spec.name not in failed)


def read_tasks(request: EvaluationRequest, folder: Path, failed: dict[str, str]) -> list[ReadTask]:
    """Return the tasks that can be read, with the keys of their texts written down; put the reasons
    of the others into `failed`."""
    quiet_mteb()
    texts_of = encoded_texts if request.scorer is None else request.scorer.texts_of
    bar = request.command.bar
    bar.begin("reading tasks|tasks", len(request.specs))
    tasks = []
    for spec in request.specs:
        try:
            loaded = spec.load()
            task = ReadTask(spec, spec.facts(loaded), texts_of(loaded.task))
        except Exception as error:
            failed[spec.name] = reason_of(error)
        else:
            tasks.append(task)
            write_keys(folder, spec.name, task.texts)
        bar.advance(1)
    if not tasks:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise LayerscopeError(f"no task could be read:\n{reasons}")
    return tasks


def _jobs_of(request: EvaluationRequest, task: ReadTask) -> list[ScoreJob]:
    return [
        ScoreJob(task.spec, task.facts["fingerprint"], readout, site.name, site.layer)
        for readout in request.readouts
        for site in request.sites
    ]


def score_tasks(
    request: EvaluationRequest,
    context: ScoringContext,
    tasks: Sequence[ReadTask],
    failed: dict[str, str],
    advance: Callable[[int], None],
) -> list[ScoreResult]:
    """Encode and score every task; put the reasons of those that cannot be encoded into `failed`.

    `advance` counts the texts that are encoded.
    """
    bar = request.command.bar
    results: list[ScoreResult] = []
    problem: Exception | None = None
    ahead = tasks_ahead(request.model)
    started: list[tuple[Iterator[ScoreResult], int]] = []

    def finish(remaining: int) -> None:
        """Wait for the results of all tasks but the last `remaining`."""
        while len(started) > remaining:
            scores, count = started.pop(0)
            bar.begin("scoring|scores", count)
            for result in scores:
                results.append(result)
                bar.advance(1)
                count -= 1
            if count:
                raise LayerscopeError(
                    f"{count} scores did not come back. What was scored is kept: run the same "
                    "command again."
                )

    if request.command.recipe is not None:  # in one go, for which workers load the model once
        _encode(request, [text for task in tasks for text in task.texts], advance)
    workers = fitting_workers(request.workers, tasks, request.model.width)
    with ThreadPoolExecutor(1) as thread, scoring_pool(workers) as pool, ExitStack() as end:
        if request.scorer is not None:
            end.callback(request.scorer.stopped.set)
        for task in tasks:
            try:
                _encode(request, task.texts, advance)
            except Exception as error:
                # of the model, the folder, the disk: the other tasks would fail alike
                if isinstance(error, (RunFolderError, ModelError)) or os_advice(error):
                    raise
                problem = error
                failed[task.spec.name] = reason_of(error)
                continue
            jobs = _jobs_of(request, task)
            scores = _score(request.scorer, pool, context, jobs)
            if ahead:
                scores = _results_of(thread.submit(list, scores))
            started.append((scores, len(jobs)))
            finish(remaining=ahead)
        finish(remaining=0)
    if problem is not None and not results:
        raise problem
    return results


def tasks_ahead(model: LoadedModel) -> int:
    """Return how many tasks are encoded before the first is scored: on one CPU, the model and the
    scores would only be in each other's way."""
    return 0 if model.device.type == "cpu" else 1


def _results_of(scoring: Future[list[ScoreResult]]) -> Iterator[ScoreResult]:
    yield from scoring.result()


def fitting_workers(most: int, tasks: Sequence[ReadTask], width: int) -> int:
    """Return how many processes may score at a time, by the bytes of the largest task's vectors."""
    task_bytes = _COPIES * 4 * width * max(1, max(len(task.texts) for task in tasks))
    return min(most, max(1, _SCORING_BYTES // task_bytes))


def _encode(
    request: EvaluationRequest, texts: Sequence[str], advance: Callable[[int], None]
) -> None:
    """Encode the texts that are not in the store yet."""
    command = request.command
    missing = request.missing(texts)
    total = len(set(texts)) * len(missing)
    lacking = sum(len(of_template.texts) for of_template in missing)
    command.bar.begin(f"{request.model.name}|texts", total, total - lacking)
    encode(request.model, missing, engine=command.engine, recipe=command.recipe, advance=advance)


def _score(
    scorer: Scorer | None,
    pool: ProcessPoolExecutor | None,
    context: ScoringContext,
    jobs: Sequence[ScoreJob],
) -> Iterator[ScoreResult]:
    """Yield the results of the jobs of one task; those that an earlier run left are read."""
    missing = []
    for job in jobs:
        result = stored_result(job.file(context))
        if result is None:
            missing.append(job)
        else:
            yield result
    if not missing:
        return
    if scorer is None:
        yield from score_by_mteb(pool, context, missing)
        return
    try:
        yield from scorer.score(context, open_task(context, missing[0].task), missing)
    except LeftToMteb as reason:
        yield from score_by_mteb(pool, replace(context, mteb_reason=str(reason)), missing)
    except Exception as error:  # the other tasks go on
        for job in missing:
            if not job.file(context).exists():
                yield job.failed(reason_of(error))


def _describe(
    request: EvaluationRequest,
    tasks: Sequence[ReadTask],
    results: Sequence[ScoreResult],
    failed: Mapping[str, str],
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Return the manifest of a run."""
    model = request.model
    # Readouts name the norm.
    reading = Reading(None, request.max_length, model.anatomy.final_norm_name)
    facts = {task.spec.name: task.facts for task in tasks}
    failed_jobs = [(r.task, r.reason) for r in results if r.status == "failed"]
    failures = dict.fromkeys([*failed.items(), *failed_jobs])  # layers of a task fail alike
    warnings = [
        f"{cut} of {counts['texts']} texts were cut to {request.max_length} tokens under template "
        f"{template!r}."
        for template, cut in counts["truncated"].items()
        if cut
    ]
    warnings += [
        f"{name} is not MTEB's own split: {fact['exact_reason']}."
        for name, fact in facts.items()
        if fact["exact"] is False
    ]
    return make_manifest(
        Evaluation.kind,
        model=model.identity,
        conventions={
            "layer": LAYER,
            **reading.as_conventions(),
            "unit_length": request.unit_length,
            "centering": "the mean over all distinct texts of the task is subtracted",
            "sink": "the token with the largest norm, found per text and layer on states without "
            "the final norm",
            "readouts": [readout.name for readout in request.readouts],
            "score": "mteb's main score, 0 to 1",
            "scoring": SCORINGS[request.scoring],
            "intervals": "95 %: bootstrap over the task's items, the same for every layer",
            "tied": "not told from the best by that bootstrap, 95 % for all layers at once",
            "seed": request.seed,
        },
        tasks=facts,
        counts=counts,
        undefined=[f"{r.task}: {r.reason}" for r in results if r.status == "undefined"],
        failed=[{"task": name, "reason": reason} for name, reason in failures],
        warnings=warnings + model.warnings(),
        environment=environment(device=str(model.device), threads=torch.get_num_threads()),
        engine=request.command.engine.facts(),
        scoring={
            "by": request.scoring,
            **({} if request.scorer is None else request.scorer.facts(results)),
        },
    )
