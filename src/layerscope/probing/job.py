"""`probe`: how well the frozen states of every layer give the classes of labelled items."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.capture import FINAL_NORMS, FinalNorm, Site, expand_sites
from layerscope.engines import Engine, engine_in_use, open_engine
from layerscope.engines.recipe import ModelRecipe, make_recipe
from layerscope.errors import LayerscopeError, ModelError, UnknownNameError
from layerscope.models import LoadedModel, open_model
from layerscope.probing.examples import Examples, read_images, read_task, read_texts, text_examples
from layerscope.probing.fitting import fit, pooling_of, probes
from layerscope.probing.keeping import Keeper, default_budget, plan_keeping
from layerscope.probing.manifest import make_manifest
from layerscope.probing.reading import ModelReader, Read
from layerscope.probing.recipe import Recipe
from layerscope.probing.run import KIND, ProbeRun
from layerscope.probing.sources import DEFAULT_MAX_LENGTH, ImageSource, Source, TextSource
from layerscope.probing.splits import Split, make_split
from layerscope.probing.tables import Answers, item_table, probe_table
from layerscope.probing.work import Parts, ReadWork, read_by_workers
from layerscope.progress import Progress, progress_bar
from layerscope.store import RunFolder, atomic
from layerscope.version import VERSION

_IDENTITY = ("weights_sha256", "settings_sha256", "family", "architecture", "dtype", "bidirectional", "adapters")


def probe(
    model: str | Path | LoadedModel | torch.nn.Module,
    *,
    images: Any = None,
    texts: str | Path | Sequence[str] | None = None,
    labels: Sequence[Any] | None = None,
    task: str | None = None,
    test: Any = None,
    probe: str | Sequence[str] = "attention",
    tokenizer: Any = None,
    out: str | Path | None = None,
    layers: Sequence[int] | None = None,
    final_norm: FinalNorm = "applied",
    limit: int | None = None,
    max_length: int = DEFAULT_MAX_LENGTH,
    learning_rates: Sequence[float] = Recipe.learning_rates,
    trial: int = Recipe.trial,
    epochs: int = Recipe.epochs,
    patience: int = Recipe.patience,
    train_batch: int | None = None,
    seed: int = 0,
    keep: str = "auto",
    budget: int | None = None,
    batch_size: int | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    address: str | None = None,
    model_options: dict[str, Any] | None = None,
) -> ProbeRun:
    """Train probes on the frozen states of all layers together, and judge them on a test part that nothing was chosen on.

    Give `images` (a catalogued set, a folder of class folders, a file, an `ImageSet`), `texts` (a labelled file, or a list with
    `labels`) or `task` (a classification task). Data that come with a test part are judged on it, or on `test`; else a fifth
    of each class is held out. `probe` names one or several of attention, linear, mean, knn. States are kept within `budget`
    bytes (`keep`: auto, float32, float16, or none, which runs the model in every epoch). `train_batch` None: 256, fewer of a
    small training part. `engine` says who reads the states that are kept: `local` (this process), `ray` (workers of the cluster
    at `address`) or an `Engine`; probes are trained here.

        run = layerscope.probe("vision-ar", images="digits", probe=["attention", "knn"])
        run.table; run.plot()
    """
    kinds = [probe] if isinstance(probe, str) else list(probe)
    for kind in kinds:
        if kind not in probes():
            raise UnknownNameError("probe", kind, probes())
    if final_norm not in FINAL_NORMS:
        raise UnknownNameError("final norm", final_norm, FINAL_NORMS)
    if train_batch is not None and train_batch < 1:
        raise LayerscopeError(f"train_batch must be at least 1, not {train_batch}.")
    recipe = Recipe(tuple(float(r) for r in learning_rates), trial, epochs, patience, train_batch or 0, seed=seed)
    recipe.check()
    open_engine(engine, address)  # connects to nothing yet
    folder = None if out is None else RunFolder(out)
    examples = _examples(images, texts, labels, task, test, None if data_dir is None else Path(data_dir), offline)
    loaded = open_model(model, tokenizer, offline, model_options or {})
    source = _source(loaded, examples, max_length)
    try:
        kinds = list(dict.fromkeys(kinds))
        job = ProbeJob(loaded, examples, source, kinds, recipe, layers, final_norm, limit, keep, budget, batch_size)
        with engine_in_use(engine, address) as used, progress_bar(progress) as bar:
            if used.remote:
                job.elsewhere = _workers(used, job, make_recipe(model, loaded, offline, model_options or {}), max_length, bar)
            return job.run(bar) if folder is None else job.run_in(folder, bar, overwrite)
    finally:
        source.close()


def _examples(
    images: Any, texts: Any, labels: Sequence[Any] | None, task: str | None, test: Any, data_dir: Path | None, offline: bool
) -> Examples:
    given = [name for name, value in (("images", images), ("texts", texts), ("task", task)) if value is not None]
    if len(given) != 1:
        raise LayerscopeError(f"give exactly one of images, texts and task; given: {', '.join(given) or 'none'}.")
    if images is not None:
        return read_images(images, test, offline=offline)
    if task is not None:
        return read_task(task, data_dir, offline)
    if isinstance(texts, (str, Path)):
        return read_texts(texts, test)
    if labels is None or len(labels) != len(texts):
        raise LayerscopeError(f"a list of {len(texts)} texts needs as many labels, not {0 if labels is None else len(labels)}.")
    return text_examples({"": list(zip(texts, labels, strict=True))}, "texts")


def _source(model: LoadedModel, examples: Examples, max_length: int) -> Source:
    reads = getattr(model, "modality", "text")
    if reads != examples.kind:
        hint = "--images DATA" if reads == "image" else "--texts FILE or --task NAME"
        raise ModelError(f"{model.name} reads {reads}s, and the data are {examples.kind}s. Give {hint}.")
    return ImageSource(model, examples.items) if examples.kind == "image" else TextSource(model, examples.items, max_length)


def _workers(engine: Engine, job: ProbeJob, recipe: ModelRecipe, max_length: int, bar: Progress) -> Parts:
    """Parts of the items, numbered as the job numbers those it uses, read by an engine's workers."""
    open_items = partial(_open_items, job.examples.kind, max_length)

    def read(parts: list[np.ndarray], poolings: Sequence[str]) -> Iterator[Read]:
        work = ReadWork(recipe, job.examples.items, open_items, job.sites, job.final_norm, poolings, job.batch_size)
        return read_by_workers(engine, work, [job.used[part] for part in parts], lambda n: None)

    return read


