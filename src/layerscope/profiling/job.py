"""`profile`: a model and some texts in; a table of metrics at every layer out, with its conventions and its uncertainty."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from layerscope.capture import Site, expand_sites
from layerscope.core.runs import view
from layerscope.data import Corpus, load_corpus
from layerscope.data.images.imageset import ImageSet
from layerscope.engines import Engine, LocalEngine, engine_in_use, open_engine
from layerscope.engines.models import ModelRecipe, driver_options, make_recipe
from layerscope.errors import DataError, LayerscopeError
from layerscope.models import ImageModel, LoadedModel, open_model
from layerscope.models.adapters import locate
from layerscope.models.fingerprint import files_sha256
from layerscope.models.source import resolve
from layerscope.profiling.config import ProfileConfig, make_config
from layerscope.profiling.encoding import encode, encode_held
from layerscope.profiling.held import HeldShards, fits
from layerscope.profiling.images import image_settings, open_image_set, wants_images
from layerscope.profiling.manifest import make_manifest, now
from layerscope.profiling.numbers import PromptNumbers, PromptTable
from layerscope.profiling.plan import Plan, choose_shard_size, make_plan
from layerscope.profiling.run import Run
from layerscope.profiling.tables import TableBuilder
from layerscope.progress import Progress, progress_bar
from layerscope.store import RunFolder, Shard, ShardStore
from layerscope.store.folder import config_key
from layerscope.version import VERSION


def profile(
    model: str | Path | LoadedModel | torch.nn.Module,
    texts: str | Path | Iterable[str] | Corpus | ImageSet = "lee",
    *,
    images: Any = None,
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
    split: str | None = None,
    batch_size: int | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    live: bool = False,
    engine: str | Engine = "local",
    address: str | None = None,
    model_options: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Measure every layer of a model on some texts, or of an image model on some images.

    `model` is a name, folder or hub id (see `load`), a `LoadedModel`, or a torch module with its `tokenizer`. `texts` is a
    corpus name, a file, a hub dataset or a list of strings. `out` is a folder that is resumed if it holds this very run;
    without it nothing is left on disk. `live` keeps a page of what is known so far in it.
    `engine` says who runs the model: `local` (this process), `ray` (workers of the cluster at `address`) or an `Engine`.
    `options` are settings of the metrics (`rows`, `temperature`, `permutations`, …).
    `images` is an `ImageSet`, or what `load_images` takes (with `split`, `limit` and `column`); `tokenizer` is then the image
    processor, and `tokens` ("patches" or "all") and `image_pooling` ("mean" or "class") say what is read of each image.

        run = layerscope.profile("smollm2-135m", "lee", limit=50)
        run.table; run.plot()
    """
    # everything that can be wrong with the request is found out before a model is loaded
    settings = {
        "metrics": metrics, "sites": sites, "final_norm": final_norm, "max_length": max_length, "views": views,
        "augmenter": augmenter, "seed": seed, "preset": preset, "alpha": alpha, **options,
    }  # fmt: skip
    pictures = wants_images(model, texts, images)
    config = make_config(**(image_settings(settings) if pictures else settings))
    if batch_size is not None and batch_size < 1:
        raise LayerscopeError(f"batch_size must be at least 1, not {batch_size}.")
    if live and out is None:
        raise LayerscopeError("live writes a page into the run's folder: give `out` too.")
    open_engine(engine, address)  # connects to nothing yet
    folder = None if out is None else RunFolder(out)
    page = view("profile", "live")(folder.path) if live and folder is not None else None
    source = resolve_early(model, offline, model_options or {})
    reading = {"column": column, "limit": limit, "text_filter": text_filter}
    corpus: Corpus | ImageSet
    if pictures:
        corpus = open_image_set(texts if images is None else images, {**reading, "split": split}, offline)
    elif isinstance(texts, Corpus):
        unused = [name for name, value in reading.items() if value is not None]
        if unused:
            raise DataError(f"{unused[0]} goes with texts that are yet to be read: pass it to load_corpus instead.")
        corpus = texts
    else:
        corpus = load_corpus(texts, offline=offline, **reading)  # type: ignore[arg-type]
    request = {"model": source, "corpus": corpus.fingerprint, "profile": config.as_dict(), "layerscope": VERSION}
    if folder is not None and source is not None and not overwrite:
        held = folder.manifest()
        if held and held.get("status") == "complete" and held.get("request_key") == config_key(request):
            return _shown(Run.load(folder.path), page)
    with engine_in_use(engine, address) as used:
        job = _open_job(model, tokenizer, corpus, config, used, offline, model_options or {})
        job.batch_size, job.page = batch_size, page
        with progress_bar(progress) as bar:
            if folder is None:
                if job.fits_on_device():
                    return job.run(HeldShards(), bar)
                with tempfile.TemporaryDirectory(prefix="layerscope-") as scratch:
                    run = job.run(ShardStore(Path(scratch)), bar)
                    _ = run.prompts  # read while the scratch folder is there
                    return run
            return _shown(job.run_in(folder, bar, overwrite, config_key(request) if source else None), page)


