"""Published results as parts of a report's page."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.core.columns import PROFILE, names
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL
from layerscope.metrics import NORMALIZATIONS
from layerscope.report.sources import Curves, Scores
from layerscope_paper.atlas import queries
from layerscope_paper.atlas.overlay import OURS
from layerscope_paper.atlas.summary import or_none
from layerscope_paper.atlas.tables import find_model
from layerscope_paper.correlation import same_tasks

_WHERE = {"wikitext": "wikitext", "mteb": "mean over the MTEB datasets", "imagenet": "imagenet"}
# metrics that are not on the scale of ours of the same name
_OLDER = "these metrics are from the older generation of the released code: do not compare their values with the others."


def published_parts(name: str) -> list[Curves | Scores]:
    """Everything that was published about one model: metrics on wikitext, on the MTEB datasets, on
    images; MTEB scores."""
    known = find_model(name)
    out: list[Curves | Scores] = []
    values = or_none(queries.metric_values, known, normalization=None)
    if values is not None:
        values = values[values["normalization"].isin(NORMALIZATIONS)]
        on_mteb = values["dataset"].str.startswith("mteb/")
        for where in _WHERE:
            rows = values[on_mteb if where == "mteb" else values["dataset"] == where]
            if len(rows) and (
                where != "mteb" or rows["dataset"].nunique() > 5
            ):  # too few for a mean
                out.append(_curves(known.name, known.family, rows, where))
    scores = (
        or_none(queries.select_scores, known, "english")
        if out
        else queries.select_scores(known, "english")
    )
    return out if scores is None else [*out, _scores(known.name, known.family, scores)]


def _curves(name: str, family: str, rows: pd.DataFrame, where: str) -> Curves:
    aim = family == "aim"
    layers = rows["layer"].astype(int) + (1 if aim else 0)
    rows = rows.assign(layer=layers, metric=rows["metric"].replace(OURS))
    counted = rows.groupby("metric")["dataset"].transform("nunique")
    keys = ["metric", "normalization", "layer", "depth"]
    complete = rows.assign(datasets=counted)
    table = complete.groupby(keys, as_index=False).agg(
        value=("value", "mean"), n=("dataset", "nunique"), of=("datasets", "first")
    )
    partial = (
        table["n"] < table["of"]
    )  # a mean over fewer datasets than at the other layers is another quantity
    table = (
        table[~partial]
        .assign(sink="keep", site=table["layer"].map(site_of))
        .reindex(columns=names(PROFILE))
    )
    blocks = int(table["layer"].max())
    has_norm = (
        not family.startswith("bert") and where != "imagenet"
    )  # image models return their states without it
    warnings = [
        "published values: the paper's released code and its conventions (see docs/conventions.md); no intervals were published."
    ]
    if has_norm:
        warnings.append(
            "published metrics have the final norm at the last layer only: that point is another kind of vector."
        )
    older = (rows["split"] == "train(unrecorded)").any() or (
        where == "mteb" and family.startswith("LLM2Vec")
    )
    facts = {
        "kind": "published metrics",
        "final norm": "hf"
        if has_norm
        else "not applied"
        if where == "imagenet"
        else "none in this model",
        "texts": _WHERE[where],
        "rows": "centered-unit, negative Gram entries set to 0",
        "α": 1.0,
        "preset": "released",
        "source": "OFSkean/information_flow",
    }
    own: dict[str, Any] = {
        "family": _family(family),
        "facts": facts,
        "warnings": [*warnings, *([_OLDER] if older else [])],
    }
    return Curves(name, blocks, "hf", table, where == "mteb", label=f"{name} · {where}", **own)


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
            **dict.fromkeys(INTERVAL, float("nan")),
            "tied": False,
        }
    )
    mean_tasks = sorted(set(same_tasks(published)["task"]))
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
    own: dict[str, Any] = {
        "family": _family(family),
        "facts": facts,
        "warnings": warnings,
        "label": name,
    }
    return Scores(name, blocks, table, tasks, kinds, [DEFAULT_READOUT], mean_tasks, **own)


def _family(family: str) -> str:
    """The atlas's name of a family as the palette knows it."""
    low = family.lower()
    return "llm2vec" if low.startswith("llm2vec") else "bert" if low.startswith("bert") else low
