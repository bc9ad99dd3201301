"""Published scores, metric values and image probes of one model, as tidy tables."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope_paper.atlas.tables import AtlasModel, as_text, find_model, stored_table
from layerscope_paper.correlation.study import Tables

CONVENTIONS = {
    "authors": (
        "the first subset listed, as the authors' code reads it; for STS17 a different language "
        "pair at different layers"
    ),
    "english": "STS17 = en-en, AmazonCounterfactual = mean of en and en-ext, at every layer",
}
MTEB = "mteb"  # all MTEB datasets


def select_scores(model: str | AtlasModel, convention: str = "english") -> pd.DataFrame:
    """Return a row per task and layer: task, task_type, layer, depth, score (0 to 1).

    An undefined score has no row; `attrs` counts them.

    >>> table = select_scores("Pythia-410m", "authors")
    >>> round(100 * float(table[table.layer == 17].score.mean()), 2)
    51.96
    """
    if convention not in CONVENTIONS:
        raise UnknownNameError("convention", convention, CONVENTIONS)
    return _selected_scores(find_model(model), convention).copy()


@lru_cache(maxsize=256)
def _selected_scores(model: AtlasModel, convention: str) -> pd.DataFrame:
    table = _rows(model, "scores")
    table = as_text(table[table["split"] == "test"])
    if convention == "authors":
        table = table[table["subset_position"] == 0]
    else:
        several = table["task"].isin(["STS17", "AmazonCounterfactualClassification"])
        table = table[~several | table["subset"].isin(["en-en", "en", "en-ext"])]
    undefined = int(table["main_score"].isna().sum())
    table = table.dropna(subset=["main_score"])
    # the mean is over en and en-ext of AmazonCounterfactual; every other group has one row
    means = table.groupby(["task", "task_type", "layer"], as_index=False).agg(
        score=("main_score", "mean"), states=("num_hidden_states", "first")
    )
    means["layer"] = means["layer"].astype(int)
    means["depth"] = means["layer"] / (means["states"].astype(int) - 1)
    means = means[["task", "task_type", "layer", "depth", "score"]].sort_values(
        ["task", "layer"], ignore_index=True
    )
    means.attrs.update(
        model=model.name, convention=convention, undefined=undefined, final_norm="applied"
    )
    return means


def metric_values(
    model: str | AtlasModel,
    dataset: str | None = None,
    metric: str | None = None,
    normalization: str | None = "raw",
) -> pd.DataFrame:
    """Return a row per dataset, metric and layer: dataset, task, split, metric, normalization,
    layer, depth, value.

    `dataset`: `wikitext`, `imagenet`, one `mteb/…` dataset, a task's name, `mteb` for all of those,
    or None for everything. `normalization` may be None for all. The split is the one that the
    paper's code reads: `test` on MTEB, `val` on imagenet, `train` on wikitext (where there is none,
    `train(unrecorded)` of the older code, or `test`). An undefined value has no row; `attrs` counts
    them.
    """
    return _selected_values(find_model(model), dataset, metric, normalization).copy()


@lru_cache(maxsize=512)  # the figures ask for the same curves again and again
def _selected_values(
    model: AtlasModel,
    dataset: str | None,
    metric: str | None,
    normalization: str | None,
) -> pd.DataFrame:
    table = _rows(model, "metrics")
    if metric is not None:
        table = _select(table, "metric", metric, model)
    if normalization is not None:
        table = _select(table, "normalization", normalization, model)
    tasks = as_text(stored_table("tasks"))
    if dataset == MTEB:
        table = table[table["dataset"].str.startswith("mteb/")]
        if table.empty:
            raise LayerscopeError(f"the atlas has no metrics of {model.name} on the MTEB datasets.")
    elif dataset is not None:
        dataset_of = dict(zip(tasks["task"], tasks["dataset"], strict=True))
        table = _select(table, "dataset", dataset_of.get(dataset, dataset), model)
    table = as_text(table)
    on_mteb = table["dataset"].str.startswith("mteb/")
    rank = table["split"].map({"train": 0, "val": 0, "train(unrecorded)": 1, "test": 2})
    best_rank = rank.groupby([table["dataset"], table["metric"]]).transform("min")
    table = table[(on_mteb & (table["split"] == "test")) | (~on_mteb & (rank == best_rank))]
    undefined = int(table["value"].isna().sum())
    table = table.dropna(subset=["value"])
    layer = table["layer"].astype(int)
    entries = table["num_layers_in_file"].astype(int)
    # the published lists of aim have no entry for the embeddings: entry 0 is block 1
    depth = (layer + 1) / entries if model.family == "aim" else layer / (entries - 1)
    task = table["dataset"].map(dict(zip(tasks["dataset"], tasks["task"], strict=True)))
    values = table.assign(layer=layer, depth=depth, task=task)
    values = values[
        ["dataset", "task", "split", "metric", "normalization", "layer", "depth", "value"]
    ]
    values = values.sort_values(["metric", "dataset", "layer"], ignore_index=True)
    values.attrs.update(model=model.name, undefined=undefined, final_norm="hf")
    return values


@lru_cache(maxsize=64)
def _rows(model: AtlasModel, name: str) -> pd.DataFrame:
    """Return one model's rows of a table. All callers share them: never to be changed."""
    rows = model.rows(stored_table(name))
    if rows.empty:
        raise LayerscopeError(
            f"the atlas has no {name} of {model.name}. `layerscope-paper published` lists what "
            "each model has."
        )
    return rows


