"""`probe`: classifiers on the frozen states of every layer, scored on held-out items."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.capture import FINAL_NORMS, FinalNorm, Site, expand_sites
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.identity import LAYER, Reading, model_key
from layerscope.core.scores import DRAWS
from layerscope.core.sites import pick_layers, site_of
from layerscope.data.corpus import refuse_missing
from layerscope.data.items import LabeledItems
from layerscope.engines import Engine
from layerscope.errors import ModelError, UnknownNameError
from layerscope.models import LoadedModel, kind_read_by
from layerscope.probing.examples import Split, make_split, open_examples
from layerscope.probing.probes import (
    NEIGHBORS,
    ProbeRecipe,
    fit_attention,
    fit_linear,
    fit_neighbors,
    head_count,
)
from layerscope.probing.run import Predictions, ProbeRun, item_table, probe_table
from layerscope.probing.states import ItemStates, Runner, TokenStates
from layerscope.store import RunFolder
from layerscope.version import VERSION

HEADS = {
    "attention": "a learned query attends over the tokens, then a linear layer",
    "linear": "logistic regression on the class token, or the mean over tokens without one",
    "mean": "logistic regression on the mean over tokens (of images: over patches)",
    "knn": f"the {NEIGHBORS} training items with the highest cosine of the vectors of `linear` "
    "vote",
}
_READING = ("max_length", "patches")  # the facts about reading that decide numbers
_FEW = 50  # validation items

_CONVENTIONS = {
    "standardized": "by mean and variance of the training part, per layer and feature",
    "chosen_on": "the validation part; the test part is read at the end",
    "intervals": "95 %: Wilson's for accuracies; for gains a bootstrap with "
    f"{DRAWS} draws of test items, the same for every layer",
    "chosen_layer": "best on the validation part; its gain over the last layer is measured on the "
    "test part",
    "tied_best": "not told from the best layer by that bootstrap, 95 % for all layers at once",
}


@dataclass(frozen=True)
class ProbeRequest:
    """The probes, the labeled items, the layers of a model, and the items of each part."""

    model: LoadedModel
    examples: LabeledItems
    heads: tuple[str, ...]
    sites: tuple[Site, ...]
    final_norm: FinalNorm
    split: Split
    recipe: ProbeRecipe
    store_size: int | None


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
    """Fit probes (small classifiers) to the frozen states of every layer, and score them on
    held-out test items.

    - `data`: labeled items of the kind that the model reads. Texts: a file with `text` and `label`,
      a list of texts with their `labels`, or the name of a classification task.
    - `test`: test data. By default the test part of `data`; if there is none, a fifth of each class
      is held out.
    - `heads`: one or several of attention, linear, mean, knn.
    - `learning_rates`, `trial`, `epochs`, `patience`: the training of attention probes.
    - `store_size`: the bytes of memory for the states that attention probes read. States that do
      not fit are computed again in each epoch.
    - `out`: a folder for the run. If it holds this run already, the run is returned.

    The vectors of texts that linear, mean and knn read are kept in the embedding store. Options of
    the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords. The engine computes these vectors: `local`
    (this process), `ray` (workers of the cluster at `address`) or an `Engine`. Attention probes
    read states that this process computes.

        run = layerscope.probe("minilm-l6", "reviews.csv", heads=["attention", "knn"])
        run.table; run.plot()
    """
    command = Command("probe", options, engine=engine, progress=progress, function=probe)
    kinds = tuple(dict.fromkeys([heads] if isinstance(heads, str) else heads))
    for kind in kinds:
        if kind not in HEADS:
            raise UnknownNameError("probe", kind, HEADS)
    if final_norm not in FINAL_NORMS:
        raise UnknownNameError("final norm", final_norm, FINAL_NORMS)
    recipe = ProbeRecipe(tuple(map(float, learning_rates)), trial, epochs, patience, seed)
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
        numbers = pick_layers(layers, loaded.n_blocks, loaded.name)
        request = ProbeRequest(
            loaded,
            examples,
            kinds,
            tuple(expand_sites([site_of(k) for k in numbers], loaded.anatomy)),
            final_norm,
            make_split(examples.labels, examples.parts, seed, sample),
            recipe,
            store_size,
        )
        runner = Runner(command.engine, command.recipe, command.where.batch_size, command.bar)
        reading = (max_length, request.sites, final_norm, runner)
        states = opened.enter_context(ItemStates(loaded, examples.items, *reading))
        if folder is None:
            return run_probes(request, states)
        return run_in(
            folder,
            ProbeRun,
            run_config(request, states),
            lambda session: run_probes(request, states),
            overwrite=overwrite,
        )


def run_config(request: ProbeRequest, states: ItemStates) -> dict[str, Any]:
    """Return the settings that decide the numbers: the run's key is made of them."""
    return {
        "model": model_key(request.model.identity),
        "data": request.examples.fingerprint,
        "split": request.split.sizes(),
        "probes": list(request.heads),
        "sites": [site.name for site in request.sites],
        "final_norm": request.final_norm,
        "recipe": asdict(request.recipe),
        "reading": {name: states.facts[name] for name in _READING if name in states.facts},
        "layerscope": VERSION,
    }


