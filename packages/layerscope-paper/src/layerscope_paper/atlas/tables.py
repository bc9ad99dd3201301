"""The published tables, read once, and the names of the models in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pandas as pd

from layerscope.errors import UnknownNameError

DATA = Path(__file__).parent / "data"


@cache
def stored_table(name: str) -> pd.DataFrame:
    """Return a table as stored, with categories for text, which are quick to filter.

    All callers share it: never to be changed.
    """
    return pd.read_parquet(DATA / f"{name}.parquet")


@cache
def _readable(name: str) -> pd.DataFrame:
    return as_text(stored_table(name))


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with plain text in place of categories, because `groupby` shows unused
    categories too."""
    categories = table.select_dtypes("category")
    return table.astype({c: values.cat.categories.dtype for c, values in categories.items()})


def scores() -> pd.DataFrame:
    """Return every published MTEB score: model, layer, task, split, subset, main_score (0 to 1)."""
    return _readable("scores").copy()


def metrics() -> pd.DataFrame:
    """Return every published metric value: model, dataset, split, metric, normalization, layer,
    value."""
    return _readable("metrics").copy()


def vision() -> pd.DataFrame:
    """Return every number of the published image probes: model, layers, metric, value (accuracies
    in percent)."""
    return _readable("vision").copy()


def tasks() -> pd.DataFrame:
    """Return the 32 MTEB tasks and the name of each one's dataset in `metrics()`."""
    return _readable("tasks").copy()


def problems() -> pd.DataFrame:
    """Return the source files that had a defect or were left out, with the reason."""
    return _readable("problems").copy()


_KEY = ["family", "size", "revision"]


@dataclass(frozen=True, order=True)
class AtlasModel:
    """One model of the atlas at one training checkpoint (`main`: the final one)."""

    family: str
    size: str
    revision: str = "main"

    @property
    def name(self) -> str:
        """The name that users write; without the size for LLM2Vec models, which are all 8B."""
        base = self.family if self.family.startswith("LLM2Vec") else f"{self.family}-{self.size}"
        return base if self.revision == "main" else f"{base}@{self.revision}"

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return this model's rows of a table with family, size and revision (a probe table has
        `model` and no revision)."""
        family = "family" if "family" in table.columns else "model"
        mask = (table[family] == self.family) & (table["size"] == self.size)
        if "revision" in table.columns:
            mask &= table["revision"] == self.revision
        return table[mask]


def _number(text: str) -> float:
    """Return a size or step as a number: 4.1e8 of `410m`, 1000 of `step1000`, infinity of none."""
    digits = "".join(c for c in text if c.isdigit() or c == ".")
    if not digits:
        return {"base": 1e8, "large": 3e8, "huge": 6e8}.get(text, float("inf"))
    return float(digits) * {"m": 1e6, "b": 1e9}.get(text[-1:].lower(), 1.0)


@lru_cache(maxsize=1)
def every_model() -> dict[str, AtlasModel]:
    """Return all models by name, ordered by family, size and training step."""
    keys = {
        (str(family), str(size), str(revision))
        for table in ("scores", "metrics")
        for family, size, revision in stored_table(table)[_KEY]
        .drop_duplicates()
        .itertuples(index=False, name=None)
    }
    keys |= {
        (str(m), str(s), "main")
        for m, s in stored_table("vision")[["model", "size"]]
        .drop_duplicates()
        .itertuples(index=False)
    }
    ordered = sorted(
        keys, key=lambda k: (k[0].lower(), _number(k[1]), k[2] != "main", _number(k[2]))
    )
    return {model.name: model for model in (AtlasModel(*key) for key in ordered)}


@lru_cache(maxsize=1)
def _aliases() -> dict[str, AtlasModel]:
    """Return models by lower-case spelling: with or without the size where a family has one,
    `@main`, `family/size`."""
    aliases: dict[str, AtlasModel] = {}
    for model in every_model().values():
        sizes = {m.size for m in every_model().values() if m.family == model.family}
        bases = [f"{model.family}-{model.size}", f"{model.family}/{model.size}"]
        if len(sizes) == 1:
            bases.append(model.family)
        for base in bases:
            aliases[f"{base}@{model.revision}".lower()] = model
            if model.revision == "main":
                aliases[base.lower()] = model
    return aliases


def find_model(name: str | AtlasModel) -> AtlasModel:
    """Return the model of that name; case does not matter.

    >>> find_model("pythia-410m@step1000")
    AtlasModel(family='Pythia', size='410m', revision='step1000')
    """
    if isinstance(name, AtlasModel):
        return name
    model = _aliases().get(name.strip().lower())
    if model is None:
        hint = "`layerscope-paper published` lists what each has."
        raise UnknownNameError("atlas model", name, every_model(), hint)
    return model


def models() -> pd.DataFrame:
    """Return a row per model: name, family, size, revision, layers (states, embeddings included),
    and counts of what was published.

    `tasks` have a test score somewhere, `tasks_everywhere` at every layer; `mteb_datasets` counts
    the datasets with metrics, `wikitext` and `imagenet` the metrics there; `probe_layers` counts
    the single layers with an image probe.
    """
    scores = stored_table("scores")
    metrics = stored_table("metrics")
    vision = stored_table("vision")
    scores = scores[(scores["split"] == "test") & scores["main_score"].notna()]
    metrics = metrics[metrics["value"].notna()]
    probes = vision[
        (vision["first_layer"] == vision["last_layer"]) & (vision["probe"] == "attention_probe")
    ]
    dataset = metrics["dataset"].astype(str)
    scored = scores.groupby([*_KEY, "task"], observed=True)["layer"].nunique().unstack("task")
    states = scores.groupby(_KEY, observed=True)["num_hidden_states"].max()
    everywhere = scored.eq(states, axis=0).sum(axis=1)
    columns = {
        "tasks": _count_values(scores, "task"),
        "tasks_everywhere": _by_name(everywhere),
        "scored_layers": _count_values(scores, "layer"),
        "mteb_datasets": _count_values(metrics[dataset.str.startswith("mteb/")], "dataset"),
        "wikitext": _count_values(metrics[dataset == "wikitext"], "metric"),
        "imagenet": _count_values(metrics[dataset == "imagenet"], "metric"),
        "probe_layers": _count_values(
            probes.assign(family=probes["model"], revision="main"), "first_layer"
        ),
    }
    entries = _by_name(metrics.groupby(_KEY, observed=True)["num_layers_in_file"].max())
    layers = {
        name: max(n, _by_name(states).get(name, 0))
        for name, n in {**_by_name(states), **entries}.items()
    }
    rows = [
        {
            "model": name,
            "family": m.family,
            "size": m.size,
            "revision": m.revision,
            "layers": layers.get(name, pd.NA),
        }
        | {column: counts.get(name, 0) for column, counts in columns.items()}
        for name, m in every_model().items()
    ]
    return pd.DataFrame(rows).astype({"layers": "Int64"})


def _count_values(rows: pd.DataFrame, column: str) -> dict[str, int]:
    """Return the number of different values of a column for each model."""
    return _by_name(rows.groupby(_KEY, observed=True)[column].nunique())


def _by_name(counts: pd.Series) -> dict[str, int]:
    return {
        AtlasModel(*map(str, key)).name: int(n)
        for key, n in zip(counts.index.tolist(), counts, strict=True)
    }
