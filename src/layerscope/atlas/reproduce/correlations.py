"""Figures 3, 8 and 9: correlations of the published metrics with the published scores, Pythia-410M and BERT.

Each claim is judged three times: on the layer means of the figure's model, as the paper does; on the mean over that model's
tasks; and over families of models (`layerscope.correlation.pooled`). A verdict says which of them it depends on.
"""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from layerscope.atlas.queries import correlation_tables
from layerscope.atlas.reproduce.base import Item, Panel, Row, Series, judge
from layerscope.core.statistics import Interval, holm
from layerscope.correlation import Correlations, correlate, over_models

ORDER = ["entropy_prompt", "entropy_dataset", "curvature", "infonce", "lidar", "dime"]
SHORT = {
    "entropy_prompt": "prompt\nentropy",
    "entropy_dataset": "dataset\nentropy",
    "infonce": "InfoNCE",
    "lidar": "LiDAR",
    "dime": "DiME",
}


_BY_NULL = {"random phase": "p_phase", "permuted increments": "p_increments"}


# every final model with scores at five layers or more, and metrics; four families
EVERY_MODEL = (
    "Pythia-14m", "Pythia-70m", "Pythia-160m", "Pythia-410m", "bert-base", "mamba-130m", "mamba-370m", "LLM2Vec-mntp",
    "LLM2Vec-mntp-unsup-simcse",
)  # fmt: skip
_DRAWS = 199  # surrogates behind each model's normal score: nine models make up for it


@lru_cache(maxsize=16)
def model_correlations(model: str, convention: str, measures: tuple[str, ...]) -> Correlations:
    """Layer means, single tasks and their mean. Not to be changed by callers."""
    tables = correlation_tables(model, convention, "mteb")
    return correlate(tables.metrics, tables.scores, measures=measures)


def layer_correlations(model: str, convention: str, measures: tuple[str, ...]) -> pd.DataFrame:
    """One row per metric and measure: one point per layer, means over the same tasks."""
    return model_correlations(model, convention, measures).layers


@lru_cache(maxsize=4)
def models_together(convention: str, measure: str) -> pd.DataFrame:
    """The test over families of models, one row per metric."""
    found, families = {}, {}
    for name in EVERY_MODEL:
        tables = correlation_tables(name, convention)
        mine = tables.metrics[tables.metrics["metric"].isin(ORDER)]
        found[name] = correlate(mine, tables.scores, measures=[measure], surrogates=_DRAWS, bootstrap=100)
        families[name] = tables.facts["family"]
    return over_models(found, families).table


def tasks_row(item: str, model: str, convention: str, measures: tuple[str, ...], measure: str) -> Row:
    """How many metrics are beyond chance in the mean over the tasks of one model."""
    table = model_correlations(model, convention, measures).over_tasks
    table = table[table["measure"] == measure]
    count, note = beyond_chance(table)
    values = ", ".join(f"{row.metric} {row.value:.2f} (Holm {row.p_adjusted:.2f})" for row in table.itertuples())
    tasks = int(table["tasks"].max())
    note = f"mean of single tasks, drawn together: {values}; {note}; claim: all of them"
    return Row(
        item, model, f"{measure} over tasks: beyond chance", None, count, tasks, convention, judge(count == len(ORDER)), note
    )


def models_row(item: str, convention: str, measure: str) -> Row:
    """How many metrics are beyond chance over families of models."""
    table = models_together(convention, measure)
    count = int((table["p_adjusted"] < 0.05).sum())
    values = ", ".join(f"{row.metric} z {row.z:+.2f} (p {row.p:.2f}, Holm {row.p_adjusted:.2f})" for row in table.itertuples())
    families = int(table["families"].max())
    note = (
        f"t over {families} families of {len(EVERY_MODEL)} models: {values}. With so few families only a relation that holds in "
        "each of them can be found; claim: all of them"
    )
    verdict = judge(count == len(ORDER))
    return Row(
        item, f"{len(EVERY_MODEL)} models", f"{measure} over models: beyond chance", None, count, None, convention, verdict, note
    )


def pick(table: pd.DataFrame, metric: str, measure: str) -> pd.Series:
    """The row of one metric and measure."""
    return table[(table["metric"] == metric) & (table["measure"] == measure)].iloc[0]


