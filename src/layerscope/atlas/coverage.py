"""What the atlas holds of each model."""

from __future__ import annotations

import pandas as pd

from layerscope.atlas.names import every_model
from layerscope.atlas.tables import coded


def models() -> pd.DataFrame:
    """One row per model: name, family, size, revision, layers (states, embeddings included), and what is covered.

    `tasks` have a test score somewhere, `tasks_everywhere` at every layer; `mteb_datasets` counts the datasets with metrics,
    `wikitext` and `imagenet` the metrics there; `probe_layers` counts the single layers with an image probe.
    """
    scores, metrics, vision = _scores(), _metrics(), _vision()
    rows = [
        {"model": name, "family": m.family, "size": m.size, "revision": m.revision, "_at": (m.family, m.size, m.revision)}
        for name, m in every_model().items()
    ]
    table = pd.DataFrame(rows)
    for part in (scores, metrics, vision):
        for column in part.columns:
            table[column] = table["_at"].map(part[column]).to_numpy()
    entries = table[["score_states", "metric_states"]].max(axis=1)
    counts = ["tasks", "tasks_everywhere", "scored_layers", "mteb_datasets", "wikitext", "imagenet", "probe_layers"]
    table["layers"] = entries.astype("Int64")
    table[counts] = table[counts].fillna(0).astype(int)
    return table[["model", "family", "size", "revision", "layers", *counts]]


_KEY = ["family", "size", "revision"]


def _tuples(table: pd.DataFrame) -> pd.DataFrame:
    table.index = pd.Index([tuple(map(str, key)) for key in table.index], tupleize_cols=False)
    return table


def _scores() -> pd.DataFrame:
    table = coded("scores")
    table = table[(table["split"] == "test") & table["main_score"].notna()]
    cells = table[[*_KEY, "task", "layer"]].drop_duplicates()
    per_task = cells.groupby([*_KEY, "task"], observed=True).size().reset_index(name="n")
    states = table.groupby(_KEY, observed=True)["num_hidden_states"].max().rename("score_states")
    tasks = per_task.groupby(_KEY, observed=True)["n"].size().rename("tasks")
    everywhere = per_task.merge(states.reset_index(), on=_KEY)
    everywhere = everywhere[everywhere["n"] == everywhere["score_states"]]
    whole = everywhere.groupby(_KEY, observed=True).size().rename("tasks_everywhere")
    layers = cells.groupby(_KEY, observed=True)["layer"].nunique().rename("scored_layers")
    return _tuples(pd.concat([states.astype(float), tasks, whole, layers], axis=1))


def _metrics() -> pd.DataFrame:
    table = coded("metrics")
    table = table[table["value"].notna()]
    states = table.groupby(_KEY, observed=True)["num_layers_in_file"].max().rename("metric_states").astype(float)
    cells = table[[*_KEY, "dataset", "metric"]].drop_duplicates()
    on = cells["dataset"].astype(str)
    parts = [
        cells[on.str.startswith("mteb/")].groupby(_KEY, observed=True)["dataset"].nunique().rename("mteb_datasets"),
        cells[on == "wikitext"].groupby(_KEY, observed=True)["metric"].nunique().rename("wikitext"),
        cells[on == "imagenet"].groupby(_KEY, observed=True)["metric"].nunique().rename("imagenet"),
    ]
    return _tuples(pd.concat([states, *parts], axis=1))


def _vision() -> pd.DataFrame:
    table = coded("vision")
    single = table[(table["first_layer"] == table["last_layer"]) & (table["probe"] == "attention_probe")]
    counts = single.groupby(["model", "size"], observed=True)["first_layer"].nunique().rename("probe_layers").to_frame()
    counts.index = pd.MultiIndex.from_tuples([(m, s, "main") for m, s in counts.index])
    return _tuples(counts)