def run_probes(request: ProbeRequest, states: ItemStates) -> ProbeRun:
    """Read the states, fit the probes, and score them on the test part."""
    split = request.split
    order = np.concatenate([split.train, split.validation, split.test])
    labels = request.examples.labels[order]
    places = split.renumbered()
    classes = len(request.examples.classes)
    predictions: dict[str, Predictions] = {}
    warnings = []
    seconds = {"states": 0.0}
    for head in request.heads:
        start = time.perf_counter()
        if head == "attention":
            tokens = TokenStates(states, order, request.store_size)
            read = time.perf_counter()
            if not tokens.is_kept:
                warnings.append(
                    "the states were computed again in every epoch: they do not fit store_size=."
                )
            bar = states.runner.bar
            bar.begin("attention probes|epochs", request.recipe.most_epochs)
            count = head_count(request.model)
            predictions[head] = fit_attention(
                tokens, labels, places, classes, count, request.recipe, bar.advance
            )
        else:
            has_class = head != "mean" and states.has_class_token
            vectors = states.vectors(order, "class" if has_class else "mean")
            read = time.perf_counter()
            fit = fit_neighbors if head == "knn" else fit_linear
            predictions[head] = fit(vectors, labels, places, classes)
        seconds["states"] += read - start
        seconds[head] = time.perf_counter() - read
    test = request.examples.labels[split.test]
    table = probe_table(
        predictions, request.sites, request.model.n_blocks, test, request.recipe.seed
    )
    items = item_table(predictions, request.sites, split.test, test)
    return ProbeRun(table, items, describe_run(request, states, warnings, seconds))


def describe_run(
    request: ProbeRequest, states: ItemStates, warnings: list[str], seconds: dict[str, float]
) -> dict[str, Any]:
    """Return the manifest of a run."""
    examples = request.examples
    model = request.model
    reading = Reading(
        request.final_norm, states.facts.get("max_length"), model.anatomy.final_norm_name
    )
    return make_manifest(
        ProbeRun.kind,
        model=model.identity,
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
            **reading.as_conventions(),
            "probes": {head: HEADS[head] for head in request.heads},
            "class_token": states.has_class_token,
            "attention_heads": head_count(model),
            "training": asdict(request.recipe),
            **_CONVENTIONS,
            "seed": request.recipe.seed,
            **{f"reading_{name}": value for name, value in states.facts.items()},
        },
        counts={**request.split.sizes(), "classes": len(examples.classes)},
        warnings=[*warnings, *find_warnings(request, states.facts)],
        environment=environment(device=str(model.device), threads=torch.get_num_threads()),
        seconds=seconds,
    )


def find_warnings(request: ProbeRequest, reading: Mapping[str, Any]) -> list[str]:
    """Return the sentences that a reader should know before believing the accuracies."""
    warnings = []
    examples = request.examples
    split = request.split
    unseen = set(examples.labels[split.test]) - set(examples.labels[split.train])
    if unseen:
        names = ", ".join(examples.classes[i] for i in sorted(unseen)[:3])
        warnings.append(
            f"{len(unseen)} classes of the test part are not in the training part ({names}): no "
            "probe can name them."
        )
    if len(split.validation) < _FEW:
        warnings.append(
            f"the validation part has only {len(split.validation)} items, on which settings are "
            "chosen."
        )
    left_out = dict(examples.facts.get("dropped", {}))
    left_out["contradicting labels"] = examples.facts.get("contradicting_texts", 0)
    warnings += [
        f"{count} items were left out: {reason}." for reason, count in left_out.items() if count
    ]
    if reading.get("truncated"):
        warnings.append(f"{reading['truncated']} texts were cut to {reading['max_length']} tokens.")
    return warnings + request.model.warnings(request.final_norm)