def described(row: pd.Series) -> str:
    """Interval, chance level and p in words."""
    return (
        f"95 %{Interval.from_row(row).ends(2, signed=False)}; unrelated curves as smooth give {row['null_mean']:.2f} "
        f"(95 % below {row['null_95']:.2f}); p = {row['p_phase']:.3f} by random phase, {row['p_increments']:.3f} by permuted "
        f"increments; Holm {row['p_adjusted']:.3f}"
    )


def beyond_chance(table: pd.DataFrame) -> tuple[int, str]:
    """How many of the metrics are beyond chance by both nulls after Holm's correction, and by each null alone, in words."""
    alone = {name: int((holm(table[column].to_numpy(float)) < 0.05).sum()) for name, column in _BY_NULL.items()}
    each = ", ".join(f"{count} by {name} alone" for name, count in alone.items())
    return int((table["p_adjusted"] < 0.05).sum()), f"of {len(table)} metrics, Holm p < 0.05 by both nulls; {each}"


def bars(model: str, convention: str, measure: str, title: str) -> Panel:
    """One bar per metric, its interval, and what chance gives."""
    table = layer_correlations(model, convention, (measure,) if measure == "dcor" else ("spearman", "kendall", "dcor"))
    chosen = [pick(table, metric, measure) for metric in ORDER]
    names = [SHORT.get(metric, metric) for metric in ORDER]
    series = Series(f"{model}, {convention}", names, [float(row["value"]) for row in chosen])
    whiskers = [(found.low, found.high) for found in map(Interval.from_row, chosen)]
    level = max(float(row["null_95"]) for row in chosen)
    return Panel(
        title, "", "", [series], bars=True, whiskers=whiskers, level=(level, "95 % of unrelated smooth curves lie below")
    )


MODEL_3 = "Pythia-410m"
STRONGEST_3 = {"curvature", "dime", "infonce"}


def _fig3_rows(convention: str) -> list[Row]:
    """Six correlations, and the two claims about their order."""
    table = layer_correlations(MODEL_3, convention, ("dcor",))
    rows = []
    for metric in ORDER:
        row = pick(table, metric, "dcor")
        strong = bool(row["p_adjusted"] < 0.05)
        note = described(row) + "; claim: strong, judged as beyond chance"
        rows.append(_fig3_row(f"dcor {metric}", float(row["value"]), int(row["tasks"]), convention, judge(strong), note))
    count, note = beyond_chance(table)
    note += "; claim: all of them"
    rows.append(_fig3_row("dcor: beyond chance", float(count), None, convention, judge(count == len(ORDER)), note))
    rows += [tasks_row("fig3", MODEL_3, convention, ("dcor",), "dcor"), models_row("fig3", convention, "dcor")]
    ranked = table.sort_values("value", ascending=False)
    first, second = ranked.iloc[0], ranked.iloc[1]
    margin = float(pick(table, "dime", "dcor")["value"] - ranked[ranked["metric"] != "dime"]["value"].max())
    leaders = f"{first['metric']} ({first['value']:.4f}), then {second['metric']} ({second['value']:.4f})"
    note = f"DiME − the best other; the order is {leaders}: a difference far inside the intervals"
    rows.append(_fig3_row("dcor: DiME ahead by", margin, None, convention, judge(margin > 0), note))
    top = set(ranked["metric"].iloc[:3])
    note = f"of curvature, DiME and InfoNCE among the first three, which are {', '.join(ranked['metric'].iloc[:3])}"
    rows.append(
        _fig3_row(
            "dcor: named ones in the top 3", float(len(top & STRONGEST_3)), None, convention, judge(top == STRONGEST_3), note
        )
    )
    return rows


def _fig3_row(column: str, ours: float, tasks: int | None, convention: str, verdict: str, note: str) -> Row:
    return Row("fig3", MODEL_3, column, None, ours, tasks, convention, verdict, note)


def _fig3_panels(convention: str) -> list[Panel]:
    """One panel."""
    return [bars(MODEL_3, convention, "dcor", "Distance correlation with the mean score, one point per layer")]


FIG3 = Item(
    "fig3",
    "Figure 3: distance correlation of metrics with scores, Pythia-410M",
    "All metrics are strongly related to the scores; DiME most, curvature, DiME and InfoNCE stand out.",
    _fig3_rows,
    _fig3_panels,
)


MODEL_8 = "Pythia-410m"
MEASURES = ("spearman", "kendall", "dcor")


