"""`evaluate`: every layer and readout of a model on labeled tasks, each distinct text encoded
once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.readout import parse_readouts
from layerscope.core.sites import pick_layers, site_of
from layerscope.engines import Engine, LocalEngine
from layerscope.errors import UnknownNameError
from layerscope.evaluation.loop import (
    CollectedTasks,
    EvaluationRequest,
    Resources,
    ScoredTasks,
    collect_tasks,
    score_tasks,
)
from layerscope.evaluation.results import ScoreResult, read_items
from layerscope.evaluation.run import Evaluation, gain_table, score_table
from layerscope.evaluation.scorers import find_scorer
from layerscope.evaluation.scoring import require_mteb
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.extras import MissingExtraError
from layerscope.models import LoadedModel
from layerscope.store import RunFolder
from layerscope.store.folder import is_complete
from layerscope.vectors import VectorStore
from layerscope.version import VERSION

__all__ = ["evaluate"]

SCORINGS = {
    "mteb": "mteb's own code",
    "device": "layerscope's batched code, with mteb's draws, seeds and objectives",
}
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

        run = layerscope.evaluate("smollm2-135m", "small", readouts="all", sample=200)
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
        run_config(request),
        lambda session: _compute(request, resources, session.folder.path),
        overwrite=overwrite,
        owned=_OWNED,
        finished=is_finished,
        task_files=files,
    )


def run_config(request: EvaluationRequest) -> dict[str, Any]:
    """Return everything that decides the scores: the run's key is made of it."""
    return {
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


def _compute(request: EvaluationRequest, resources: Resources, folder: Path) -> Evaluation:
    tasks = collect_tasks(request, resources, folder)
    scored = score_tasks(request, resources, folder, tasks)
    scores = score_table(scored.results, request.model.n_blocks)
    gains = gain_table(
        scores,
        lambda place, split, subset: read_items(scored.files[place], split, subset),
        request.seed,
    )
    return Evaluation(scores, gains, _describe(request, resources, tasks, scored))


def _describe(
    request: EvaluationRequest, resources: Resources, tasks: CollectedTasks, scored: ScoredTasks
) -> dict[str, Any]:
    """Return the manifest of a run."""
    # Readouts name the norm.
    reading = Reading(None, request.max_length, request.model.anatomy.final_norm_name)
    failed = {**tasks.failed, **scored.failed}
    texts = len({text for texts in tasks.texts.values() for text in texts})
    by_device = {} if resources.scorer is None else resources.scorer.facts(scored.results)
    return make_manifest(
        Evaluation.kind,
        model=request.model.identity,
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
        tasks=tasks.facts,
        counts={"texts": texts, "encoded": scored.encoded, "truncated": scored.truncated},
        undefined=[
            f"{result.task}: {result.reason}"
            for result in scored.results
            if result.status == "undefined"
        ],
        failed=[{"task": name, "reason": reason} for name, reason in failed.items()]
        + failures_of(scored.results),
        warnings=_find_warnings(request, texts, scored.truncated, tasks.facts),
        environment=environment(device=str(request.model.device), threads=torch.get_num_threads()),
        engine=resources.engine.facts(),
        scoring={"by": request.scoring, **by_device},
    )


def _find_warnings(
    request: EvaluationRequest,
    texts: int,
    truncated: Mapping[str, int],
    facts: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Return what a reader should know before believing the scores."""
    warnings = [
        f"{cut} of {texts} texts were cut to {request.max_length} tokens under template "
        f"{template!r}."
        for template, cut in truncated.items()
        if cut
    ]
    warnings += [
        f"{name} is not MTEB's own split: {fact.get('exact_reason')}."
        for name, fact in facts.items()
        if fact.get("exact") is False
    ]
    return warnings + request.model.warnings()


def failures_of(results: Sequence[ScoreResult]) -> list[dict[str, str]]:
    """Return one line per task and kind of error, however many layers and readouts it failed at."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.status == "failed":
            kind = result.reason.split(":")[0]
            reasons.setdefault((result.task, kind), []).append(result.reason)
    lines = []
    for (task, _), alike in reasons.items():
        others = f" (and {len(alike) - 1} more of its layers and readouts)" if alike[1:] else ""
        lines.append({"task": task, "reason": alike[0] + others})
    return lines
