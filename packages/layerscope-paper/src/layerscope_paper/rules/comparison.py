"""Every rule on every family of the atlas. No rule is fitted on the family that it is judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.choose.label_free import Evidence, apply_rule, choose_by_evidence
from layerscope.errors import LayerscopeError
from layerscope_paper.atlas.evidence import ATLAS_METRICS, published_evidence
from layerscope_paper.rules.gains import Judged, fit, valley_depths

Chosen = int | Mapping[str, int] | None
# What can be used without labels; the depths are those that a reader of the paper might try.
DEPTHS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
PAPER_WAY = ("dime", "infonce", "dataset_entropy")


@dataclass(frozen=True)
class Case:
    """One rule on one model: what it chose, what that gained, and the interval that it forecast, if
    any."""

    rule: str
    family: str
    model: str
    layer: Chosen
    gain: float
    share: float
    ci_low: float | None = None
    ci_high: float | None = None
    risk: float | None = None
    abstained: bool = False


def evidence_cases(models: Sequence[Judged]) -> list[Case]:
    """Our rule, with its curves and its interval refitted without each family."""
    depths = valley_depths(list(models))
    cases = []
    for family in sorted({m.family for m in models}):
        prior = fit([m for m in models if m.family != family], depths)
        for model in (m for m in models if m.family == family):
            answer = choose_by_evidence(published_evidence(model.model), prior)
            low = high = risk = None
            if answer.forecast is not None:
                low, high = answer.forecast.interval(answer.layer)
                risk = answer.forecast.risk(answer.layer)
            outcome = model.gain(answer.layer), model.share(answer.layer)
            cases.append(
                Case(
                    "evidence",
                    family,
                    model.model,
                    answer.layer,
                    *outcome,
                    low,
                    high,
                    risk,
                    answer.abstained,
                )
            )
    return cases


def _cases(rule: str, models: Sequence[Judged], pick: Callable[[Judged], Chosen]) -> list[Case]:
    cases = []
    for model in models:
        layer = pick(model)
        if layer is not None and (isinstance(layer, int) or layer):
            cases.append(
                Case(rule, model.family, model.model, layer, model.gain(layer), model.share(layer))
            )
    return cases


def nearest(depth: float, n_blocks: int) -> int:
    """Return the layer at a depth; of two equally near the later one.

    >>> nearest(0.8, 24), nearest(0.75, 6)
    (19, 5)
    """
    return int(np.floor(depth * n_blocks + 0.5))


def chosen_depth(models: Sequence[Judged]) -> float:
    """The fixed depth that recovers most on average over the families of these models."""
    families = sorted({m.family for m in models})

    def worth(depth: float) -> float:
        own = [
            [m.share(nearest(depth, m.n_blocks)) for m in models if m.family == f] for f in families
        ]
        return float(np.mean([np.mean(shares) for shares in own]))

    return max((round(0.05 * k, 2) for k in range(1, 21)), key=worth)


def lowest_per_task(model: Judged, metric: str) -> dict[str, int]:
    """The paper's way: for each task the layer with the lowest metric on its own data, among the
    layers it was scored at."""
    from layerscope_paper import atlas

    try:
        values = atlas.metric_values(model.model, dataset="mteb", metric=ATLAS_METRICS[metric])
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
    """All rules on all models."""
    read: dict[str, Evidence] = {m.model: published_evidence(m.model) for m in models}
    cases = _cases("last", models, lambda m: m.n_blocks)
    for depth in DEPTHS:
        cases += _cases(f"fixed_depth:{depth:g}", models, lambda m, d=depth: nearest(d, m.n_blocks))  # type: ignore[misc]
    blind = {
        f: chosen_depth([m for m in models if m.family != f]) for f in {m.family for m in models}
    }
    cases += _cases(
        "fixed_depth, chosen on the other families",
        models,
        lambda m: nearest(blind[m.family], m.n_blocks),
    )
    for metric in ATLAS_METRICS:
        rule = f"lowest_{metric}"
        name = rule + ("[signed]" if metric == "curvature" else "")
        cases += _cases(name, models, lambda m, r=rule: apply_rule(r, read[m.model]).layer)  # type: ignore[misc]
    # of the absolute cosine: where the signed angle is largest
    most = lambda m: int(read[m.model].curves["curvature"].value.argmax())  # noqa: E731
    cases += _cases("lowest_curvature[absolute]", models, most)
    for metric in PAPER_WAY:
        name = f"lowest_{metric}, per task"
        cases += _cases(name, models, lambda m, k=metric: lowest_per_task(m, k))  # type: ignore[misc]
    cases += evidence_cases(models)
    one = "best single layer (needs labels)"
    cases += _cases(one, models, lambda m: max(range(m.n_blocks + 1), key=m.gain))
    return cases


def summarize(cases: Sequence[Case], families: Sequence[str]) -> pd.DataFrame:
    """One row per rule: share of the headroom and worst model by family, and over all families with
    equal weight."""
    rows = []
    for rule in dict.fromkeys(c.rule for c in cases):
        row: dict[str, object] = {"rule": rule}
        for family in families:
            own = [c for c in cases if c.rule == rule and c.family == family]
            row[family] = float(np.mean([c.share for c in own])) if own else None
            row[f"{family} worst"] = min(c.gain for c in own) if own else None
        have = [row[f] for f in families if row[f] is not None]
        row["families"] = len(have)
        row["mean"] = float(np.mean([float(str(v)) for v in have]))
        row["worst"] = min(c.gain for c in cases if c.rule == rule)
        rows.append(row)
    return pd.DataFrame(rows)


def coverage(cases: Sequence[Case]) -> dict[str, float]:
    """How often the 95 % interval contained the gain, over models and over families, and losses
    beside the stated risks."""
    promised = [c for c in cases if c.ci_low is not None and c.ci_high is not None]
    inside = {c.model: bool((c.ci_low or 0.0) <= c.gain <= (c.ci_high or 0.0)) for c in promised}
    families = sorted({c.family for c in promised})
    by = [float(np.mean([inside[c.model] for c in promised if c.family == f])) for f in families]
    return {
        "models": float(len(promised)),
        "covered": float(np.mean(list(inside.values()))) if inside else float("nan"),
        "covered_by_family": float(np.mean(by)) if by else float("nan"),
        "mean_risk": float(np.mean([c.risk for c in promised if c.risk is not None]))
        if promised
        else float("nan"),
        "lost": float(np.mean([c.gain < 0 for c in promised])) if promised else float("nan"),
        "abstained": float(sum(c.abstained for c in cases if c.rule == "evidence")),
    }
