"""Figure 9: correlations of metrics with scores, BERT."""

from __future__ import annotations

from layerscope.atlas.reproduce.associations import ORDER, bars, described, layer_correlations, pick
from layerscope.atlas.reproduce.base import Item, Panel, Row, judge

MODEL = "bert-base"
MEASURES = ("spearman", "kendall", "dcor")
STRONGEST = {"lidar", "entropy_dataset"}
MODERATE = 0.4  # the usual lower limit of a "moderate" rank correlation


def rows(convention: str) -> list[Row]:
    """Distance correlations, which two lead, and the other measures."""
    table = layer_correlations(MODEL, convention, MEASURES)
    found = []
    for metric in ORDER:
        row = pick(table, metric, "dcor")
        note = described(row) + "; claim: strong, judged as beyond chance"
        strong = bool(row["p_adjusted"] < 0.05)
        found.append(_row(f"dcor {metric}", float(row["value"]), int(row["tasks"]), convention, judge(strong), note))
    ranked = table[table["measure"] == "dcor"].sort_values("value", ascending=False)["metric"].tolist()
    held = float(len(STRONGEST & set(ranked[:2])))
    note = f"of LiDAR and dataset entropy among the first two, which are {ranked[0]} and {ranked[1]}"
    found.append(_row("dcor: named ones in the top 2", held, None, convention, judge(set(ranked[:2]) == STRONGEST), note))
    for measure in ("spearman", "kendall"):
        mine = table[table["measure"] == measure]
        largest = float(mine["value"].abs().max())
        found_some = bool((mine["p_adjusted"] < 0.05).any())
        note = f"largest of the six in size; {'some' if found_some else 'none'} with Holm p < 0.05; claim: moderate to strong"
        found.append(
            _row(f"{measure}, largest", largest, int(mine["tasks"].iloc[0]), convention, judge(largest >= MODERATE), note)
        )
    return found


def _row(column: str, ours: float, tasks: int | None, convention: str, verdict: str, note: str) -> Row:
    return Row("fig9", MODEL, column, None, ours, tasks, convention, verdict, note)


def panels(convention: str) -> list[Panel]:
    """One panel per measure."""
    titles = {"dcor": "Distance correlation", "spearman": "Spearman's ρ"}
    # the full set of measures was computed for the rows: read the same table
    layer_correlations(MODEL, convention, MEASURES)
    return [bars(MODEL, convention, measure, title) for measure, title in titles.items()]


ITEM = Item(
    "fig9",
    "Figure 9: correlations of metrics with scores, BERT",
    "All metrics are strongly related to the scores, LiDAR and dataset entropy most; other measures are moderate to strong.",
    rows,
    panels,
)