def _open_items(kind: str, max_length: int, model: LoadedModel, items: Any) -> Source:
    return ImageSource(model, items) if kind == "image" else TextSource(model, items, max_length)


class ProbeJob:
    """Probes of some kinds at some layers of one model on one set of examples."""

    def __init__(
        self,
        model: LoadedModel,
        examples: Examples,
        source: Source,
        kinds: list[str],
        recipe: Recipe,
        layers: Sequence[int] | None = None,
        final_norm: FinalNorm = "applied",
        limit: int | None = None,
        keep: str = "auto",
        budget: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.model, self.examples, self.source, self.kinds = model, examples, source, kinds
        self.elsewhere: Parts | None = None
        self.final_norm, self.batch_size = final_norm, batch_size
        self.sites = _sites(model, layers)
        own = examples.parts
        split = make_split(examples.labels, own.get("train"), own.get("test"), own.get("validation"), recipe.seed, limit)
        self.split = split.shuffled(recipe.seed)
        self.recipe = recipe if recipe.batch else replace(recipe, batch=Recipe.batch_for(len(self.split.train)))
        self.used = np.concatenate([self.split.train, self.split.validation, self.split.test])  # and kept in this order
        self.poolings = list(dict.fromkeys(pooling_of(kind) for kind in kinds))
        self.budget = default_budget(model.device) if budget is None else budget
        lengths = [source.lengths[i] for i in self.used]
        self.plan = plan_keeping(self.poolings, len(self.sites), lengths, model.width, keep, self.budget)
        self.config = {
            "model": {name: model.identity.get(name) for name in _IDENTITY},
            "data": examples.fingerprint,
            "split": self.split.sizes(),
            "probes": kinds,
            "sites": [site.name for site in self.sites],
            "final_norm": final_norm,
            "recipe": dict(vars(self.recipe)),
            "reading": {k: v for k, v in source.facts().items() if k in ("max_length", "patches")},
            "keep": self.plan.how,
            "layerscope": VERSION,
        }

    def run_in(self, folder: RunFolder, bar: Progress, overwrite: bool = False) -> ProbeRun:
        """Run in a folder: return what is finished, go on with what is begun."""
        with folder.session(KIND, self.config, overwrite=overwrite) as session:
            if session.finished:
                return ProbeRun.load(folder.path)
            run = self.run(bar, folder.scratch)
            run.manifest = {**session.start, **run.manifest}
            run.save(folder.path)
            folder.finish()
            return run

    def run(self, bar: Progress, scratch: Path | None = None) -> ProbeRun:
        """Compute the states, train, judge. With a `scratch` folder what is finished survives a stop."""
        clock = time.perf_counter()
        chosen = _Chosen(self.source, self.used)
        reader = ModelReader(self.model, chosen, self.sites, self.final_norm, self.poolings, self.batch_size)
        with reader:
            keeper = Keeper(reader, self.plan, len(self.used), scratch, self.elsewhere)
            states = keeper.run(bar)
            read = time.perf_counter() - clock
            bounds = np.cumsum(list(self.split.sizes().values()))
            split = Split(*np.split(np.arange(len(self.used)), bounds[:-1]))
            labels = torch.from_numpy(self.examples.labels[self.used]).to(self.model.device)
            answers: dict[str, Answers] = {}
            for kind in self.kinds:
                done = None if scratch is None else scratch / f"{kind}.answers.npz"
                answers[kind] = _held(done) or self._fit(kind, states[pooling_of(kind)], labels, split, bar, scratch)
                if done is not None and not done.exists():
                    atomic.write_arrays(done, {name: np.asarray(value) for name, value in vars(answers[kind]).items()})
        judged = self.examples.labels[self.split.test]
        classes = len(self.examples.classes)
        table = probe_table(answers, self.sites, self.model.n_blocks, judged, classes, self.recipe.seed)
        items = item_table(answers, self.sites, self.split.test, judged)
        seconds = {"states": read, **{kind: found.seconds for kind, found in answers.items()}}
        return ProbeRun(table, items, {"kind": KIND, **make_manifest(self, table, seconds)})

    def _fit(self, kind: str, states: Any, labels: torch.Tensor, split: Any, bar: Progress, scratch: Path | None) -> Answers:
        bar.begin(f"{kind} probes|epochs", self.recipe.most_epochs)
        file = None if scratch is None else scratch / f"{kind}.training.safetensors"
        layers = list(range(len(self.sites)))
        classes = len(self.examples.classes)
        return fit(kind, self.model, states, labels, split, layers, classes, self.recipe, file, lambda phase: bar.advance(1))


class _Chosen:
    """Some items of a source, numbered from 0."""

    def __init__(self, source: Source, items: np.ndarray) -> None:
        self._source, self._items = source, items
        self.lengths = [source.lengths[i] for i in items]
        self.has_class_token = source.has_class_token

    def batch(self, items: Sequence[int]) -> Any:
        return self._source.batch([int(self._items[i]) for i in items])

    def facts(self) -> dict[str, Any]:
        return self._source.facts()

    def close(self) -> None:
        self._source.close()


def _held(file: Path | None) -> Answers | None:
    if file is None or not file.exists():
        return None
    with np.load(file) as arrays:
        held: dict[str, Any] = {name: arrays[name] for name in arrays.files}
    return Answers(**{**held, "seconds": float(held["seconds"])})


def _sites(model: LoadedModel, layers: Sequence[int] | None) -> list[Site]:
    """The residual stream after each of the wanted numbers of blocks, the last block included."""
    every = expand_sites(None, model.anatomy)
    if layers is None:
        return every
    count = model.n_blocks
    wanted = {layer if layer >= 0 else count + 1 + layer for layer in layers}
    wrong = sorted(layer for layer in wanted if not 0 <= layer <= count)
    if wrong or not wanted:
        raise LayerscopeError(f"layers run from 0 to {count} (or -1 for the last) in {model.name}; given: {list(layers)}.")
    return [site for site in every if site.layer in wanted]
