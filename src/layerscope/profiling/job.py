"""`profile`: a model and some items in; a table of metrics at every layer out, with its conventions
and its uncertainty."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope import accelerator, command
from layerscope.capture import fits_on_device
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.options import DataOptions
from layerscope.data.corpus import lack_words, refuse_missing
from layerscope.data.items import is_items
from layerscope.data.kinds import open_items, setting_names
from layerscope.engines import Engine
from layerscope.forward import Plan, choose_shard_size, make_plan
from layerscope.metrics import Options, get_metric
from layerscope.metrics.registry import MetricName
from layerscope.models import LoadedModel, kind_read_by
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import (
    MemoryStore,
    ProfileTask,
    encode,
)
from layerscope.profiling.mapping import map_of_profile
from layerscope.profiling.run import Profile
from layerscope.profiling.tables import (
    Numbers,
    ProfileTable,
    SiteEstimator,
    gather_numbers,
    make_table,
    measure_sites,
    prompt_table,
)
from layerscope.progress import Progress
from layerscope.spectra import solvers_used
from layerscope.store import RunFolder, Shard, ShardStore
from layerscope.store.folder import Session
from layerscope.version import VERSION

__all__ = ["DEFAULT_DATA"]


def _warnings(task: ProfileTask, plan: Plan, measured: ProfileTable) -> list[str]:
    kind = task.items.kind
    out = [*measured.warnings, *task.items.warnings(), *task.reader.warnings()]
    cut = int(plan.truncated.sum())
    if cut:
        out.append(f"{cut} of {plan.n_prompts} {kind} were cut to {plan.max_length} tokens.")
    if plan.no_tokens:
        out.append(f"{plan.no_tokens} {kind} were left out: the tokenizer finds no token in them.")
    out += task.model.warnings(task.config.final_norm)
    n, views = plan.n_prompts, task.config.n_views
    if "lidar" in task.config.metrics and n * (views - 1) < task.model.width:
        out.append(
            f"LiDAR: {n} prompts × {views} views span fewer than the {task.model.width} dimensions, so its value "
            "depends on δ. Use more prompts or views."
        )
    for metric, sites in measured.undefined.items():
        out.append(
            f"{metric} is undefined for up to {max(sites.values())} of {n} prompts; they are left out of it."
        )
    return out


def _precision(devices: Sequence[str], options: Options) -> str:
    reduced = "reductions and eigenvalues in float64"
    on_gpu = any(accelerator.on(torch.device(device)) is not None for device in devices)
    if on_gpu and options.alpha >= 1:
        reduced = (
            "means in float64; Gram matrices of tokens, DiME's and LiDAR's eigenvalues and those of "
            "folds left out in float32; other spectra in float64"
        )
    return f"states as the model gives them; {reduced}; pooled vectors in float32"


DEFAULT_DATA = "lee"


def profile(
    model: str | Path | LoadedModel | torch.nn.Module,
    data: Any = "lee",
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    metrics: MetricName | Sequence[MetricName] | None = None,
    sites: Sequence[str] | None = None,
    final_norm: str | None = None,
    max_length: int | None = None,
    views: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool | None = None,
    map: bool = False,
    texts: bool = True,
    engine: str | Engine = "local",
    **options: Any,
) -> Profile:
    """Measure every layer of a model on texts, without labels.

    - `model`: a name, folder or hub id (see `load`), a `LoadedModel`, or a torch module with its
      `tokenizer`.
    - `data`: texts (a corpus name, a file, a hub dataset, a list of strings, a `Corpus`), or items
      of the kind that the model reads.
    - `out`: a folder. If it holds this run already, the run is resumed or returned. Without `out`
      nothing is left on disk.
    - `map`: keep up to 2,000 of the items as points at every layer (`run.map()`, and on the page).
    - `texts`: whether that map has what the items say.
    - `metrics`: names, in a list or separated by commas (`paper` and `all` name several). A
      metric's class, or a function of one
      prompt's token states, can be given instead of a name.

    Options of the model (dtype, device, revision, adapters, …), the data (column, limit,
    text_filter, split) and the engine (address, workers, gpus_per_worker, batch_size) are
    plain keywords; `engine` is `local` (this process), `ray` (workers of a cluster) or an `Engine`. Other keywords are settings of the metrics (`alpha`,
    `rows`, `temperature`, `permutations`, …), of views (`augmenter`)
    and for reading items of the model's kind.

        run = layerscope.profile("smollm2-135m", "lee", limit=50, dtype="bfloat16")
        run.table; run.plot()
    """
    # everything that can be wrong with the request is found out before a model is loaded
    ways: dict[str, Any] = {
        "engine": engine,
        "progress": progress,
    }
    asked = command.Command("profile", options, **ways, takes_more=True)
    reading = DataOptions.take(options)
    settings = dict(
        metrics=metrics, sites=sites, final_norm=final_norm, max_length=max_length, views=views, seed=seed,
        **options,
    )  # fmt: skip
    any_kind = {name: value for name, value in settings.items() if name not in setting_names()}
    config = make_config(**any_kind)
    refuse_missing(data)
    with asked:
        kind = _kind_of(model, data, asked.loading)
        if kind != "texts" or len(any_kind) < len(settings):
            config = make_config(**settings, kind=kind)
        folder = None if out is None else RunFolder(out)
        items = open_items(data, kind, reading)
        job = Job(
            asked.load(model, tokenizer),
            items,
            config,
            engine=asked.engine,
            recipe=asked.recipe,
            map=map,
            texts=texts,
        )
        job.batch_size = asked.where.batch_size
        with job.reader:
            if folder is not None:
                return job.run_in(folder, asked.bar, overwrite)
            vectors = len(items) * len(job.sites) * (1 + config.n_views)
            if fits_on_device(job.model.device, vectors, job.model.width):
                return job.run(MemoryStore(), asked.bar)  # nothing goes to disk and back
            with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
                return job.run(ShardStore(Path(scratch)), asked.bar)


def _kind_of(model: Any, data: Any, options: dict[str, Any]) -> str:
    """What the data are: items say it themselves; names mean what the model reads."""
    if is_items(data):
        return str(data.kind)
    if isinstance(data, str) and data == DEFAULT_DATA:
        return "texts"
    return kind_read_by(model, options)


@dataclass
class Job(ProfileTask):
    """One profile, from its items to its tables."""

    map: bool = False
    texts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identity = {
            "model": model_key(self.model.identity),
            "corpus": self.items.fingerprint,
            "profile": self.config.as_dict(),
            "layerscope": VERSION,
            **({"map": self.texts} if self.map else {}),
        }

    def run_in(self, folder: RunFolder, bar: Progress, overwrite: bool) -> Profile:
        """Run in a folder: return what is finished, resume what was stopped."""

        def compute(session: Session) -> Profile:
            size = session.start.get("shard_size") or self._shard_size()
            session.note(shard_size=size)
            return self.run(ShardStore(folder.scratch), bar, size)

        return command.run_in(folder, Profile, self.identity, compute, overwrite=overwrite)

    def run(
        self, store: ShardStore | MemoryStore, bar: Progress, shard_size: int | None = None
    ) -> Profile:
        """Run with shards in a store; those already there are kept."""
        clock = time.perf_counter()
        solvers_used(self.metrics_device)  # those of earlier runs are none of this one's
        gpu = accelerator.on(self.model.device) if self.recipe is None else None
        size = shard_size or self._shard_size()
        if self.recipe is None:
            self.model.find_shortcuts()
        if isinstance(store, MemoryStore) and gpu is not None:
            plan, facts = gpu.encode_in_memory(self, store, bar, size)
        else:
            plan = make_plan(self.reader, size)
            facts = encode(self, plan, store, bar)
        self.reader.stop_views()  # its processes have done their work
        encoded = time.perf_counter()
        facts["lack_words"] = lack_words(
            list(islice(getattr(self.items, "texts", ()), 200))
        )  # now: a GPU is still at work
        # by number of these items: the run may have been started with the same items in another
        # order
        shards = [Shard(numbers, store.vectors(i), {}) for i, numbers in enumerate(plan.shards)]

        def read_numbers() -> Numbers:
            nonlocal encoded
            finished = [store.read(i) for i in range(len(plan.shards))]
            encoded = time.perf_counter()  # a GPU may have been at its last passes
            return gather_numbers(finished)

        metrics = [get_metric(name) for name in self.config.metrics]
        estimator = SiteEstimator(
            metrics, self.config.options, plan, shards, read_numbers, self.model.width
        )
        bar.begin("metrics|sites", len(self.sites))
        gpu = accelerator.on(self.metrics_device)
        if gpu is None:
            values = measure_sites(estimator, len(self.sites))
        else:
            values = gpu.measure_sites(estimator, len(self.sites), self.metrics_device)
        measured = make_table(estimator, self.sites, values, bar.advance)
        seconds = {"encode": encoded - clock, "metrics": time.perf_counter() - encoded}
        run = Profile(
            measured.table,
            self.manifest(plan, measured, facts, seconds),
            prompt_table(self.sites, plan, estimator.prompts, estimator.numbers),
        )
        if self.map:
            made = map_of_profile(
                self.model, self.items, self.sites, shards, self.config.final_norm
            )
            run._map = made if made is None or self.texts else made.without_texts()
        return run

    def manifest(
        self, plan: Plan, measured: ProfileTable, facts: dict[str, Any], seconds: dict[str, float]
    ) -> dict[str, Any]:
        """What the run says about itself."""
        anatomy, config = self.model.anatomy, self.config
        used = plan.lengths[plan.lengths > 0]
        counts = {
            "prompts": plan.n_prompts,
            "dropped": {
                **self.items.dropped,
                **({"no_tokens": plan.no_tokens} if plan.no_tokens else {}),
            },
            "truncated": int(plan.truncated.sum()),
            "tokens": {
                "shortest": int(used.min()),
                "median": float(np.median(used)),
                "longest": int(used.max()),
            },
            "undefined": measured.undefined,
            "flat_differences": measured.flat,
            "empty_views": facts["empty_views"],
        }
        engine = facts.get("engine") or {"name": self.engine.name}
        devices = engine.get("devices") or [str(self.device)]  # workers say where their models were
        odd = {"lack_words": True} if facts["lack_words"] else {}
        return command.make_manifest(
            Profile.kind,
            model=self.model.identity,
            corpus={
                "name": self.items.name,
                "fingerprint": self.items.fingerprint,
                **self.items.source,
                **odd,
            },
            conventions={
                "layer": LAYER,
                **Reading(
                    config.final_norm, plan.max_length, anatomy.final_norm_name
                ).as_conventions(),
                "pooling": "mean over all tokens the tokenizer gives, special tokens included",
                "sink": "the token with the largest norm, found per prompt and site on states without the final norm",
                "padding": "right, masked out of every number",
                "sites": list(config.sites),
                "views": config.n_views,
                "augmenter": config.augmenter if config.n_views else None,
                "seed": config.seed,
                "precision": _precision(devices, config.options),
                "intervals": "95 %: bootstrap over prompts; spectra: 20 folds of prompts left out; DiME: over permutations",
                "metrics": dict(vars(config.options)),
                **({"plugins": plugins} if (plugins := config.as_dict().get("plugins")) else {}),
                "residual_error": facts["residual_error"],
                **self.reader.conventions(config.view_settings),
            },
            counts=counts,
            warnings=_warnings(self, plan, measured),
            environment=command.environment(
                device=", ".join(devices),
                threads=torch.get_num_threads(),
                engine=engine,
                eigenvalues=solvers_used(self.metrics_device),
            ),
            seconds={**seconds, "resumed_prompts": facts["resumed_prompts"]},
        )

    def _shard_size(self) -> int:
        model, sizes = self.model, (len(self.sites), self.config.n_views)
        return choose_shard_size(
            self.device.type, *sizes, model.width, model.item_bytes, self.items_per_batch
        )
