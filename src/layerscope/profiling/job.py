"""`profile`: a model and some items in; a table of metrics at every layer out, with its conventions
and its uncertainty."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope import accelerator, command
from layerscope.capture import fits_on_device
from layerscope.core.identity import LAYER, Reading, model_key
from layerscope.core.options import DataOptions
from layerscope.data.corpus import refuse_missing
from layerscope.data.items import Items, is_items, open_items, setting_names
from layerscope.data.records import lack_words
from layerscope.engines import Engine
from layerscope.metrics.registry import MetricName
from layerscope.models import LoadedModel, kind_read_by
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import EncodedItems, ProfileTask, encode
from layerscope.profiling.run import Profile
from layerscope.profiling.tables import (
    ProfileTable,
    SiteEstimator,
    make_table,
    map_items,
    measure_sites,
    prompt_table,
)
from layerscope.progress import Progress
from layerscope.spectra import solvers_used
from layerscope.store import RunFolder
from layerscope.vectors import VectorSpace
from layerscope.version import VERSION

__all__ = ["DEFAULT_DATA", "profile", "run_profile"]

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
      metric's class, or a function of one prompt's token states, can be given instead of a name.

    Options of the model (dtype, device, revision, adapters, …), the data (column, limit,
    split) and the engine (address, workers, gpus_per_worker, batch_size) are plain
    keywords; `engine` is `local` (this process), `ray` (workers of a cluster) or an `Engine`. Other
    keywords are settings of the metrics (`alpha`, `rows`, `temperature`, `permutations`, …), of
    views (`augmenter`) and for reading items of the model's kind.

        run = layerscope.profile("smollm2-135m", "lee", limit=50, dtype="bfloat16")
        run.table; run.plot()
    """
    # Errors of the request are raised before a model is loaded.
    request = command.Command("profile", options, engine=engine, progress=progress, takes_more=True)
    data_options = DataOptions.take(options)
    settings = {
        "metrics": metrics,
        "sites": sites,
        "final_norm": final_norm,
        "max_length": max_length,
        "views": views,
        "seed": seed,
        **options,
    }
    kinds_own = setting_names()
    make_config(**{name: value for name, value in settings.items() if name not in kinds_own})
    refuse_missing(data)
    with request:
        kind = _kind_of(model, data, request.loading)
        config = make_config(**settings, kind=kind)
        folder = None if out is None else RunFolder(out)
        items = open_items(data, kind, data_options)
        loaded = request.load(model, tokenizer)
        batch_size = request.where.batch_size
        task = ProfileTask(loaded, items, config, batch_size, request.engine, request.recipe)

        def compute(scratch: Path | None) -> Profile:
            run, encoded = run_profile(task, scratch, request.bar)
            if map:
                layer_map = map_items(task, encoded)
                run._map = layer_map if layer_map is None or texts else layer_map.without_texts()
            return run

        with task.reader:
            if folder is not None:
                identity = {
                    "model": model_key(loaded.identity),
                    "corpus": items.fingerprint,
                    "profile": config.as_dict(),
                    "layerscope": VERSION,
                    **({"map": texts} if map else {}),
                }
                return command.run_in(
                    folder,
                    Profile,
                    identity,
                    lambda session: compute(folder.scratch),
                    overwrite=overwrite,
                )
            vectors = len(items) * len(task.sites) * (1 + config.n_views)
            on_gpu = accelerator.on(loaded.device) is not None and task.recipe is None
            if on_gpu and fits_on_device(loaded.device, vectors, loaded.width):
                return compute(None)
            with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
                return compute(Path(scratch))


def _kind_of(model: Any, data: Any, options: dict[str, Any]) -> str:
    """Return the kind of the data. Items know theirs; names mean what the model reads."""
    if is_items(data):
        return str(data.kind)
    if isinstance(data, str) and data == DEFAULT_DATA:
        return "texts"
    return kind_read_by(model, options)


