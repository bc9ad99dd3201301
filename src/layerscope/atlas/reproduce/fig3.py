"""Figure 3: distance correlation of metrics with scores, Pythia-410M."""

from __future__ import annotations

from layerscope.atlas.reproduce.associations import ORDER, bars, described, layer_correlations, pick
from layerscope.atlas.reproduce.base import Item, Panel, Row, judge

MODEL = "Pythia-410m"
STRONGEST = {"curvature", "dime", "infonce"}


def rows(convention: str) -> list[Row]:
    """Six correlations, and the two claims about their order."""
    table = layer_correlations(MODEL, convention, ("dcor",))
    found = []
    for metric in ORDER:
        row = pick(table, metric, "dcor")
        strong = row["p_adjusted"] < 0.05 and row["value"] > row["null_95"]
        note = described(row) + "; claim: strong, judged as beyond chance"
        found.append(_row(f"dcor {metric}", float(row["value"]), int(row["tasks"]), convention, judge(strong), note))
    ranked = table.sort_values("value", ascending=False)
    first, second = ranked.iloc[0], ranked.iloc[1]
    margin = float(pick(table, "dime", "dcor")["value"] - ranked[ranked["metric"] != "dime"]["value"].max())
    leaders = f"{first['metric']} ({first['value']:.4f}), then {second['metric']} ({second['value']:.4f})"
    note = f"DiME − the best other; the order is {leaders}: a difference far inside the intervals"
    found.append(_row("dcor: DiME ahead by", margin, None, convention, judge(margin > 0), note))
    top = set(ranked["metric"].iloc[:3])
    note = f"of curvature, DiME and InfoNCE among the first three, which are {', '.join(ranked['metric'].iloc[:3])}"
    found.append(
        _row("dcor: named ones in the top 3", float(len(top & STRONGEST)), None, convention, judge(top == STRONGEST), note)
    )
    return found


def _row(column: str, ours: float, tasks: int | None, convention: str, verdict: str, note: str) -> Row:
    return Row("fig3", MODEL, column, None, ours, tasks, convention, verdict, note)


def panels(convention: str) -> list[Panel]:
    """One panel."""
    return [bars(MODEL, convention, "dcor", "Distance correlation with the mean score, one point per layer")]


ITEM = Item(
    "fig3",
    "Figure 3: distance correlation of metrics with scores, Pythia-410M",
    "All metrics are strongly related to the scores; DiME most, curvature, DiME and InfoNCE stand out.",
    rows,
    panels,
)
