"""`evaluate`: every layer and readout of a model on labelled tasks, each distinct text encoded once."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from layerscope.cache import cache_dir
from layerscope.capture import Site, expand_sites
from layerscope.core.readout import Readout, get_template, kinds_of, parse_readouts
from layerscope.engines import Engine, LocalEngine, engine_in_use, open_engine
from layerscope.engines.recipe import ModelRecipe, driver_options, make_recipe
from layerscope.errors import LayerscopeError
from layerscope.evaluation.collect import collect
from layerscope.evaluation.encode import EncodePass, open_space, space_description
from layerscope.evaluation.manifest import conventions, failures, warnings
from layerscope.evaluation.run import Evaluation
from layerscope.evaluation.score import Job, Scene, forget, task_config, task_files
from layerscope.evaluation.screen import screen, too_many
from layerscope.evaluation.tables import gain_table, score_table
from layerscope.evaluation.tasks import TaskSpec, resolve_tasks
from layerscope.evaluation.work import encode_by_workers
from layerscope.evaluation.workers import score_all
from layerscope.models import LoadedModel, open_model
from layerscope.progress import Progress, progress_bar
from layerscope.store import RunFolder
from layerscope.store.embeddings import EmbeddingStore, text_key
from layerscope.store.folder import config_key
from layerscope.version import VERSION

DEFAULT_MAX_LENGTH = 256
DEFAULT_BUDGET = 10 * 2**30

# What a run's folder holds besides its tables and its manifest.
_PARTS = ("results", "texts", "mteb", "screen")


def evaluate(
    model: str | Path | LoadedModel | torch.nn.Module,
    tasks: str | Sequence[str] = "small",
    *,
    tokenizer: Any = None,
    out: str | Path,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    max_length: int = DEFAULT_MAX_LENGTH,
    seed: int = 0,
    workers: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_budget: int | None = DEFAULT_BUDGET,
    store_dtype: str = "float32",
    normalize: bool | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    address: str | None = None,
    model_options: dict[str, Any] | None = None,
) -> Evaluation:
    """Score layers and readouts on tasks.

    `tasks` is `paper` (the paper's 32), `small` (a few quick ones from the package index), or names. `readouts` is None (the
    paper's: plain text, mean, final norm applied), `all`, or names (see `layerscope.core.readout`). Vectors are kept in a
    store that later runs read; `workers` processes score (0: this one). `normalize` scales vectors to length 1, which cosines do
    not see but classifiers do; None does what the model's own sentence-transformers pipeline does. `engine` says who runs the
    model: `local` (this process), `ray` (workers of the cluster at `address`) or an `Engine`; scoring stays on this machine.
    """
    open_engine(engine, address)  # connects to nothing yet
    forget()  # files may have changed since an earlier run of this process
    specs = resolve_tasks(tasks, data_dir=None if data_dir is None else Path(data_dir), offline=offline, limit=limit, seed=seed)
    folder = RunFolder(out)
    options = model_options or {}
    with engine_in_use(engine, address) as used:
        loaded = open_model(model, tokenizer, offline, driver_options(model, options) if used.remote else options)
        has_cls = loaded.identity["bidirectional"] and getattr(loaded.tokenizer, "cls_token_id", None) is not None
        chosen = parse_readouts(readouts, has_cls, loaded.anatomy.final_norm is not None)
        unit = bool(loaded.identity.get("normalizes")) if normalize is None else normalize
        job = EvaluationJob(loaded, specs, chosen, layers, max_length, seed, unit)
        if used.remote:
            job.engine, job.recipe = used, make_recipe(model, loaded, offline, options)
        count = min(os.cpu_count() or 1, 8) if workers is None else workers
        held = EmbeddingStore(Path(store) if store else cache_dir() / "embeddings", store_budget)
        with progress_bar(progress) as bar:
            return job.run_in(folder, held, store_dtype, count, batch_size, bar, overwrite)


class EvaluationJob:
    """One evaluation: a loaded model, tasks and readouts. With a `recipe`, the engine's workers run the model."""

    def __init__(
        self,
        model: LoadedModel,
        specs: Sequence[TaskSpec],
        readouts: Sequence[Readout],
        layers: Sequence[int] | None,
        max_length: int,
        seed: int,
        unit: bool = False,
    ) -> None:
        self.model, self.specs, self.readouts, self.seed, self.unit = model, list(specs), list(readouts), seed, unit
        self.screened: dict[str, Any] | None = None
        self.engine: Engine = LocalEngine()
        self.recipe: ModelRecipe | None = None
        self.max_length = max_length if model.max_length is None else min(max_length, model.max_length)
        self.sites = _sites(model, layers)
        self.config = {
            "model": {
                k: model.identity.get(k)
                for k in ("weights_sha256", "settings_sha256", "family", "dtype", "bidirectional", "adapters")
            },
            "tasks": [task_config(spec) for spec in self.specs],
            "readouts": [readout.name for readout in self.readouts],
            "sites": [site.name for site in self.sites],
            "max_length": self.max_length,
            "seed": seed,
            "unit_length": self.unit,
            "layerscope": VERSION,
        }

    def run_in(
        self,
        folder: RunFolder,
        store: EmbeddingStore,
        dtype: str,
        workers: int,
        batch_size: int | None,
        bar: Progress,
        overwrite: bool,
    ) -> Evaluation:
        """Run in a folder: return what is finished, go on with what is begun."""
        self.config["store_dtype"] = dtype
        held = folder.open(self.config, overwrite)
        if overwrite:
            for name in _PARTS:
                shutil.rmtree(folder.path / name, ignore_errors=True)
        files = {spec.name: task_files(spec) for spec in self.specs}
        if held and not overwrite and _is_done(held, files, store.budget):
            return Evaluation.load(folder.path)
        begun = {"kind": "evaluation", "key": config_key(self.config), "config": self.config, "layerscope": VERSION}
        begun["task_files"] = files
        folder.write_manifest({**begun, "status": "running"})
        clock = time.perf_counter()
        texts, facts, failed = collect(self.specs, folder, bar)
        if too_many(self, store, dtype, texts):
            screen(self, folder, store, dtype, texts, facts, workers, batch_size, bar)
        collected = time.perf_counter()
        counts = self._encode(store, dtype, texts, batch_size, bar)
        encoded = time.perf_counter()
        scene = self._scene(folder, store, dtype)
        jobs = self._jobs(list(texts))
        results = self._score(scene, jobs, workers, bar)
        scores = score_table(results, self.model.n_blocks)
        gains = gain_table(scene, jobs, scores, self.seed)
        seconds = {
            "collect": collected - clock,
            "encode": encoded - collected,
            "score": time.perf_counter() - encoded,
        }
        failed += failures(results)
        manifest = {
            **begun,
            "status": "complete",
            "model": self.model.identity,
            "conventions": conventions(self, dtype),
            "tasks": facts,
            "counts": counts,
            "undefined": [f"{r['task']}: {r['reason']}" for r in results if r["status"] == "undefined"],
            "failed": failed,
            "screened": self.screened,
            "warnings": warnings(self, counts, facts),
            "seconds": seconds,
            "engine": self.engine.facts(),
        }
        folder.write_table("scores", scores)
        folder.write_table("gains", gains)
        folder.write_manifest(manifest)
        return Evaluation(scores, gains, manifest, folder.path)

    def bytes(self, texts: dict[str, list[str]], dtype: str) -> int:
        """What the store would hold for these texts under all readouts."""
        kinds = sum(len(kinds_of(readouts)) for readouts in self._by_template().values())
        distinct = len({text for some in texts.values() for text in some})
        return distinct * kinds * len(self.sites) * self.model.width * (2 if dtype == "float16" else 4)

    def _by_template(self) -> dict[str, list[Readout]]:
        grouped: dict[str, list[Readout]] = {}
        for readout in self.readouts:
            grouped.setdefault(readout.template, []).append(readout)
        return grouped

    def _encode(
        self, store: EmbeddingStore, dtype: str, texts: dict[str, list[str]], batch_size: int | None, bar: Progress
    ) -> dict[str, Any]:
        """One pass per template over the texts that are not in the store yet."""
        every = list(dict.fromkeys(text for some in texts.values() for text in some))
        passes = []
        for name, readouts in self._by_template().items():
            template = get_template(name)
            space = open_space(store, self.model, template, self.max_length, dtype)
            encode = EncodePass(self.model, template, self.sites, kinds_of(readouts), space, self.max_length, batch_size)
            passes.append((encode, encode.missing(every)))
        total = len(every) * len(passes)
        bar.begin(f"{self.model.name}|texts", total, total - sum(len(missing) for _, missing in passes))
        if self.recipe is not None:
            encode_by_workers(self.engine, self.recipe, passes, bar.advance)
        else:
            for encode, missing in passes:
                encode.run(missing, bar.advance)
        keys = [text_key(text) for text in every]
        cut = {p.template.name: int(p.space.read_numbers(keys, "truncated").sum()) for p, _ in passes}
        return {
            "texts": len(every),
            "encoded": sum(len(missing) for _, missing in passes),
            "truncated": cut,
            "store_bytes": store.size(),
        }

    def _scene(self, folder: RunFolder, store: EmbeddingStore, dtype: str) -> Scene:
        spaces = tuple(
            (name, json.dumps(space_description(self.model, get_template(name), self.max_length)), dtype)
            for name in self._by_template()
        )
        identity = self.model.identity
        return Scene(
            str(folder.path), str(store.root), self.model.name, identity.get("revision"), self.model.width, spaces, self.unit
        )

    def _jobs(self, names: Sequence[str]) -> list[Job]:
        return [
            Job(spec, readout, site.name, site.layer)
            for spec in self.specs
            if spec.name in names
            for readout in self.readouts
            for site in self.sites
        ]

    def _score(self, scene: Scene, jobs: Sequence[Job], workers: int, bar: Progress) -> list[dict[str, Any]]:
        done = [job for job in jobs if job.file(scene).exists()]
        bar.begin("scoring|scores", len(jobs), len(done))
        results = [json.loads(job.file(scene).read_text(encoding="utf-8")) for job in done]
        finished = set(done)
        for result in score_all(scene, [job for job in jobs if job not in finished], workers):
            results.append(result)
            bar.advance(1)
        return results


def _sites(model: LoadedModel, layers: Sequence[int] | None) -> list[Site]:
    every = expand_sites(None, model.anatomy)
    if layers is None:
        return every
    count = model.n_blocks
    wanted = {layer if layer >= 0 else count + 1 + layer for layer in layers}
    wrong = sorted(layer for layer in wanted if not 0 <= layer <= count)
    if wrong:
        raise LayerscopeError(f"layer {wrong[0]} does not exist: {model.name} has layers 0 to {count} (or -1 for the last).")
    return [site for site in every if site.layer in wanted]


def _is_done(held: dict[str, Any], files: dict[str, str | None], budget: int | None) -> bool:
    """Whether nothing is left to do: no task failed, no data changed, no readout was left out for lack of room."""
    if held.get("status") != "complete" or held.get("failed") or held.get("task_files") != files:
        return False
    screened = held.get("screened")
    return screened is None or (budget is not None and budget <= screened["budget"])