def run_profile(
    task: ProfileTask, scratch: Path | None, bar: Progress
) -> tuple[Profile, EncodedItems]:
    """Encode and measure. Vectors go through a folder, or without one stay on the GPU; shards that
    the folder has already are kept."""
    start = time.perf_counter()
    solvers_used(task.metrics_device)  # forget those of earlier runs
    if task.recipe is None:
        task.model.find_shortcuts()
    if scratch is None:
        gpu = accelerator.on(task.model.device)
        assert gpu is not None
        encoded: EncodedItems = gpu.encode_in_memory(task, bar)
    else:
        encoded = encode(task, VectorSpace(scratch), bar)
    task.reader.stop_views()  # its processes have done their work
    encode_seconds = time.perf_counter() - start
    corpus = _describe_items(task.items)  # here, while a GPU is still at work
    estimator = SiteEstimator(task, encoded)
    count = len(task.sites)
    bar.begin("metrics|sites", count)
    gpu = accelerator.on(task.metrics_device)
    if gpu is None:
        values = measure_sites(estimator, count)
    else:
        values = gpu.measure_sites(estimator, count, task.metrics_device)
    table = make_table(estimator, task.sites, values, bar.advance)
    seconds = {
        "encode": encode_seconds,
        "metrics": time.perf_counter() - start - encode_seconds,
        "resumed_prompts": encoded.resumed_prompts,
    }
    prompts = prompt_table(task.sites, encoded.plan, encoded.prompts, estimator.numbers)
    manifest = {**_manifest(task, encoded, table), "corpus": corpus, "seconds": seconds}
    return Profile(table.table, manifest, prompts), encoded


def _describe_items(items: Items) -> dict[str, Any]:
    facts = {"name": items.name, "fingerprint": items.fingerprint, **items.source}
    if lack_words(list(islice(getattr(items, "texts", ()), 200))):
        facts["lack_words"] = True
    return facts


def _manifest(task: ProfileTask, encoded: EncodedItems, table: ProfileTable) -> dict[str, Any]:
    """Return what the run says about itself."""
    config = task.config
    plan = encoded.plan
    items = task.items
    lengths = plan.lengths[plan.lengths > 0]
    no_tokens = {"no_tokens": plan.no_tokens} if plan.no_tokens else {}
    engine = task.engine.facts()
    devices = engine.get("devices") or [str(task.device)]
    reductions = "reductions and eigenvalues in float64"
    on_gpu = any(accelerator.on(torch.device(device)) is not None for device in devices)
    if on_gpu and config.options.alpha >= 1:
        reductions = "means in float64; Gram matrices and most eigenvalues in float32"
    reading = Reading(config.final_norm, plan.max_length, task.model.anatomy.final_norm_name)
    return command.make_manifest(
        Profile.kind,
        model=task.model.identity,
        conventions={
            "layer": LAYER,
            **reading.as_conventions(),
            "pooling": "mean over all tokens the tokenizer gives, special tokens included",
            "sink": "the token with the largest norm, found per prompt and site on states without "
            "the final norm",
            "padding": "right, masked out of every number",
            "sites": list(config.sites),
            "views": config.n_views,
            "augmenter": config.augmenter if config.n_views else None,
            "seed": config.seed,
            "precision": f"states as the model gives them; {reductions}; pooled vectors in float32",
            "intervals": "95 %: bootstrap over prompts; spectra: 20 folds of prompts left out; "
            "DiME: over permutations",
            "metrics": dict(vars(config.options)),
            "residual_error": encoded.residual_error,
            **task.reader.conventions(config.view_settings),
            **({"plugins": config.plugins} if config.plugins else {}),
        },
        counts={
            "prompts": plan.n_prompts,
            "dropped": {**items.dropped, **no_tokens},
            "truncated": int(plan.truncated.sum()),
            "tokens": {
                "shortest": int(lengths.min()),
                "median": float(np.median(lengths)),
                "longest": int(lengths.max()),
            },
            "undefined": table.undefined,
        },
        warnings=_warnings(task, encoded, table),
        environment=command.environment(
            device=", ".join(devices),
            threads=torch.get_num_threads(),
            engine=engine,
            eigenvalues=solvers_used(task.metrics_device),
        ),
    )


def _warnings(task: ProfileTask, encoded: EncodedItems, table: ProfileTable) -> list[str]:
    """Return what a reader of the numbers must know."""
    kind = task.items.kind
    config = task.config
    plan = encoded.plan
    count = plan.n_prompts
    warnings = [*table.warnings, *task.items.warnings(), *task.reader.warnings()]
    if cut := int(plan.truncated.sum()):
        warnings.append(f"{cut} of {count} {kind} were cut to {plan.max_length} tokens.")
    if plan.no_tokens:
        warnings.append(
            f"{plan.no_tokens} {kind} were left out: the tokenizer finds no token in them."
        )
    warnings += task.model.warnings(config.final_norm)
    if "lidar" in config.metrics and count * (config.n_views - 1) < task.model.width:
        warnings.append(
            f"LiDAR: {count} prompts × {config.n_views} views span fewer than the "
            f"{task.model.width} dimensions, so its value depends on δ. Use more prompts or views."
        )
    for metric, sites in table.undefined.items():
        warnings.append(
            f"{metric} is undefined for up to {max(sites.values())} of {count} prompts; they are "
            "left out of it."
        )
    return warnings
