"""`profile`: a model and some texts in; a table of metrics at every layer out, with its conventions and its uncertainty."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope import __version__
from layerscope.capture import Reducer, Site, check_residual, expand_sites, make_batch
from layerscope.capture.reduce import compute_dtype
from layerscope.data import Corpus, load_corpus
from layerscope.errors import DataError, LayerscopeError
from layerscope.metrics import Options
from layerscope.models import LoadedModel, open_model
from layerscope.models.adapters import locate
from layerscope.models.fingerprint import files_sha256
from layerscope.models.source import resolve
from layerscope.profiling.config import ProfileConfig, make_config
from layerscope.profiling.held import HeldShards, WriteBehind, fits
from layerscope.profiling.passes import Encoder
from layerscope.profiling.plan import Plan, choose_shard_size, make_plan
from layerscope.profiling.reading import ReadAhead
from layerscope.profiling.run import Run
from layerscope.profiling.tables import TableBuilder, prompt_table
from layerscope.progress import Progress, progress_bar
from layerscope.report.live import LivePage
from layerscope.spectra import solver_name
from layerscope.store import RunFolder, ShardStore
from layerscope.store.folder import config_key


def profile(
    model: str | Path | LoadedModel | torch.nn.Module,
    texts: str | Path | Iterable[str] | Corpus = "lee",
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] | None = None,
    final_norm: str | None = None,
    alpha: float | None = None,
    max_length: int | None = None,
    views: int | None = None,
    seed: int = 0,
    preset: str = "default",
    augmenter: str | None = None,
    limit: int | None = None,
    column: str | None = None,
    text_filter: str | None = None,
    batch_size: int | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    live: bool = False,
    model_options: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Measure every layer of a model on some texts.

    `model` is a name, folder or hub id (see `load`), a `LoadedModel`, or a torch module with its `tokenizer`. `texts` is a
    corpus name, a file, a hub dataset or a list of strings. `out` is a folder that is resumed if it holds this very run;
    without it nothing is left on disk. `live` keeps a page of what is known so far in it.
    `options` are settings of the metrics (`rows`, `temperature`, `permutations`, …).

        run = layerscope.profile("smollm2-135m", "lee", limit=50)
        run.table; run.plot()
    """
    # everything that can be wrong with the request is found out before a model is loaded
    config = make_config(
        metrics=metrics,
        sites=sites,
        final_norm=final_norm,
        max_length=max_length,
        views=views,
        augmenter=augmenter,
        seed=seed,
        preset=preset,
        alpha=alpha,
        **options,
    )
    if batch_size is not None and batch_size < 1:
        raise LayerscopeError(f"batch_size must be at least 1, not {batch_size}.")
    if live and out is None:
        raise LayerscopeError("live writes a page into the run's folder: give `out` too.")
    folder = None if out is None else RunFolder(out)
    page = LivePage(folder.path) if live and folder is not None else None
    source = resolve_early(model, offline, model_options or {})
    reading = {"column": column, "limit": limit, "text_filter": text_filter}
    if isinstance(texts, Corpus):
        unused = [name for name, value in reading.items() if value is not None]
        if unused:
            raise DataError(f"{unused[0]} goes with texts that are yet to be read: pass it to load_corpus instead.")
        corpus = texts
    else:
        corpus = load_corpus(texts, offline=offline, **reading)  # type: ignore[arg-type]
    request = {"model": source, "corpus": corpus.fingerprint, "profile": config.as_dict(), "layerscope": __version__}
    if folder is not None and source is not None and not overwrite:
        held = folder.manifest()
        if held and held.get("status") == "complete" and held.get("request_key") == config_key(request):
            return _shown(Run.load(folder.path), page)
    loaded = open_model(model, tokenizer, offline, model_options or {})
    job = Job(loaded, corpus, config, batch_size, page)
    with progress_bar(progress) as bar:
        if folder is None:
            if job.fits_on_device():
                return job.run(HeldShards(), bar)
            with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
                return job.run(ShardStore(Path(scratch)), bar)
        return _shown(job.run_in(folder, bar, overwrite, config_key(request) if source else None), page)


def _shown(run: Run, page: LivePage | None) -> Run:
    """The run; where a page follows it, the page is complete too."""
    if page is not None:
        page.finish(run)
    return run


def resolve_early(model: Any, offline: bool, model_options: dict[str, Any]) -> dict[str, Any] | None:
    """What identifies a model given by name, without loading it: enough to tell whether a run is there already."""
    if not isinstance(model, (str, Path)):
        return None
    keep = {k: model_options[k] for k in ("revision", "allow_pickle", "trust_remote_code") if k in model_options}
    source = resolve(model, offline, **keep)
    adapters = [files_sha256(locate(adapter, offline).glob("*")) for adapter in model_options.get("adapters") or ()]
    named = {k: str(v) for k, v in model_options.items() if k not in ("device", "device_map", "adapters")}
    files = {"weights_sha256": source.weights_sha256(), "settings_sha256": source.settings_files_sha256()}
    return {**files, "adapters": adapters, **named}