def _fig8_rows(convention: str) -> list[Row]:
    """Eighteen correlations: the signs are the claim. A sign within what chance gives supports nothing."""
    table = layer_correlations(MODEL_8, convention, MEASURES)
    rows = []
    for measure in MEASURES:
        for metric in ORDER:
            row = pick(table, metric, measure)
            beyond = row["p_adjusted"] < 0.05
            if measure == "dcor":
                holds, claim = beyond, "claim: strong, judged as beyond chance"
            else:
                sign = 1 if metric == "infonce" else -1
                as_claimed = sign * row["value"] > 0
                holds = beyond and as_claimed
                claim = "claim: positive" if sign > 0 else "claim: negative"
                claim += ", and it is" if as_claimed else ", and it is the opposite"
                claim += "" if beyond else ", but within what chance gives"
            note = f"{described(row)}; {claim}"
            ours, tasks = float(row["value"]), int(row["tasks"])
            rows.append(Row("fig8", MODEL_8, f"{measure} {metric}", None, ours, tasks, convention, judge(bool(holds)), note))
    rows += [tasks_row("fig8", MODEL_8, convention, MEASURES, measure) for measure in ("spearman", "kendall")]
    return [*rows, models_row("fig8", convention, "spearman")]


def _fig8_panels(convention: str) -> list[Panel]:
    """One panel per measure."""
    titles = {"spearman": "Spearman's ρ", "kendall": "Kendall's τ-b", "dcor": "Distance correlation"}
    return [bars(MODEL_8, convention, measure, title) for measure, title in titles.items()]


FIG8 = Item(
    "fig8",
    "Figure 8: three measures of association, Pythia-410M",
    "All metrics are inversely related to the scores, except InfoNCE, which is positive.",
    _fig8_rows,
    _fig8_panels,
)


MODEL_9 = "bert-base"
STRONGEST_9 = {"lidar", "entropy_dataset"}
MODERATE = 0.4  # the usual lower limit of a "moderate" rank correlation


def _fig9_rows(convention: str) -> list[Row]:
    """Distance correlations, which two lead, and the other measures."""
    table = layer_correlations(MODEL_9, convention, MEASURES)
    rows = []
    for metric in ORDER:
        row = pick(table, metric, "dcor")
        note = described(row) + "; claim: strong, judged as beyond chance"
        strong = bool(row["p_adjusted"] < 0.05)
        rows.append(_fig9_row(f"dcor {metric}", float(row["value"]), int(row["tasks"]), convention, judge(strong), note))
    count, note = beyond_chance(table[table["measure"] == "dcor"])
    note += "; claim: all of them"
    rows.append(_fig9_row("dcor: beyond chance", float(count), None, convention, judge(count == len(ORDER)), note))
    rows.append(tasks_row("fig9", MODEL_9, convention, MEASURES, "dcor"))
    ranked = table[table["measure"] == "dcor"].sort_values("value", ascending=False)["metric"].tolist()
    named = float(len(STRONGEST_9 & set(ranked[:2])))
    note = f"of LiDAR and dataset entropy among the first two, which are {ranked[0]} and {ranked[1]}"
    rows.append(_fig9_row("dcor: named ones in the top 2", named, None, convention, judge(set(ranked[:2]) == STRONGEST_9), note))
    for measure in ("spearman", "kendall"):
        mine = table[table["measure"] == measure]
        largest = float(mine["value"].abs().max())
        found_some = bool((mine["p_adjusted"] < 0.05).any())
        note = f"largest of the six in size; {'some' if found_some else 'none'} with Holm p < 0.05; claim: moderate to strong"
        rows.append(
            _fig9_row(f"{measure}, largest", largest, int(mine["tasks"].iloc[0]), convention, judge(largest >= MODERATE), note)
        )
    return rows


def _fig9_row(column: str, ours: float, tasks: int | None, convention: str, verdict: str, note: str) -> Row:
    return Row("fig9", MODEL_9, column, None, ours, tasks, convention, verdict, note)


def _fig9_panels(convention: str) -> list[Panel]:
    """One panel per measure."""
    titles = {"dcor": "Distance correlation", "spearman": "Spearman's ρ"}
    # the full set of measures was computed for the rows: read the same table
    layer_correlations(MODEL_9, convention, MEASURES)
    return [bars(MODEL_9, convention, measure, title) for measure, title in titles.items()]


FIG9 = Item(
    "fig9",
    "Figure 9: correlations of metrics with scores, BERT",
    "All metrics are strongly related to the scores, LiDAR and dataset entropy most; other measures are moderate to strong.",
    _fig9_rows,
    _fig9_panels,
)

ITEMS = (FIG3, FIG8, FIG9)