def _select(table: pd.DataFrame, column: str, value: str, model: AtlasModel) -> pd.DataFrame:
    """Return the rows with a value of a column; refuse a value that no row has."""
    rows = table[table[column] == value]
    if rows.empty:
        raise UnknownNameError(f"{column} of {model.name}", value, set(table[column]))
    return rows


def correlation_tables(model: str, convention: str = "english") -> Tables:
    """Return published metrics and scores, ready for `correlate`.

    Metrics are those on each task's own dataset, if they were published for more than five tasks.
    """
    published = find_model(model)
    scores = select_scores(published, convention)
    values = metric_values(published)
    on_mteb = values["dataset"].str.startswith("mteb/")
    # one dataset is not enough for a mean over tasks
    corpus = "mteb" if values.loc[on_mteb, "dataset"].nunique() > 5 else "wikitext"
    values = values[on_mteb if corpus == "mteb" else values["dataset"] == "wikitext"]
    if values.empty:
        raise LayerscopeError(f"the atlas has no metrics of {published.name} on {corpus}.")
    facts = {
        "model": published.name,
        # relatives are one unit of a test over models
        "family": published.family.split("-")[0].split("_")[0],
        "source": "atlas",
        "convention": convention,
        "metrics_on": corpus,
    }
    notes = [
        (
            "curvature is the released code's (absolute cosine); rank correlations of the signed "
            "angle have the opposite sign."
        )
    ]
    if not published.family.startswith("bert"):
        notes.append(
            "metrics: final norm at the last layer only; scores: at every layer. They describe "
            "different vectors below it."
        )
    by_older_code = (values["split"] == "train(unrecorded)").any()
    if by_older_code or (corpus == "mteb" and published.family.startswith("LLM2Vec")):
        notes.append("these metrics are from the older generation of the released code.")
    return Tables(
        values[["metric", "task", "layer", "value"]],
        scores[["task", "layer", "score"]],
        facts,
        notes,
    )


# In the probe of these two label j is block j; in the others it is the entry before it, so that
# label 1 is the patch embeddings and the last block was never probed.
LABEL_IS_LAYER = ("aim", "aimv2")
BLOCKS = 24  # of every probed model


def probe_accuracies(model: str | AtlasModel) -> pd.DataFrame:
    """Return a row per layer: layer, depth, label (the paper's), top1, top5 (% on ImageNet-100's
    validation images).

    >>> vit = probe_accuracies("vit-large")
    >>> int(vit["layer"].max()), int(vit["label"].max())
    (23, 24)
    """
    published = find_model(model)
    table = as_text(published.rows(stored_table("vision")))
    table = table[
        (table["probe"] == "attention_probe") & (table["first_layer"] == table["last_layer"])
    ]
    if table.empty:
        raise LayerscopeError(
            f"the atlas has no attention probe of {published.name}. `layerscope-paper published` "
            "lists what each model has."
        )
    wide = table[table["metric"].isin(["val_acc1", "val_acc5"])].pivot_table(
        "value", "first_layer", "metric", aggfunc="last"
    )
    label = wide.index.to_numpy().astype(int)
    layer = label if published.family in LABEL_IS_LAYER else label - 1
    accuracies = pd.DataFrame({"layer": layer, "depth": layer / BLOCKS, "label": label})
    accuracies["top1"] = wide["val_acc1"].to_numpy(float)
    accuracies["top5"] = wide["val_acc5"].to_numpy(float)
    return accuracies.sort_values("layer", ignore_index=True)
