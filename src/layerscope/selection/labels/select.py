"""`select_with_labels`: which layer and readout of a model serve best, told by a few labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.core.sites import site_of
from layerscope.models import LoadedModel
from layerscope.progress import progress_bar
from layerscope.selection.labels.answer import make_choice
from layerscope.selection.labels.choice import LabelledChoice
from layerscope.selection.labels.decide import decide
from layerscope.selection.labels.evidence import gather
from layerscope.selection.labels.labelfree import label_free_answer
from layerscope.selection.labels.read import read_labels
from layerscope.selection.labels.source import open_source
from layerscope.selection.labels.vectors import StoredVectors, encode_texts, truncated
from layerscope.selection.labels.weigh import weigh
from layerscope.store.embeddings import DEFAULT_BUDGET, EmbeddingStore


def select_with_labels(
    source: str | Path | LoadedModel,
    labels: str | Path,
    *,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    offline: bool = False,
    progress: bool | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_budget: int | None = DEFAULT_BUDGET,
) -> LabelledChoice:
    """Choose a layer and readout with labelled examples.

    `source` is a model (name, folder, hub id) or the folder of a profile or evaluation. `labels` is a csv, tsv or jsonl file with
    the columns `text,label`, `sentence1,sentence2,label` or `sentence1,sentence2,score`. All layers and readouts (templates
    included) are compared unless some are named. `budget` is the largest share of the blocks to run; `tolerance`, in points
    (1 where only a budget is given), takes the earliest layer that comes so near to the best.
    """
    labelled = read_labels(labels)
    opened = open_source(source, max_length, offline)
    chosen_layers, texts = opened.layers(layers), labelled.texts
    held = EmbeddingStore(Path(store) if store else cache_dir() / "embeddings", store_budget)
    grid = opened.readouts(readouts, offline)
    with progress_bar(progress) as bar:
        spaces = None if opened.model is not None else opened.held(held, texts, grid, chosen_layers)
        facts: dict[str, Any]
        if spaces is not None:
            facts = {"texts": len(texts), "encoded": 0, "truncated": truncated(spaces, texts)}
        else:
            model = opened.loaded(offline)
            grid = opened.readouts(readouts, offline)  # a model that is loaded says whether it has a final norm
            sites = [site for site in expand_sites(None, model.anatomy) if site.layer in chosen_layers]
            spaces, facts = encode_texts(model, texts, grid, sites, held, opened.max_length, bar, batch_size)
        vectors = StoredVectors(spaces, texts, [site_of(layer) for layer in chosen_layers], opened.unit)
        bar.begin("scoring|readouts", len(grid))
        evidence = gather(labelled, grid, chosen_layers, vectors, folds=folds, seed=seed, unit=opened.unit, advance=bar.advance)
    weighed = weigh(evidence, seed=seed)
    decision = decide(evidence, weighed, budget, None if tolerance is None else tolerance / 100)
    without = label_free_answer(opened.run)
    settings = {"folds": folds, "seed": seed, "budget": budget, "tolerance": tolerance}
    return make_choice(labelled, opened, evidence, weighed, decision, {**facts, **settings}, without)
