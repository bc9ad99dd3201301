"""`probe`: how well the frozen states of every layer give the classes of labeled items."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from layerscope.capture import FINAL_NORMS, FinalNorm, Site, expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.scores import DRAWS
from layerscope.core.sites import pick_layers, site_of
from layerscope.data.corpus import refuse_missing
from layerscope.data.labeled import LabeledItems
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import ModelError, UnknownNameError
from layerscope.models import LoadedModel, kind_read_by
from layerscope.probing.examples import Split, make_split, open_examples
from layerscope.probing.frozen import (
    ItemStates,
    ModelItems,
    ModelReader,
    Parts,
    ReadWork,
    read_by_workers,
)
from layerscope.probing.heads import NEIGHBORS
from layerscope.probing.run import Predictions, ProbeRun, item_table, probe_table
from layerscope.probing.states import (
    States,
    StoragePlan,
    default_store_size,
    open_states,
    plan_storage,
)
from layerscope.probing.training import ProbeRecipe, fit, head_count, pooling_of, probes
from layerscope.progress import Progress
from layerscope.store import RunFolder, checked
from layerscope.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

_READING = ("max_length", "patches")
"""The facts about reading that decide numbers."""

_CONVENTIONS = {
    "standardized": "per layer and feature with the training part's mean and variance over all tokens read, no weights",
    "optimizer": "AdamW (0.9, 0.999); warm-up over a tenth, then half a cosine",
    "start": "every layer and learning rate begins at the same values and sees the same batches",
    "chosen_on": "the validation part: learning rate and epoch by accuracy, then loss; the test part is read at the end",
    "intervals": f"95 %: Wilson for accuracies; gains: {DRAWS} bootstrap draws of test items, the same for every layer",
    "chosen_layer": "best on the validation part; its gain over the last layer is judged on the test part",
    "tied_best": "not told from the best layer by that bootstrap, 95 % for all layers at once",
}


def probe(
    model: str | Path | LoadedModel | torch.nn.Module,
    data: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    test: Any = None,
    heads: str | Sequence[str] = "attention",
    tokenizer: Any = None,
    out: str | Path | None = None,
    layers: Sequence[int] | None = None,
    final_norm: FinalNorm = "applied",
    sample: int | None = None,
    max_length: int = 128,
    learning_rates: Sequence[float] = ProbeRecipe.learning_rates,
    trial: int = ProbeRecipe.trial,
    epochs: int = ProbeRecipe.epochs,
    patience: int = ProbeRecipe.patience,
    seed: int = 0,
    store_size: int | None = None,
    data_dir: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> ProbeRun:
    """Train probes (small classifiers) on the frozen states of all layers at once, and score them
    on held-out test items.

    - `data`: labeled items of the kind that the model reads. Texts: a file with `text` and `label`,
      a list of texts with their `labels`, or the name of a classification task.
    - `test`: test data. By default the test part of `data`; if there is none, a fifth of each class
      is held out.
    - `heads`: one or several of attention, linear, mean, knn.
    - `store_size`: the bytes of memory for states. Tokens that do not fit are computed again in
      each epoch.
    - `out`: a folder. If it holds this run already, the run is resumed or returned. Without `out`
      nothing is left on disk.

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine`. The engine
    computes the kept states: `local` (this process), `ray` (workers of the cluster at `address`) or
    an `Engine`. Probes are always trained in this process.

        run = layerscope.probe("minilm-l6", "reviews.csv", heads=["attention", "knn"])
        run.table; run.plot()
    """
    command = Command("probe", options, engine=engine, progress=progress, function=probe)
    kinds = list(dict.fromkeys([heads] if isinstance(heads, str) else heads))
    for kind in kinds:
        if kind not in probes():
            raise UnknownNameError("probe", kind, probes())
    if final_norm not in FINAL_NORMS:
        raise UnknownNameError("final norm", final_norm, FINAL_NORMS)
    rates = tuple(float(rate) for rate in learning_rates)
    recipe = ProbeRecipe(rates, trial, epochs, patience, seed=seed)
    recipe.check()
    folder = None if out is None else RunFolder(out)
    refuse_missing(data)
    with command, ExitStack() as opened:
        is_name = isinstance(data, (str, Path))
        items_kind = kind_read_by(model, command.loading) if is_name else ""
        tasks = None if data_dir is None else Path(data_dir)
        examples = open_examples(data, items_kind, labels, test, tasks)
        loaded = command.load(model, tokenizer, here=True)
        if loaded.kind != examples.items.kind:
            raise ModelError(
                f"{loaded.name} reads {loaded.kind}, and the data are {examples.items.kind}. "
                f"Give labeled {loaded.kind} as data."
            )
        source = ModelItems(loaded, examples.items, max_length)
        opened.callback(source.close)
        job = ProbeJob(
            loaded,
            examples,
            source,
            kinds,
            recipe,
            layers,
            final_norm,
            sample,
            store_size,
            command.where.batch_size,
        )
        read = None
        if command.recipe is not None:
            read = _workers(command.engine, job, command.recipe, max_length)
        if folder is None:
            return job.run(command.bar, read=read)
        return run_in(
            folder,
            ProbeRun,
            job.config,
            lambda session: job.run(command.bar, folder.scratch, read),
            overwrite=overwrite,
        )


def _workers(engine: Engine, job: ProbeJob, recipe: ModelRecipe, max_length: int) -> Parts:
    """Return a function by which an engine's workers read parts of the items that a job uses."""

    def read(parts: list[np.ndarray], poolings: Sequence[str]) -> Iterator[ItemStates]:
        work = ReadWork(
            recipe,
            job.examples.items,
            max_length,
            job.sites,
            job.final_norm,
            poolings,
            job.batch_size,
        )
        return read_by_workers(engine, work, [job.used[part] for part in parts])

    return read


@dataclass(frozen=True)
class ProbeJob:
    """Probes of some kinds at some layers of one model on labeled items."""

    model: LoadedModel
    examples: LabeledItems
    source: ModelItems
    kinds: list[str]
    recipe: ProbeRecipe
    layers: Sequence[int] | None = None
    final_norm: FinalNorm = "applied"
    sample: int | None = None
    store_size: int | None = None
    batch_size: int | None = None

    @cached_property
    def sites(self) -> list[Site]:
        """Return the sites of the layers."""
        numbers = pick_layers(self.layers, self.model.n_blocks, self.model.name)
        return expand_sites([site_of(k) for k in numbers], self.model.anatomy)

    @cached_property
    def split(self) -> Split:
        """Return the items of each part, in a random order."""
        own = self.examples.parts
        parts = (own.get("train"), own.get("test"), own.get("validation"))
        seed = self.recipe.seed
        return make_split(self.examples.labels, *parts, seed, self.sample).shuffled(seed)

    @cached_property
    def used(self) -> np.ndarray:
        """Return the items that are read, in the order in which their states are kept."""
        return np.concatenate([self.split.train, self.split.validation, self.split.test])

    @cached_property
    def plan(self) -> StoragePlan:
        """Return what is kept of the states."""
        poolings = list(dict.fromkeys(pooling_of(kind) for kind in self.kinds))
        lengths = [self.source.lengths[i] for i in self.used]
        size = self.store_size
        if size is None:
            size = default_store_size(self.model.device)
        return plan_storage(poolings, len(self.sites), lengths, self.model.width, size)

    @property
    def training(self) -> dict[str, Any]:
        """Return the settings of the training."""
        return {**vars(self.recipe), "batch": self.recipe.batch_for(len(self.split.train))}

    @property
    def config(self) -> dict[str, Any]:
        """Return everything that decides the numbers: the run's key is made of it."""
        reading = self.source.facts()
        return {
            "model": model_key(self.model.identity),
            "data": self.examples.fingerprint,
            "split": self.split.sizes(),
            "probes": self.kinds,
            "sites": [site.name for site in self.sites],
            "final_norm": self.final_norm,
            "recipe": self.training,
            "reading": {name: reading[name] for name in _READING if name in reading},
            "keep": self.plan.how,
            "layerscope": VERSION,
        }

    def run(
        self, bar: Progress, scratch: Path | None = None, read: Parts | None = None
    ) -> ProbeRun:
        """Compute the states, train the probes and score them. With a `scratch` folder what is
        finished survives a stop. `read` reads parts of the items elsewhere."""
        clock = time.perf_counter()
        poolings = list(self.plan.how)
        settings = (self.sites, self.final_norm, poolings, self.batch_size, self.used)
        with ModelReader(self.model, self.source, *settings) as reader:
            states = open_states(reader, self.plan, scratch, bar, read)
            seconds = {"states": time.perf_counter() - clock}
            answers = {
                kind: self._answers(kind, states[pooling_of(kind)], bar, scratch)
                for kind in self.kinds
            }
        seconds |= {kind: answer.seconds for kind, answer in answers.items()}
        labels = self.examples.labels[self.split.test]
        classes = len(self.examples.classes)
        blocks = self.model.n_blocks
        table = probe_table(answers, self.sites, blocks, labels, classes, self.recipe.seed)
        items = item_table(answers, self.sites, self.split.test, labels)
        return ProbeRun(table, items, describe_run(self, table, seconds))

    def _answers(
        self, kind: str, states: States, bar: Progress, scratch: Path | None
    ) -> Predictions:
        """Return the predictions of one kind of probe, which an earlier attempt may have left."""
        file = None if scratch is None else scratch / f"{kind}.answers{checked.ARRAYS}"
        stored: dict[str, Any] | None = None
        if file is not None:
            stored = checked.read_or_discard(file, checked.read_arrays)
        if stored is not None:
            return Predictions(**{**stored, "seconds": float(stored["seconds"])})
        ends = np.cumsum(list(self.split.sizes().values()))
        split = Split(*np.split(np.arange(len(self.used)), ends[:-1]))
        bar.begin(f"{kind} probes|epochs", self.recipe.most_epochs)
        answers = fit(
            kind,
            self.model,
            states,
            torch.from_numpy(self.examples.labels[self.used]).to(self.model.device),
            split,
            range(len(self.sites)),
            len(self.examples.classes),
            self.recipe,
            None if scratch is None else scratch / f"{kind}.training{checked.ARRAYS}",
            lambda phase: bar.advance(1),
        )
        if file is not None:
            checked.write_arrays(file, vars(answers))
        return answers


def describe_run(job: ProbeJob, table: pd.DataFrame, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the manifest of a probe."""
    examples = job.examples
    reading = job.source.facts()
    norm = Reading(
        job.final_norm, reading.get("max_length"), job.model.anatomy.final_norm_name
    ).as_conventions()
    return make_manifest(
        ProbeRun.kind,
        model=job.model.identity,
        data={
            "name": examples.name,
            "kind": examples.kind,
            "fingerprint": examples.fingerprint,
            "classes": list(examples.classes),
            "own_parts": sorted(examples.parts),
            **examples.facts,
        },
        conventions={
            "layer": LAYER,
            **norm,
            "probes": {kind: probes()[kind] for kind in job.kinds},
            "reads": {kind: pooling_of(kind) for kind in job.kinds},
            "class_token": job.source.has_class_token,
            "attention_heads": head_count(job.model),
            "neighbors": NEIGHBORS,
            "training": job.training,
            **_CONVENTIONS,
            "kept": {**job.plan.facts(), "store_size": job.store_size},
            "seed": job.recipe.seed,
            **{f"reading_{name}": value for name, value in reading.items()},
        },
        counts={**job.split.sizes(), "classes": len(examples.classes)},
        warnings=_warnings(job, table),
        environment=environment(device=str(job.model.device), threads=torch.get_num_threads()),
        seconds=seconds,
    )


def _warnings(job: ProbeJob, table: pd.DataFrame) -> list[str]:
    warnings = []
    labels = job.examples.labels
    split = job.split
    unseen = sorted(set(np.unique(labels[split.test])) - set(np.unique(labels[split.train])))
    if unseen:
        names = ", ".join(job.examples.classes[i] for i in unseen[:3])
        warnings.append(
            f"{len(unseen)} classes of the test part are not in the training part ({names}): no probe can name them."
        )
    if len(split.validation) < 50:
        warnings.append(
            f"the validation part has {len(split.validation)} items only: learning rate and epoch are chosen on few."
        )
    trained = table[table["learning_rate"].notna() & (table["metric"] == "top1")]
    rates = job.recipe.learning_rates
    if len(rates) > 2 and (trained["learning_rate"] == max(rates)).sum() > len(trained) / 2:
        warnings.append(
            f"most layers chose the largest learning rate, {max(rates):g}: larger ones may do better."
        )
    epochs = job.recipe.epochs
    is_late = (trained["epoch"] == epochs) & (trained["epochs"] == epochs)
    if is_late.sum() > len(trained) / 2:
        warnings.append(
            f"most layers were best in the last of {epochs} epochs: more may do better."
        )
    if job.plan.how.get("tokens") == "none":
        warnings.append(
            "the states were computed again in every epoch: they do not fit store_size=."
        )
    facts = job.examples.facts
    for reason, count in facts.get("dropped", {}).items():
        warnings.append(f"{count} items were left out: {reason}.")
    if facts.get("contradicting_texts"):
        warnings.append(
            f"{facts['contradicting_texts']} texts have contradicting labels and were left out."
        )
    reading = job.source.facts()
    if reading.get("truncated"):
        warnings.append(f"{reading['truncated']} texts were cut to {reading['max_length']} tokens.")
    return warnings + job.model.warnings(job.final_norm)
