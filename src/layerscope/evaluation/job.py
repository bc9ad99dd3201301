"""`evaluate`: every layer and readout of a model on labeled tasks, each distinct text encoded
once."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from layerscope.evaluation.loop import Loop, Resources, Scorers
from layerscope.evaluation.plan import SCORINGS, EvaluationPlan, failures, warnings
from layerscope.evaluation.run import Evaluation, gain_table, score_table
from layerscope.evaluation.scorers import find_scorer
from layerscope.evaluation.scoring import (
    clear_caches,
    collect,
    encoded_texts,
    read_items,
    require_mteb,
    task_files,
)
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.extras import MissingExtraError
from layerscope.models import LoadedModel
from layerscope.store import RunFolder
from layerscope.store.folder import Session, is_complete
from layerscope.vectors import DTYPES, VectorStore

__all__ = ["evaluate"]

# What a run's folder holds besides its tables and its manifest.
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
    store_dtype: str = "float32",
    normalize: bool | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Evaluation:
    """Score layers and readouts on labeled tasks.

    - `tasks`: `paper` (the paper's 32), `small` (a few quick ones from the package index), or
      names.
    - `readouts`: None (the paper's: plain text, mean, final norm applied), `all`, or names (see
      `layerscope.core.readout`).
    - `out`: a folder in which the run is stored and resumed. Without it the result is in memory
      only. In both cases vectors are
      kept in an embedding store that later runs reuse.
    - `scoring`: `mteb` (its own code, the reference) or `device` (near-equal scores, all layers at
      once, on the model's device).
      None: `device` where the model is on a GPU.
    - `scoring_workers`: the number of processes that score (0: score in this one).
    - `normalize`: scale vectors to length 1, which does not change cosines but does change
      classifiers. None: do what the model's
      own sentence-transformers pipeline does.

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine` (`local`: this process; `ray`: workers of a cluster). Scoring always runs on this
    machine.

        run = layerscope.evaluate("smollm2-135m", "small", readouts="all", sample=200, dtype="bfloat16")
        run.best(); run.scores
    """
    ways: dict[str, Any] = {
        "engine": engine,
        "offline": offline,
        "progress": progress,
    }
    command = Command("evaluate", options, **ways, function=evaluate)
    if store_dtype not in DTYPES:
        raise UnknownNameError("store_dtype", str(store_dtype), DTYPES)
    if scoring not in (None, *SCORINGS):
        raise UnknownNameError("scoring", str(scoring), SCORINGS)
    if scoring == "device":
        find_scorer()
    require_mteb()
    clear_caches()  # files may have changed since an earlier run of this process
    specs = resolve_tasks(
        tasks,
        data_dir=None if data_dir is None else Path(data_dir),
        offline=offline,
        sample=sample,
        seed=seed,
    )
    folder = None if out is None else RunFolder(out)
    with command:
        loaded = command.load(model, tokenizer)
        plan = EvaluationPlan(
            loaded,
            tuple(specs),
            tuple(
                parse_readouts(
                    readouts, loaded.has_class_token, loaded.anatomy.final_norm is not None
                )
            ),
            tuple(
                expand_sites(
                    [site_of(k) for k in pick_layers(layers, loaded.n_blocks, loaded.name)],
                    loaded.anatomy,
                )
            ),
            max_length if loaded.max_length is None else min(max_length, loaded.max_length),
            seed=seed,
            unit_length=bool(loaded.identity.get("normalizes")) if normalize is None else normalize,
            store_dtype=store_dtype,
            scoring=scoring
            or ("device" if loaded.device.type == "cuda" and _scores_there() else "mteb"),
        )
        count = min(os.cpu_count() or 1, 8) if scoring_workers is None else scoring_workers
        vectors = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
        temporary = (
            tempfile.TemporaryDirectory(prefix="layerscope-") if folder is None else nullcontext("")
        )
        with temporary as scratch:
            running = command.engine if command.recipe else LocalEngine()
            job = EvaluationJob(
                plan, vectors, command.where.batch_size, command.bar, running, command.recipe, count
            )
            if folder is not None:
                return job.run_in(folder, overwrite)
            return job.run_in(RunFolder(Path(scratch) / "run")).in_memory()


@dataclass(frozen=True)
class EvaluationJob(Resources):
    """One evaluation, from its folder to its tables."""

    scoring_workers: int = 0

    @property
    def apart(self) -> bool:
        """Whether the model runs elsewhere than scores do: on one CPU they would only be in each
        other's way."""
        return self.plan.model.device.type != "cpu"

    def run_in(self, folder: RunFolder, overwrite: bool = False) -> Evaluation:
        """Run in a folder: return what is finished there, resume what was started."""
        files = {spec.name: task_files(spec) for spec in self.plan.specs}

        def finished(manifest: dict[str, Any]) -> bool:
            """Nothing is left to do: no task failed, no data changed."""
            whole = is_complete(manifest) and not manifest.get("failed")
            return whole and manifest.get("task_files") == files

        return run_in(
            folder,
            Evaluation,
            self.plan.config,
            self._run,
            overwrite=overwrite,
            owned=_OWNED,
            finished=finished,
            task_files=files,
        )

    def _run(self, session: Session) -> Evaluation:
        plan, folder, clock = self.plan, session.folder, time.perf_counter()
        scorer, texts_of = None, encoded_texts
        if plan.scoring == "device":
            kind = find_scorer()
            scorer, texts_of = kind(plan.model.device, self.scoring_workers), kind.texts_of
        texts, facts, failed = collect(plan.specs, folder.path, self.bar, texts_of)
        collected = time.perf_counter() - clock
        with Scorers(self.scoring_workers, scorer, apart=self.apart) as scorers:
            loop = Loop(self, folder.path, texts, scorers)
            loop.go()
        counts, results = loop.counts, loop.results
        counts["texts"] = len({text for some in texts.values() for text in some})
        scores = score_table(results, plan.model.n_blocks)
        by_place = {(job.task.name, job.readout, job.layer): job for job in loop.jobs}
        clock = time.perf_counter()
        gains = gain_table(
            scores, lambda place, *part: read_items(loop.context, by_place[place], *part), plan.seed
        )
        loop.seconds["gains"] = time.perf_counter() - clock
        manifest = make_manifest(
            Evaluation.kind,
            model=plan.model.identity,
            conventions=plan.conventions(),
            tasks=facts,
            counts=counts,
            undefined=[
                f"{r['task']}: {r['reason']}" for r in results if r["status"] == "undefined"
            ],
            failed=failed
            + [{"task": name, "reason": why} for name, why in loop.failed.items()]
            + failures(results),
            warnings=warnings(plan, counts, facts),
            environment=environment(device=str(plan.model.device), threads=torch.get_num_threads()),
            seconds={"collect": collected, **loop.seconds},
            engine=self.engine.facts(),
            scoring={"by": plan.scoring, **({} if scorer is None else scorer.facts(results))},
        )
        return Evaluation(scores, gains, manifest)


def _scores_there() -> bool:
    """Return whether an installed package scores on a device."""
    try:
        find_scorer()
    except MissingExtraError:
        return False
    return True
