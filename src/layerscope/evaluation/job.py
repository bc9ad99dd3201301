"""`evaluate`: every layer and readout of a model on labeled tasks, each distinct text encoded
once."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.readout import parse_readouts
from layerscope.core.sites import pick_layers, site_of
from layerscope.engines import Engine, LocalEngine
from layerscope.errors import UnknownNameError
from layerscope.evaluation.loop import Resources, collect_tasks, score_tasks
from layerscope.evaluation.request import (
    SCORINGS,
    EvaluationRequest,
    failures_of,
    warnings_of,
)
from layerscope.evaluation.run import Evaluation, gain_table, score_table
from layerscope.evaluation.scorers import find_scorer
from layerscope.evaluation.scoring import read_items, require_mteb
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.extras import MissingExtraError
from layerscope.models import LoadedModel
from layerscope.store import RunFolder
from layerscope.store.folder import Session, is_complete
from layerscope.vectors import VectorStore

__all__ = ["evaluate"]

# The folders of a run besides its tables and its manifest.
_OWNED = ("results", "texts", "mteb")


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

        run = layerscope.evaluate("smollm2-135m", "small", readouts="all", sample=200, dtype="bfloat16")
        run.best(); run.scores
    """
    command = Command("evaluate", options, engine=engine, progress=progress, function=evaluate)
    if scoring not in (None, *SCORINGS):
        raise UnknownNameError("scoring", str(scoring), SCORINGS)
    if scoring == "device":
        find_scorer()
    require_mteb()
    specs = resolve_tasks(tasks, data_dir=data_dir, sample=sample, seed=seed)
    folder = None if out is None else RunFolder(out)
    with command:
        loaded = command.load(model, tokenizer)
        sites = [site_of(k) for k in pick_layers(layers, loaded.n_blocks, loaded.name)]
        has_norm = loaded.anatomy.final_norm is not None
        request = EvaluationRequest(
            loaded,
            tuple(specs),
            tuple(parse_readouts(readouts, loaded.has_class_token, has_norm)),
            tuple(expand_sites(sites, loaded.anatomy)),
            max_length if loaded.max_length is None else min(max_length, loaded.max_length),
            seed,
            scoring or _default_scoring(loaded.device),
        )
        workers = min(os.cpu_count() or 1, 8) if scoring_workers is None else scoring_workers
        resources = Resources(
            VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size),
            command.engine if command.recipe else LocalEngine(),
            command.recipe,
            find_scorer()(loaded.device) if request.scoring == "device" else None,
            workers,
            command.where.batch_size,
            command.bar,
        )
        if folder is not None:
            return _run_in(folder, request, resources, overwrite)
        with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
            return _run_in(RunFolder(Path(scratch) / "run"), request, resources).in_memory()


def _default_scoring(device: torch.device) -> str:
    """Return `device` on a GPU where an installed package scores on it."""
    if device.type != "cuda":
        return "mteb"
    try:
        find_scorer()
    except MissingExtraError:
        return "mteb"
    return "device"


def _run_in(
    folder: RunFolder, request: EvaluationRequest, resources: Resources, overwrite: bool = False
) -> Evaluation:
    """Run in a folder: return what is finished there, resume what was started."""
    files = {spec.name: spec.files_sha256() for spec in request.specs}

    def is_finished(manifest: dict[str, Any]) -> bool:
        """Return whether no task failed and no data changed."""
        is_whole = is_complete(manifest) and not manifest.get("failed")
        return is_whole and manifest.get("task_files") == files

    return run_in(
        folder,
        Evaluation,
        request.config,
        lambda session: _compute(request, resources, session),
        overwrite=overwrite,
        owned=_OWNED,
        finished=is_finished,
        task_files=files,
    )


def _compute(request: EvaluationRequest, resources: Resources, session: Session) -> Evaluation:
    folder = session.folder.path
    start = time.perf_counter()
    tasks = collect_tasks(request, resources, folder)
    collected = time.perf_counter()
    scored = score_tasks(request, resources, folder, tasks)
    results = scored.results
    scores = score_table(results, request.model.n_blocks)
    job_at = {(job.task.name, job.readout, job.layer): job for job in scored.jobs}
    clock = time.perf_counter()
    gains = gain_table(
        scores,
        lambda place, *part: read_items(scored.context, job_at[place], *part),
        request.seed,
    )
    seconds = {
        "collect": collected - start,
        **scored.seconds,
        "gains": time.perf_counter() - clock,
    }
    failed = {**tasks.failed, **scored.failed}
    manifest = make_manifest(
        Evaluation.kind,
        model=request.model.identity,
        conventions=request.conventions(),
        tasks=tasks.facts,
        counts=scored.counts,
        undefined=[f"{r['task']}: {r['reason']}" for r in results if r["status"] == "undefined"],
        failed=[{"task": name, "reason": why} for name, why in failed.items()]
        + failures_of(results),
        warnings=warnings_of(request, scored.counts, tasks.facts),
        environment=environment(device=str(request.model.device), threads=torch.get_num_threads()),
        seconds=seconds,
        engine=resources.engine.facts(),
        scoring={
            "by": request.scoring,
            **(resources.scorer.facts(results) if resources.scorer else {}),
        },
    )
    return Evaluation(scores, gains, manifest)
