"""Published results of the atlas, seen as curves and scores."""

from __future__ import annotations

import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.report.sources import Curves, Scores

_OURS = {"entropy_prompt": "prompt_entropy", "entropy_dataset": "dataset_entropy"}
_WHERE = {"wikitext": "wikitext", "mteb": "mean over the MTEB datasets", "imagenet": "imagenet"}
_NORMALIZATIONS = ("raw", "maxEntropy", "logN", "logD", "logNlogD")
# metrics that are not on the scale of ours of the same name
_OLDER = "these metrics are from the older generation of the released code: do not compare their values with the others."


def from_atlas(name: str) -> list[Curves | Scores]:
    """Everything that was published about one model: metrics on wikitext, on the MTEB datasets, on images; MTEB scores."""
    from layerscope import atlas
    from layerscope.errors import LayerscopeError

    known = atlas.find_model(name)
    out: list[Curves | Scores] = []
    try:
        values = pd.concat([found for n in _NORMALIZATIONS if (found := _values(known, n)) is not None], ignore_index=True)
    except ValueError:  # nothing to put together
        values = pd.DataFrame()
    for where in _WHERE if len(values) else ():
        rows = values[values["dataset"].str.startswith("mteb/") if where == "mteb" else values["dataset"] == where]
        if where == "mteb" and rows["dataset"].nunique() < 6:  # no basis for a mean
            continue
        if len(rows):
            out.append(_curves(known.name, known.family, rows, where))
    try:
        out.append(_scores(known.name, known.family, atlas.select_scores(known, "english")))
    except LayerscopeError:
        if not out:
            raise
    return out


def _values(known: object, normalization: str) -> pd.DataFrame | None:
    from layerscope import atlas
    from layerscope.errors import LayerscopeError

    try:
        return atlas.metric_values(known, normalization=normalization)  # type: ignore[arg-type]
    except LayerscopeError:
        return None


def _curves(name: str, family: str, rows: pd.DataFrame, where: str) -> Curves:
    aim = family == "aim"
    layers = rows["layer"].astype(int) + (1 if aim else 0)
    rows = rows.assign(layer=layers, metric=rows["metric"].replace(_OURS))
    counted = rows.groupby("metric")["dataset"].transform("nunique")
    keys = ["metric", "normalization", "layer", "depth"]
    complete = rows.assign(datasets=counted)
    table = complete.groupby(keys, as_index=False).agg(
        value=("value", "mean"), n=("dataset", "nunique"), of=("datasets", "first")
    )
    partial = table["n"] < table["of"]  # a mean over fewer datasets than at the other layers is another quantity
    table = table[~partial].assign(sink="keep", ci_low=float("nan"), ci_high=float("nan"))
    table["site"] = table["layer"].map(site_of)
    table = table[["site", "layer", "depth", "metric", "normalization", "sink", "value", "ci_low", "ci_high", "n"]]
    blocks = int(table["layer"].max())
    has_norm = not family.startswith("bert") and where != "imagenet"  # image models return their states without it
    warnings = [
        "published values: the paper's released code and its conventions (see docs/conventions.md); no intervals were published.",
    ]
    if has_norm:
        warnings.append("published metrics have the final norm at the last layer only: that point is another kind of vector.")
    older = (rows["split"] == "train(unrecorded)").any() or (where == "mteb" and family.startswith("LLM2Vec"))
    facts = {
        "kind": "published metrics",
        "final norm": "hf" if has_norm else "not applied" if where == "imagenet" else "none in this model",
        "texts": _WHERE[where],
        "rows": "centered-unit, negative Gram entries set to 0",
        "α": 1.0,
        "preset": "released",
        "source": "OFSkean/information_flow",
    }
    return Curves(
        name, _family(family), blocks, "hf", table, facts, [*warnings, *([_OLDER] if older else [])],
        label=f"{name} · {where}", mean_only=where == "mteb",
    )  # fmt: skip


def _scores(name: str, family: str, published: pd.DataFrame) -> Scores:
    blocks = round(float((published["layer"] / published["depth"]).dropna().iloc[-1]))
    last = published[published["layer"] == blocks].set_index("task")["score"]
    table = pd.DataFrame(
        {
            "task": published["task"],
            "readout": DEFAULT_READOUT,
            "layer": published["layer"],
            "score": published["score"],
            "gain": published["score"] - published["task"].map(last),
            "ci_low": float("nan"),
            "ci_high": float("nan"),
            "tied": False,
        }
    )
    mean_tasks = _same_tasks(published)
    tasks = sorted(set(published["task"]))
    warnings = ["published scores: no intervals were published, so nothing says which layers tie."]
    if len(mean_tasks) < len(tasks):
        layers = published["layer"].nunique()
        warnings.append(
            f"of {len(tasks)} tasks, {len(mean_tasks)} are scored wherever most are ({layers} layers have any): "
            "means are over those."
        )
    facts = {
        "kind": "published scores",
        "tasks": f"{len(tasks)} tasks",
        "convention": "english: STS17 = en-en, AmazonCounterfactual = mean of en and en-ext",
        "score": "mteb's main score",
        "source": "OFSkean/information_flow",
    }
    kinds = dict(zip(published["task"], published["task_type"], strict=True))
    return Scores(
        name, _family(family), blocks, table, tasks, kinds, [DEFAULT_READOUT], facts, warnings, label=name, mean_tasks=mean_tasks
    )


def _same_tasks(table: pd.DataFrame) -> list[str]:
    """Tasks that are there at every layer that has most tasks."""
    present = table.groupby("layer")["task"].nunique()
    layers = present.index[present >= 0.6 * table["task"].nunique()]
    scored = table[table["layer"].isin(layers)]
    count = scored.groupby("task")["layer"].nunique()
    return sorted(count.index[count == len(layers)])


def _family(family: str) -> str:
    """The atlas's name of a family as the palette knows it."""
    low = family.lower()
    return "llm2vec" if low.startswith("llm2vec") else "bert" if low.startswith("bert") else low
