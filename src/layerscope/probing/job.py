"""`probe`: how well the frozen states of every layer give the classes of labeled items."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from layerscope.capture import FINAL_NORMS, FinalNorm, expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.candidates import DRAWS
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.sites import pick_layers, site_of
from layerscope.data.corpus import refuse_missing
from layerscope.data.labeled import LabeledItems
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import ModelError, UnknownNameError
from layerscope.models import LoadedModel, kind_read_by
from layerscope.probing.examples import Split, make_split, open_examples
from layerscope.probing.frozen import (
    ModelItems,
    ModelReader,
    Parts,
    Read,
    ReadWork,
    read_by_workers,
)
from layerscope.probing.heads import NEIGHBORS
from layerscope.probing.run import Predictions, ProbeRun, item_table, probe_table
from layerscope.probing.states import StateCache, default_store_size, plan_storage
from layerscope.probing.training import ProbeRecipe, fit, head_count, pooling_of, probes
from layerscope.progress import Progress
from layerscope.store import RunFolder, checked
from layerscope.version import VERSION

if TYPE_CHECKING:
    import pandas as pd


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
    keep: str = "auto",
    store_size: int | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> ProbeRun:
    """Train probes (small classifiers) on the frozen states of all layers at once, and score them
    on held-out test items.

    - `data`: labeled items of the kind that the model reads. Texts: a file with `text` and `label`,
      a list of texts with their
      `labels`, or the name of a classification task.
    - `test`: test data. By default the test part of `data`; if there is none, a fifth of each class
      is held out.
    - `heads`: one or several of attention, linear, mean, knn.
    - `keep`: how states are cached, within `store_size` bytes: auto, float32, or none, which runs it
      in each epoch.
    - `out`: a folder. If it holds this run already, the run is resumed or returned. Without `out`
      nothing is left on disk.

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine`. The engine computes the cached states: `local` (this process), `ray` (workers of the
    cluster at `address`) or an `Engine`. Probes are always trained in this process.

        run = layerscope.probe("minilm-l6", "reviews.csv", heads=["attention", "knn"])
        run.table; run.plot()
    """
    ways: dict[str, Any] = {
        "engine": engine,
        "offline": offline,
        "progress": progress,
    }
    command = Command("probe", options, **ways, function=probe)
    kinds = [heads] if isinstance(heads, str) else list(heads)
    for kind in kinds:
        if kind not in probes():
            raise UnknownNameError("probe", kind, probes())
    if final_norm not in FINAL_NORMS:
        raise UnknownNameError("final norm", final_norm, FINAL_NORMS)
    recipe = ProbeRecipe(
        tuple(float(r) for r in learning_rates), trial, epochs, patience, seed=seed
    )
    recipe.check()
    folder = None if out is None else RunFolder(out)
    refuse_missing(data)
    with command, ExitStack() as opened:
        kind = (
            kind_read_by(model, offline, command.loading) if isinstance(data, (str, Path)) else ""
        )
        examples = open_examples(
            data, kind, labels, test, None if data_dir is None else Path(data_dir), offline
        )
        loaded = command.load(model, tokenizer, here=True)
        if loaded.kind != examples.items.kind:
            read, given = loaded.kind, examples.items.kind
            raise ModelError(
                f"{loaded.name} reads {read}, and the data are {given}. Give labeled {read} as data."
            )
        source = ModelItems(loaded, examples.items, max_length)
        opened.callback(source.close)
        kinds, batch_size = list(dict.fromkeys(kinds)), command.where.batch_size
        job = ProbeJob(
            loaded,
            examples,
            source,
            kinds,
            recipe,
            layers,
            final_norm,
            sample,
            keep,
            store_size,
            batch_size,
        )
        if command.recipe is not None:
            job.remote = _workers(command.engine, job, command.recipe, max_length)
        if folder is None:
            return job.run(command.bar)
        return run_in(
            folder,
            ProbeRun,
            job.config,
            lambda session: job.run(command.bar, folder.scratch),
            overwrite=overwrite,
        )


def _workers(engine: Engine, job: ProbeJob, recipe: ModelRecipe, max_length: int) -> Parts:
    """Parts of the items, numbered as the job numbers those it uses, read by an engine's
    workers."""

    def read(parts: list[np.ndarray], poolings: Sequence[str]) -> Iterator[Read]:
        work = ReadWork(
            recipe,
            job.examples.items,
            max_length,
            job.sites,
            job.final_norm,
            poolings,
            job.batch_size,
        )
        return read_by_workers(engine, work, [job.used[part] for part in parts], lambda n: None)

    return read


@dataclass
class ProbeJob:
    """Probes of some kinds at some layers of one model on one set of examples."""

    model: LoadedModel
    examples: LabeledItems
    source: ModelItems
    kinds: list[str]
    recipe: ProbeRecipe
    layers: Sequence[int] | None = None
    final_norm: FinalNorm = "applied"
    sample: int | None = None
    keep: str = "auto"
    store_size: int | None = None
    batch_size: int | None = None
    remote: Parts | None = None

    def __post_init__(self) -> None:
        model, labels, own = self.model, self.examples.labels, self.examples.parts
        numbers = pick_layers(self.layers, model.n_blocks, model.name)
        self.sites = expand_sites([site_of(k) for k in numbers], model.anatomy)
        parts = (own.get("train"), own.get("test"), own.get("validation"))
        seed = self.recipe.seed
        self.split = make_split(labels, *parts, seed, self.sample).shuffled(seed)
        self.recipe = replace(self.recipe, batch=self.recipe.batch_for(len(self.split.train)))
        self.used = np.concatenate(
            [self.split.train, self.split.validation, self.split.test]
        )  # and kept in this order
        self.poolings = list(dict.fromkeys(pooling_of(kind) for kind in self.kinds))
        if self.store_size is None:
            self.store_size = default_store_size(model.device)
        lengths = [self.source.lengths[i] for i in self.used]
        self.plan = plan_storage(
            self.poolings, len(self.sites), lengths, model.width, self.keep, self.store_size
        )
        self.config = {
            "model": model_key(model.identity),
            "data": self.examples.fingerprint,
            "split": self.split.sizes(),
            "probes": self.kinds,
            "sites": [site.name for site in self.sites],
            "final_norm": self.final_norm,
            "recipe": dict(vars(self.recipe)),
            "reading": {
                k: v for k, v in self.source.facts().items() if k in ("max_length", "patches")
            },
            "keep": self.plan.how,
            "layerscope": VERSION,
        }

    def run(self, bar: Progress, scratch: Path | None = None) -> ProbeRun:
        """Compute the states, train, judge. With a `scratch` folder what is finished survives a
        stop."""
        clock = time.perf_counter()
        settings = (self.sites, self.final_norm, self.poolings, self.batch_size, self.used)
        with ModelReader(self.model, self.source, *settings) as reader:
            states = StateCache(reader, self.plan, scratch, self.remote).run(bar)
            read = time.perf_counter() - clock
            bounds = np.cumsum(list(self.split.sizes().values()))
            split = Split(*np.split(np.arange(len(self.used)), bounds[:-1]))
            labels = torch.from_numpy(self.examples.labels[self.used]).to(self.model.device)
            answers: dict[str, Predictions] = {}
            for kind in self.kinds:
                done = None if scratch is None else scratch / f"{kind}.answers{checked.ARRAYS}"
                answers[kind] = _finished(done) or self._fit(
                    kind, states[pooling_of(kind)], labels, split, bar, scratch
                )
                if done is not None and not done.exists():
                    checked.write_arrays(
                        done,
                        {name: np.asarray(value) for name, value in vars(answers[kind]).items()},
                    )
        judged = self.examples.labels[self.split.test]
        classes = len(self.examples.classes)
        table = probe_table(
            answers, self.sites, self.model.n_blocks, judged, classes, self.recipe.seed
        )
        items = item_table(answers, self.sites, self.split.test, judged)
        seconds = {"states": read, **{kind: answer.seconds for kind, answer in answers.items()}}
        return ProbeRun(table, items, describe_run(self, table, seconds))

    def _fit(
        self,
        kind: str,
        states: Any,
        labels: torch.Tensor,
        split: Any,
        bar: Progress,
        scratch: Path | None,
    ) -> Predictions:
        bar.begin(f"{kind} probes|epochs", self.recipe.most_epochs)
        return fit(
            kind,
            self.model,
            states,
            labels,
            split,
            range(len(self.sites)),
            len(self.examples.classes),
            self.recipe,
            None if scratch is None else scratch / f"{kind}.training{checked.ARRAYS}",
            lambda phase: bar.advance(1),
        )


def _finished(file: Path | None) -> Predictions | None:
    stored: dict[str, Any] | None = (
        None if file is None else checked.read_or_discard(file, checked.read_arrays)
    )
    return (
        None if stored is None else Predictions(**{**stored, "seconds": float(stored["seconds"])})
    )


def describe_run(job: ProbeJob, table: pd.DataFrame, seconds: dict[str, float]) -> dict[str, Any]:
    """The manifest of a probe."""
    examples, anatomy, recipe = job.examples, job.model.anatomy, job.recipe
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
            **Reading(
                job.final_norm, job.source.facts().get("max_length"), anatomy.final_norm_name
            ).as_conventions(),
            "probes": {kind: probes()[kind] for kind in job.kinds},
            "reads": {kind: pooling_of(kind) for kind in job.kinds},
            "class_token": job.source.has_class_token,
            "attention_heads": head_count(job.model),
            "neighbors": NEIGHBORS,
            "standardized": "per layer and feature with the training part's mean and variance over all tokens read, no weights",
            "training": {
                **vars(recipe),
                "optimizer": "AdamW (0.9, 0.999)",
                "schedule": "warm-up over a tenth, then half a cosine",
            },
            "start": "every layer and learning rate begins at the same values and sees the same batches",
            "chosen_on": "the validation part: learning rate and epoch by accuracy, then loss; the test part is read at the end",
            "intervals": f"95 %: Wilson for accuracies; gains: {DRAWS} bootstrap draws of test items, the same for every layer",
            "chosen_layer": "best on the validation part; its gain over the last layer is judged on the test part",
            "tied_best": "not told from the best layer by that bootstrap, 95 % for all layers at once",
            "kept": {**job.plan.facts(), "store_size": job.store_size},
            "seed": recipe.seed,
            **{f"reading_{key}": value for key, value in job.source.facts().items()},
        },
        counts={**job.split.sizes(), "classes": len(examples.classes)},
        warnings=_warnings(job, table),
        environment=environment(device=str(job.model.device), threads=torch.get_num_threads()),
        seconds=seconds,
    )


def _warnings(job: ProbeJob, table: pd.DataFrame) -> list[str]:
    out = []
    labels, split = job.examples.labels, job.split
    unseen = sorted(set(np.unique(labels[split.test])) - set(np.unique(labels[split.train])))
    if unseen:
        names = ", ".join(job.examples.classes[i] for i in unseen[:3])
        out.append(
            f"{len(unseen)} classes of the test part are not in the training part ({names}): no probe can name them."
        )
    if len(split.validation) < 50:
        out.append(
            f"the validation part has {len(split.validation)} items only: learning rate and epoch are chosen on few."
        )
    trained = table[table["learning_rate"].notna() & (table["metric"] == "top1")]
    rates = job.recipe.learning_rates
    if len(rates) > 2:
        edge = trained.loc[trained["learning_rate"] == max(rates), "layer"]
        if len(edge) > len(trained) / 2:
            out.append(
                f"most layers chose the largest learning rate, {max(rates):g}: larger ones may do better."
            )
    late = trained[
        (trained["epoch"] == job.recipe.epochs) & (trained["epochs"] == job.recipe.epochs)
    ]
    if len(late) > len(trained) / 2:
        out.append(
            f"most layers were best in the last of {job.recipe.epochs} epochs: more may do better."
        )
    if job.plan.how.get("tokens") == "none":
        out.append("the states were computed again in every epoch: they do not fit store_size=.")
    facts, reading = job.examples.facts, job.source.facts()
    for kind, count in facts.get("dropped", {}).items():
        out.append(f"{count} items were left out: {kind}.")
    if facts.get("contradicting_texts"):
        out.append(
            f"{facts['contradicting_texts']} texts have contradicting labels and were left out."
        )
    if reading.get("truncated"):
        out.append(f"{reading['truncated']} texts were cut to {reading['max_length']} tokens.")
    return out + job.model.warnings(job.final_norm)