def _open_job(
    model: Any,
    tokenizer: Any,
    corpus: Corpus | ImageSet,
    config: ProfileConfig,
    engine: Engine,
    offline: bool,
    options: dict[str, Any],
) -> Job:
    if not engine.remote:
        return Job(open_model(model, tokenizer, offline, options), corpus, config, engine=engine)
    loaded = open_model(model, tokenizer, offline, driver_options(model, options))
    return Job(loaded, corpus, config, engine=engine, recipe=make_recipe(model, loaded, offline, options))


class Follower(Protocol):
    """Something that shows a run while it goes on, such as a page."""

    def update(self, job: Job, plan: Plan, store: ShardStore) -> None:
        """A shard is finished."""

    def finish(self, run: Run) -> None:
        """The run is complete."""


def _shown(run: Run, page: Follower | None) -> Run:
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
    """One profile: a loaded model, a corpus and a configuration. With a `recipe`, the engine's workers run the model."""

    model: LoadedModel
    corpus: Corpus | ImageSet
    config: ProfileConfig
    batch_size: int | None = None
    page: Follower | None = None
    engine: Engine = field(default_factory=LocalEngine)
    recipe: ModelRecipe | None = None

    def __post_init__(self) -> None:
        self.sites: list[Site] = expand_sites(self.config.sites, self.model.anatomy)
        if isinstance(self.model, ImageModel):
            self.model.set_reading(self.config.tokens, self.config.image_pooling)
        keep = ("weights_sha256", "settings_sha256", "family", "architecture", "dtype", "bidirectional", "adapters")
        self.identity = {
            "model": {name: self.model.identity.get(name) for name in keep},
            "corpus": self.corpus.fingerprint,
            "profile": self.config.as_dict(),
            "layerscope": VERSION,
        }

    def run_in(self, folder: RunFolder, bar: Progress, overwrite: bool, request_key: str | None) -> Run:
        """Run in a folder: return what is finished, go on with what is begun."""
        with folder.session("profile", self.identity, overwrite=overwrite, request_key=request_key, started=now()) as session:
            if session.finished:
                return Run.load(folder.path)
            size = session.start.get("shard_size") or self._shard_size()
            session.note(shard_size=size)
            run = self.run(ShardStore(folder.scratch), bar, size)
            run.manifest = {**session.start, **run.manifest}
            run.save(folder.path)
            folder.finish()
            return run

    @cached_property
    def device(self) -> torch.device:
        """Where the model is run."""
        return torch.device(self.engine.device_type or self.model.device)

    @property
    def metrics_device(self) -> torch.device:
        """Where the metrics are computed from finished shards: in this process."""
        if self.recipe is None:
            return self.model.device
        return torch.device("cuda" if self.device.type == "cuda" and torch.cuda.is_available() else "cpu")

    def fits_on_device(self) -> bool:
        """Whether the pooled vectors of the whole run may stay on a GPU, so that nothing goes to disk and back."""
        vectors = len(self.corpus) * len(self.sites) * (1 + self.config.n_views)
        return fits(self.model.device, vectors, self.model.width)

    def run(self, store: ShardStore | HeldShards, bar: Progress, shard_size: int | None = None) -> Run:
        """Run with shards in a store; those already there are kept."""
        clock = time.perf_counter()
        size = shard_size or self._shard_size()
        if isinstance(store, HeldShards) and self.recipe is None and not isinstance(self.corpus, ImageSet):
            plan, encoder_facts = encode_held(self, self.corpus.texts, store, bar, size)
        else:
            items = self.corpus if isinstance(self.corpus, ImageSet) else self.corpus.texts
            plan = make_plan(self.model, items, self.config.max_length, size)
            encoder_facts = encode(self, plan, store, bar)
        if isinstance(self.model, ImageModel):
            self.model.reader.close()  # its processes have done their work
        encoded = time.perf_counter()
        # by number of this corpus: the run may have been begun with the same texts in another order
        if isinstance(store, ShardStore):
            shards = [Shard(prompts, store.vectors(i), {}) for i, prompts in enumerate(plan.shards)]
            numbers = PromptNumbers.gathered(store, plan.shards, store.folder / "numbers.bin")
        else:
            shards = [replace(store.read(i), prompts=prompts) for i, prompts in enumerate(plan.shards)]
            numbers = PromptNumbers.of(shards)
        builder = TableBuilder(self.config, self.sites, plan, self.model.width, self.metrics_device)
        bar.begin("metrics|sites", len(self.sites))
        table = builder.build(shards, bar.advance, numbers)
        seconds = {"encode": encoded - clock, "metrics": time.perf_counter() - encoded}
        manifest = self._manifest(plan, builder, encoder_facts, seconds)
        return Run(table, manifest, PromptTable(self.sites, plan, numbers))

    def _shard_size(self) -> int:
        model = self.model
        return choose_shard_size(self.device.type, len(self.sites), self.config.n_views, model.width, model.item_bytes)

    def _manifest(self, plan: Plan, builder: TableBuilder, facts: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
        return make_manifest(self, plan, builder, facts, seconds)
