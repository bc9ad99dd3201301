"""Figure 8: Spearman, Kendall and distance correlation, Pythia-410M."""

from __future__ import annotations

from layerscope.atlas.reproduce.associations import ORDER, bars, described, layer_correlations, pick
from layerscope.atlas.reproduce.base import Item, Panel, Row, judge

MODEL = "Pythia-410m"
MEASURES = ("spearman", "kendall", "dcor")


def rows(convention: str) -> list[Row]:
    """Eighteen correlations: the signs are the claim."""
    table = layer_correlations(MODEL, convention, MEASURES)
    found = []
    for measure in MEASURES:
        for metric in ORDER:
            row = pick(table, metric, measure)
            beyond = row["p_adjusted"] < 0.05
            if measure == "dcor":
                holds, claim = beyond, "claim: strong, judged as beyond chance"
            else:
                sign = 1 if metric == "infonce" else -1
                holds = beyond and sign * row["value"] > 0
                claim = "claim: positive" if sign > 0 else "claim: negative"
            note = f"{described(row)}; {claim}"
            ours, tasks = float(row["value"]), int(row["tasks"])
            found.append(Row("fig8", MODEL, f"{measure} {metric}", None, ours, tasks, convention, judge(bool(holds)), note))
    return found


def panels(convention: str) -> list[Panel]:
    """One panel per measure."""
    titles = {"spearman": "Spearman's ρ", "kendall": "Kendall's τ-b", "dcor": "Distance correlation"}
    return [bars(MODEL, convention, measure, title) for measure, title in titles.items()]


ITEM = Item(
    "fig8",
    "Figure 8: three measures of association, Pythia-410M",
    "All metrics are inversely related to the scores, except InfoNCE, which is positive.",
    rows,
    panels,
)