@dataclass
class Job:
    """One profile: a loaded model, a corpus and a configuration."""

    model: LoadedModel
    corpus: Corpus
    config: ProfileConfig
    batch_size: int | None = None
    page: LivePage | None = None

    def __post_init__(self) -> None:
        self.sites: list[Site] = expand_sites(self.config.sites, self.model.anatomy)
        keep = ("weights_sha256", "settings_sha256", "family", "architecture", "dtype", "bidirectional", "adapters")
        self.identity = {
            "model": {name: self.model.identity.get(name) for name in keep},
            "corpus": self.corpus.fingerprint,
            "profile": self.config.as_dict(),
            "layerscope": __version__,
        }

    def run_in(self, folder: RunFolder, bar: Progress, overwrite: bool, request_key: str | None) -> Run:
        """Run in a folder: return what is finished, go on with what is begun."""
        held = folder.open(self.identity, overwrite)
        if held and held.get("status") == "complete" and not overwrite:
            return Run.load(folder.path)
        if held is None or overwrite:
            shutil.rmtree(folder.scratch, ignore_errors=True)
            held = None
        size = held["shard_size"] if held else self._shard_size()
        begun = {"kind": "profile", "status": "running", "key": config_key(self.identity), "request_key": request_key}
        folder.write_manifest({**begun, "config": self.identity, "shard_size": size, "started": _now()})
        run = self.run(ShardStore(folder.scratch), bar, size)
        run.manifest = {**begun, "config": self.identity, **run.manifest, "shard_size": size}
        run.save(folder.path)
        folder.finish()
        return run

    def fits_on_device(self) -> bool:
        """Whether the pooled vectors of the whole run may stay on a GPU, so that nothing goes to disk and back."""
        vectors = len(self.corpus) * len(self.sites) * (1 + self.config.n_views)
        return fits(self.model.device, vectors, self.model.width)

    def run(self, store: ShardStore | HeldShards, bar: Progress, shard_size: int | None = None) -> Run:
        """Run with shards in a store; those already there are kept."""
        clock = time.perf_counter()
        plan = make_plan(self.model, self.corpus.texts, self.config.max_length, shard_size or self._shard_size())
        encoder_facts = self._encode(plan, store, bar)
        encoded = time.perf_counter()
        # by number of this corpus: the run may have been begun with the same texts in another order
        shards = [replace(store.read(i), prompts=prompts) for i, prompts in enumerate(plan.shards)]
        builder = TableBuilder(self.config, self.sites, plan, self.model.width, self.model.device)
        bar.begin("metrics|sites", len(self.sites))
        table = builder.build(shards, bar.advance)
        prompts = prompt_table(self.sites, plan, shards)
        seconds = {"encode": encoded - clock, "metrics": time.perf_counter() - encoded}
        manifest = self._manifest(plan, builder, encoder_facts, seconds)
        return Run(table, manifest, prompts)

    def _shard_size(self) -> int:
        return choose_shard_size(self.model.device.type, len(self.sites), self.config.n_views, self.model.width)

    def _encode(self, plan: Plan, store: ShardStore | HeldShards, bar: Progress) -> dict[str, Any]:
        """Forward passes over every shard that is not there yet."""
        per_prompt = 1 + self.config.n_views
        done = sum(len(shard) for i, shard in enumerate(plan.shards) if store.has(i))
        bar.begin(f"{self.model.name}|texts", plan.n_prompts * per_prompt, done * per_prompt)
        facts: dict[str, Any] = {"resumed_prompts": done, "residual_error": None, "empty_views": 0}
        if done == plan.n_prompts:
            return facts
        if any(site.part for site in self.sites):
            facts["residual_error"] = self._check_residual(plan)
        chosen = self.config.metrics
        with ExitStack() as stack:
            reducer = stack.enter_context(
                Reducer(
                    self.model.anatomy,
                    self.sites,
                    self.config.final_norm,
                    self.config.options,
                    entropy="prompt_entropy" in chosen,
                    curvature="curvature" in chosen,
                )
            )
            left = {i: shard for i, shard in enumerate(plan.shards) if not store.has(i)}
            ahead = None
            if self.model.device.type == "cuda":  # a GPU would have to wait for texts and disks
                ahead = stack.enter_context(ReadAhead(self.model, plan, list(left.values()), self.config))
            held = isinstance(store, HeldShards)
            encoder = Encoder(self.model, reducer, self.config, self.batch_size, on_device=held, ahead=ahead)
            write = stack.enter_context(WriteBehind(store)) if ahead is not None and not held else store.write
            for index, shard in left.items():
                write(index, encoder.run(plan, shard, bar.advance))
                if self.page is not None and not isinstance(store, HeldShards):
                    self.page.update(self, plan, store)
            facts["empty_views"] = encoder.empty_views
        return facts

    def _check_residual(self, plan: Plan) -> float | None:
        shortest = plan.texts[int(plan.shards[-1][-1])]
        batch = make_batch(self.model.tokenize([shortest], min(plan.max_length, 64)).ids, self.model.pad_id, self.model.device)
        return check_residual(self.model.anatomy, lambda: self.model.run(batch))

    def _manifest(self, plan: Plan, builder: TableBuilder, facts: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
        anatomy, config = self.model.anatomy, self.config
        used = plan.lengths[plan.lengths > 0]
        counts = {
            "prompts": plan.n_prompts,
            "dropped": {**self.corpus.dropped, **({"no_tokens": plan.no_tokens} if plan.no_tokens else {})},
            "truncated": int(plan.truncated.sum()),
            "tokens": {"shortest": int(used.min()), "median": float(np.median(used)), "longest": int(used.max())},
            "undefined": builder.undefined,
            "flat_differences": builder.flat,
            "empty_views": facts["empty_views"],
        }
        return {
            "kind": "profile",
            "status": "complete",
            "layerscope": __version__,
            "finished": _now(),
            "model": self.model.identity,
            "corpus": {"name": self.corpus.name, "fingerprint": self.corpus.fingerprint, **self.corpus.source},
            "conventions": {
                "layer": "layer k is the state after k blocks; layer 0 is the input of the first block",
                "final_norm": config.final_norm,
                "final_norm_module": None if anatomy.final_norm is None else type(anatomy.final_norm).__name__,
                "pooling": "mean over all tokens the tokenizer gives, special tokens included",
                "sink": "the token with the largest norm, found per prompt and site on states without the final norm",
                "padding": "right, masked out of every number",
                "sites": list(config.sites),
                "max_length": plan.max_length,
                "views": config.n_views,
                "augmenter": config.augmenter if config.n_views else None,
                "seed": config.seed,
                "preset": config.preset,
                "precision": _precision(self.model.device, config.options),
                "intervals": "95 %: bootstrap over prompts; spectra: 20 folds of prompts left out; DiME: over permutations",
                "metrics": dict(vars(config.options)),
                "residual_error": facts["residual_error"],
            },
            "counts": counts,
            "warnings": self._warnings(plan, builder),
            "environment": {
                "python": platform.python_version(),
                "machine": platform.machine(),
                "device": str(self.model.device),
                "threads": torch.get_num_threads(),
                "eigenvalues": solver_name(self.model.device),
                **{name: _version(name) for name in ("torch", "numpy", "transformers", "tokenizers", "pandas")},
            },
            "seconds": {**seconds, "resumed_prompts": facts["resumed_prompts"]},
        }

    def _warnings(self, plan: Plan, builder: TableBuilder) -> list[str]:
        out = list(builder.warnings)
        cut = int(plan.truncated.sum())
        if cut:
            out.append(f"{cut} of {plan.n_prompts} texts were cut to {plan.max_length} tokens.")
        if self.model.max_length is not None and self.config.max_length > self.model.max_length:
            out.append(f"max_length {self.config.max_length} is more than the model's context: {self.model.max_length} was used.")
        if plan.no_tokens:
            out.append(f"{plan.no_tokens} texts were left out: the tokenizer finds no token in them.")
        if self.corpus.dropped:
            what = ", ".join(f"{n} {why}" for why, n in self.corpus.dropped.items())
            out.append(f"texts left out of the corpus: {what}.")
        if self.corpus.source.get("duplicates"):
            out.append(
                f"{self.corpus.source['duplicates']} texts are duplicates: they count as prompts of their own, "
                "and as negatives of each other in InfoNCE."
            )
        if self.model.anatomy.final_norm is None and self.config.final_norm != "raw":
            out.append(f"this model has no final norm: final_norm={self.config.final_norm} is the same as raw here.")
        if self.model.identity.get("quantisation"):
            out.append(f"the weights were quantised ({self.model.identity['quantisation']}) in their source.")
        n, views = plan.n_prompts, self.config.n_views
        if "lidar" in self.config.metrics and n * (views - 1) < self.model.width:
            out.append(
                f"LiDAR: {n} prompts × {views} views span fewer than the {self.model.width} dimensions, so its value "
                "depends on δ. Use more prompts or views."
            )
        for metric, sites in builder.undefined.items():
            out.append(f"{metric} is undefined for up to {max(sites.values())} of {n} prompts; they are left out of it.")
        return out


def _precision(device: torch.device, options: Options) -> str:
    reduced = "reductions and eigenvalues in float64"
    if compute_dtype(device, options) == torch.float32:
        reduced = (
            "means in float64; Gram matrices of tokens, DiME's and LiDAR's eigenvalues and those of folds left out in float32; "
            "other spectra in float64"
        )
    return f"states as the model gives them; {reduced}; pooled vectors in float32"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
