"""Every rule on every family of published models. No rule is fitted on the family that it is judged
on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.label_free import apply_rule, choose_by_evidence
from layerscope.errors import LayerscopeError
from layerscope_paper.atlas.evidence import ATLAS_METRICS, published_evidence
from layerscope_paper.atlas.queries import metric_values
from layerscope_paper.rules.gains import Judged, fit, valley_depths

Choice = int | Mapping[str, int]  # one layer, or a layer per task
DEPTHS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
PER_TASK_METRICS = ("dime", "infonce", "dataset_entropy")  # Table 2's


@dataclass(frozen=True)
class Case:
    """One rule on one model: its choice, the gain, and the interval that it forecast, if any."""

    rule: str
    family: str
    model: str
    layer: Choice
    gain: float
    share: float
    ci_low: float | None = None
    ci_high: float | None = None
    risk: float | None = None
    abstained: bool = False


def evidence_cases(models: Sequence[Judged]) -> list[Case]:
    """Return the cases of our rule, with its curves and its interval refitted without each
    family."""
    depths = valley_depths(list(models))
    cases = []
    for family in sorted({m.family for m in models}):
        prior = fit([m for m in models if m.family != family], depths)
        for model in (m for m in models if m.family == family):
            answer = choose_by_evidence(published_evidence(model.model), prior)
            case = _case("evidence", model, answer.layer)
            if answer.abstained:
                case = replace(case, abstained=True)
            elif answer.gain is not None:
                low = answer.gain.low
                high = answer.gain.high
                case = replace(case, ci_low=low, ci_high=high, risk=answer.risk_of_loss)
            cases.append(case)
    return cases


def _case(rule: str, model: Judged, layer: Choice) -> Case:
    return Case(rule, model.family, model.model, layer, model.gain(layer), model.share(layer))


def nearest(depth: float, n_blocks: int) -> int:
    """Return the layer at a depth; of two equally near the later one.

    >>> nearest(0.8, 24), nearest(0.75, 6)
    (19, 5)
    """
    return int(np.floor(depth * n_blocks + 0.5))


def chosen_depth(models: Sequence[Judged]) -> float:
    """Return the fixed depth that recovers most on average over the families of these models."""
    families = sorted({m.family for m in models})

    def mean_share(depth: float) -> float:
        by_family = [
            [m.share(nearest(depth, m.n_blocks)) for m in models if m.family == f] for f in families
        ]
        return float(np.mean([np.mean(shares) for shares in by_family]))

    return max((round(0.05 * k, 2) for k in range(1, 21)), key=mean_share)


def lowest_per_task(model: Judged, metric: str) -> dict[str, int]:
    """Choose as the paper does: for each task the layer with the lowest metric on its own data,
    among the layers with a score; no tasks where fewer than ten have values."""
    try:
        values = metric_values(model.model, dataset="mteb", metric=ATLAS_METRICS[metric])
    except LayerscopeError:
        return {}
    lowest = {}
    for task, rows in values.groupby("task"):
        name = str(task)
        if name in model.gains.index:
            scored = model.gains.loc[name].dropna().index
            rows = rows[rows["layer"].isin(scored)]
            if len(rows):
                lowest[name] = int(rows["layer"].to_numpy()[int(rows["value"].to_numpy().argmin())])
    return lowest if len(lowest) >= 10 else {}


def compare(models: Sequence[Judged]) -> list[Case]:
    """Return the cases of all rules on all models."""
    families = {m.family for m in models}
    depths = {f: chosen_depth([m for m in models if m.family != f]) for f in families}
    cases = []
    for model in models:
        evidence = published_evidence(model.model)
        blocks = model.n_blocks
        choices: dict[str, Choice] = {"last": blocks}
        for depth in DEPTHS:
            choices[f"fixed_depth:{depth:g}"] = nearest(depth, blocks)
        fitted = nearest(depths[model.family], blocks)
        choices["fixed_depth, chosen on the other families"] = fitted
        for metric in ATLAS_METRICS:
            name = "lowest_curvature[signed]" if metric == "curvature" else f"lowest_{metric}"
            choices[name] = apply_rule(f"lowest_{metric}", evidence).layer
        # of the absolute cosine: the largest signed angle
        largest = int(evidence.curves["curvature"].value.argmax())
        choices["lowest_curvature[absolute]"] = largest
        for metric in PER_TASK_METRICS:
            if by_task := lowest_per_task(model, metric):
                choices[f"lowest_{metric}, per task"] = by_task
        cases += [_case(rule, model, layer) for rule, layer in choices.items()]
    cases += evidence_cases(models)
    for model in models:
        best = max(range(model.n_blocks + 1), key=model.gain)
        cases.append(_case("best single layer (needs labels)", model, best))
    return cases


def summarize(cases: Sequence[Case], families: Sequence[str]) -> pd.DataFrame:
    """Return a row per rule: share of the headroom and worst model by family, and over all families
    with equal weight."""
    table = pd.DataFrame([vars(case) for case in cases])
    rows = []
    for rule, group in table.groupby("rule", sort=False):
        row: dict[str, Any] = {"rule": rule}
        means = group.groupby("family")["share"].mean()
        worst = group.groupby("family")["gain"].min()
        for family in families:
            row[family] = means.get(family)
            row[f"{family} worst"] = worst.get(family)
        row["families"] = len(means)
        row["mean"] = means.mean()
        row["worst"] = group["gain"].min()
        rows.append(row)
    return pd.DataFrame(rows)


def coverage(cases: Sequence[Case]) -> dict[str, float]:
    """Return the shares of models and of families whose gain lies in the 95 % interval, and the
    share of losses beside the mean stated risk."""
    table = pd.DataFrame([vars(case) for case in cases])
    forecast = table[table["ci_low"].notna()]
    inside = forecast["gain"].between(forecast["ci_low"], forecast["ci_high"])
    return {
        "models": float(len(forecast)),
        "covered": float(inside.mean()),
        "covered_by_family": float(inside.groupby(forecast["family"]).mean().mean()),
        "mean_risk": float(forecast["risk"].mean()),
        "lost": float((forecast["gain"] < 0).mean()),
        "abstained": float(table["abstained"].sum()),
    }
