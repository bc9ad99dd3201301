"""Figures 3, 8 and 9: correlations of the published metrics with the published scores, Pythia-410M
and BERT.

Each claim is judged three times: on the layer means of the figure's model, as the paper does; on
the mean over that model's tasks; and over families of models (`correlation.pooled`). A verdict
names the one that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import pandas as pd

from layerscope.core.charts import Chart
from layerscope.core.statistics import INTERVAL, Interval
from layerscope_paper.atlas.overlay import PROFILE_METRICS
from layerscope_paper.atlas.queries import correlation_tables
from layerscope_paper.atlas.reproduce.base import (
    ABSOLUTE,
    ESTIMATED,
    SIGNED,
    Item,
    Row,
    named,
)
from layerscope_paper.correlation import Correlations, correlate, over_models
from layerscope_paper.correlation.adjust import holm
from layerscope_paper.correlation.charts import correlation_chart
from layerscope_paper.correlation.maths import RELATED

ORDER = list(PROFILE_METRICS)
SHORT = {
    "entropy_prompt": "prompt\nentropy",
    "entropy_dataset": "dataset\nentropy",
    "curvature": "curvature\n(absolute)",
    "infonce": "InfoNCE",
    "lidar": "LiDAR",
    "dime": "DiME",
}


MEASURES = ("spearman", "kendall", "dcor")
_BY_NULL = {"random phase": "p_phase", "permuted increments": "p_increments"}


# every final model with scores at five layers or more, and metrics; four families
EVERY_MODEL = (
    "Pythia-14m",
    "Pythia-70m",
    "Pythia-160m",
    "Pythia-410m",
    "bert-base",
    "mamba-130m",
    "mamba-370m",
    "LLM2Vec-mntp",
    "LLM2Vec-mntp-unsup-simcse",
)
_DRAWS = 199  # surrogates behind each model's normal score: nine models make up for it


@lru_cache(maxsize=16)
def model_correlations(model: str, convention: str, measures: tuple[str, ...]) -> Correlations:
    """Return correlations of layer means, of single tasks and of their mean. Callers must not
    change them."""
    tables = correlation_tables(model, convention)
    return correlate(tables.metrics, tables.scores, measures=measures)


def layer_correlations(model: str, convention: str, measures: tuple[str, ...]) -> pd.DataFrame:
    """Return a row per metric and measure: one point per layer, means over the same tasks."""
    return model_correlations(model, convention, measures).layers


def power_of(
    model: str, convention: str, measures: tuple[str, ...], measure: str, metric: str | None = None
) -> tuple[float, str]:
    """Return the power of the test of a metric (without `metric` the smallest), as a number and in
    words."""
    powers = model_correlations(model, convention, measures).facts["power"][measure]
    power = min(powers.values()) if metric is None else float(powers[metric])
    return power, f"power {power:.0%} at r = {RELATED}"


@lru_cache(maxsize=4)
def models_together(convention: str) -> pd.DataFrame:
    """Return the test over families of models, one row per metric and measure."""
    correlations = {}
    families = {}
    for name in EVERY_MODEL:
        tables = correlation_tables(name, convention)
        correlations[name] = correlate(
            tables.metrics[tables.metrics["metric"].isin(ORDER)],
            tables.scores,
            measures=["dcor", "spearman"],
            surrogates=_DRAWS,
            bootstrap=100,
        )
        families[name] = tables.facts["family"]
    return over_models(correlations, families).table


def tasks_row(model: str, convention: str, measures: tuple[str, ...], measure: str) -> Row:
    """Return the number of metrics beyond chance in the mean over the tasks of one model."""
    table = model_correlations(model, convention, measures).over_tasks
    table = table[table["measure"] == measure]
    count, note = beyond_chance(table)
    values = ", ".join(
        f"{named(str(row.metric))} {row.value:.2f} ({row.p_adjusted:.2f})"
        for row in table.itertuples()
    )
    note = f"mean of single tasks, drawn together: {values}; {note}; claim: all of them"
    return Row(
        model,
        f"{measure} over tasks: beyond chance",
        count,
        count == len(ORDER),
        note,
        int(table["tasks"].max()),
        power=None,
    )


def models_row(convention: str, measure: str) -> Row:
    """Return the number of metrics beyond chance over families of models."""
    table = models_together(convention)
    table = table[table["measure"] == measure]
    count = int((table["p_adjusted"] < 0.05).sum())
    values = ", ".join(
        f"{named(str(row.metric))} z {row.z:+.2f} (p {row.p:.2f}, Holm {row.p_adjusted:.2f})"
        for row in table.itertuples()
    )
    note = (
        f"t over {int(table['families'].max())} families of {len(EVERY_MODEL)} models: {values}. "
        "With so few families only a relation that holds in each of them can be found; claim: all "
        "of them"
    )
    return Row(
        f"{len(EVERY_MODEL)} models",
        f"{measure} over models: beyond chance",
        count,
        count == len(ORDER),
        note,
        power=None,
    )


def pick(table: pd.DataFrame, metric: str, measure: str) -> pd.Series:
    """Return the row of one metric and measure."""
    return table[(table["metric"] == metric) & (table["measure"] == measure)].iloc[0]


def describe(row: pd.Series) -> str:
    """Return interval, chance level and p in words."""
    return (
        f"95 %{Interval.from_row(row).ends(2, signed=False)}; unrelated curves as smooth give "
        f"{row['null_mean']:.2f} (95 % below {row['null_95']:.2f}); p = {row['p_phase']:.3f} by "
        f"random phase, {row['p_increments']:.3f} by permuted increments; for all metrics "
        f"{row['p_adjusted']:.3f}"
    )


def beyond_chance(table: pd.DataFrame) -> tuple[int, str]:
    """Return the number of metrics beyond chance by both nulls, corrected for all metrics; and, in
    words, the numbers by each null alone (Holm)."""
    alone = {
        name: int((holm(table[column].to_numpy(float)) < 0.05).sum())
        for name, column in _BY_NULL.items()
    }
    counts = ", ".join(f"{count} by {name} alone" for name, count in alone.items())
    note = f"of {len(table)} metrics, p < 0.05 by both nulls; {counts}"
    return int((table["p_adjusted"] < 0.05).sum()), note


def bars(model: str, convention: str, measure: str, title: str) -> Chart:
    """Return a chart with one bar per metric, its interval, and the level of chance."""
    measures = ("dcor",) if measure == "dcor" else MEASURES
    table = layer_correlations(model, convention, measures)
    rows = table[table["measure"] == measure].set_index("metric").loc[ORDER]
    names = [SHORT[metric] for metric in ORDER]
    return correlation_chart(title, f"{model}, {convention}", names, rows)


def distance_row(model: str, convention: str, measures: tuple[str, ...], metric: str) -> Row:
    """Return one distance correlation of the layer means."""
    row = pick(layer_correlations(model, convention, measures), metric, "dcor")
    power, words = power_of(model, convention, measures, "dcor", metric)
    note = f"{describe(row)}; claim: strong, judged as beyond chance; {words}"
    beyond = bool(row["p_adjusted"] < 0.05)
    tasks = int(row["tasks"])
    value = float(row["value"])
    return Row(model, f"dcor {named(metric)}", value, beyond, note, tasks, power=power)


def distance_rows(model: str, convention: str, measures: tuple[str, ...]) -> Iterator[Row]:
    """Yield six distance correlations, and the number beyond chance: of the layer means, and in the
    mean over tasks."""
    for metric in ORDER:
        yield distance_row(model, convention, measures, metric)
    table = layer_correlations(model, convention, measures)
    count, note = beyond_chance(table[table["measure"] == "dcor"])
    power, words = power_of(model, convention, measures, "dcor")
    note = f"{note}; claim: all of them; {words}"
    yield Row(model, "dcor: beyond chance", float(count), count == len(ORDER), note, power=power)
    yield tasks_row(model, convention, measures, "dcor")


def charts_of(model: str, titles: dict[str, str]) -> Callable[[str], list[Chart]]:
    """Return a function that draws one chart per measure under a convention."""
    return lambda convention: [
        bars(model, convention, measure, title) for measure, title in titles.items()
    ]


MODEL_3 = "Pythia-410m"
STRONGEST_3 = {"curvature", "dime", "infonce"}


def _fig3_rows(convention: str) -> Iterator[Row]:
    """Yield six correlations, and the two claims about their order."""
    yield from distance_rows(MODEL_3, convention, ("dcor",))
    yield models_row(convention, "dcor")
    table = layer_correlations(MODEL_3, convention, ("dcor",))
    ranked = table.sort_values("value", ascending=False)
    is_dime = ranked["metric"] == "dime"
    margin = float(ranked[is_dime]["value"].iloc[0] - ranked[~is_dime]["value"].max())
    leaders = ", then ".join(
        f"{row.metric} ({row.value:.4f})" for row in ranked.iloc[:2].itertuples()
    )
    note = f"DiME − the best other; the order is {leaders}: a difference far inside the intervals"
    yield Row(MODEL_3, "dcor: DiME ahead by", margin, margin > 0, note)
    top = ranked["metric"].iloc[:3].tolist()
    note = f"of curvature, DiME and InfoNCE among the first three, which are {', '.join(top)}"
    count = float(len(STRONGEST_3 & set(top)))
    yield Row(MODEL_3, "dcor: named ones in the top 3", count, set(top) == STRONGEST_3, note)


FIG3 = Item(
    "fig3",
    "Figure 3: distance correlation of metrics with scores, Pythia-410M",
    (
        "All metrics are strongly related to the scores; DiME most, curvature, DiME and InfoNCE "
        "stand out."
    ),
    _fig3_rows,
    charts_of(MODEL_3, {"dcor": "Distance correlation with the mean score, one point per layer"}),
)


MODEL_8 = "Pythia-410m"


def _fig8_rows(convention: str) -> Iterator[Row]:
    """Yield eighteen correlations, whose signs are the claim. A sign within chance supports
    nothing."""
    table = layer_correlations(MODEL_8, convention, MEASURES)
    for measure in MEASURES:
        for metric in ORDER:
            if measure == "dcor":
                yield distance_row(MODEL_8, convention, MEASURES, metric)
                continue
            row = pick(table, metric, measure)
            yield _sign_row(convention, metric, measure, named(metric), row)
            if metric == ABSOLUTE:
                yield _sign_row(convention, metric, measure, SIGNED, _reverse(row))
    for measure in ("spearman", "kendall"):
        yield tasks_row(MODEL_8, convention, MEASURES, measure)
    yield models_row(convention, "spearman")


def _sign_row(convention: str, metric: str, measure: str, name: str, row: pd.Series) -> Row:
    """Return the sign of one rank correlation beside the claimed one."""
    power, words = power_of(MODEL_8, convention, MEASURES, measure, metric)
    beyond = bool(row["p_adjusted"] < 0.05)
    value = float(row["value"])
    sign = 1 if metric == "infonce" else -1
    as_claimed = sign * value > 0
    claim = "claim: positive" if sign > 0 else "claim: negative"
    claim += ", and it is" if as_claimed else ", and it is the opposite"
    if not beyond:
        claim += ", but within what chance gives"
    if name == SIGNED:
        claim += f"; the paper's formula, estimated: {ESTIMATED}"
    return Row(
        MODEL_8,
        f"{measure} {name}",
        value,
        beyond and as_claimed,
        f"{describe(row)}; {claim}; {words}",
        int(row["tasks"]),
        power=1.0 if beyond else power,  # a certain sign that is not the claimed one is a finding
    )


def _reverse(row: pd.Series) -> pd.Series:
    """Return a rank correlation with the metric's sign changed: its own sign and the ends of its
    interval change too."""
    ends = dict(zip(INTERVAL, (-row[INTERVAL[1]], -row[INTERVAL[0]]), strict=True))
    return pd.Series({**row, "value": -row["value"], **ends})


FIG8 = Item(
    "fig8",
    "Figure 8: three measures of association, Pythia-410M",
    "All metrics are inversely related to the scores, except InfoNCE, which is positive.",
    _fig8_rows,
    charts_of(
        MODEL_8,
        {
            "spearman": "Spearman's ρ",
            "kendall": "Kendall's τ-b",
            "dcor": "Distance correlation",
        },
    ),
)


MODEL_9 = "bert-base"
STRONGEST_9 = {"lidar", "entropy_dataset"}
MODERATE = 0.4  # the usual lower limit of a "moderate" rank correlation


def _fig9_rows(convention: str) -> Iterator[Row]:
    """Yield distance correlations, the two largest, and the other measures."""
    yield from distance_rows(MODEL_9, convention, MEASURES)
    table = layer_correlations(MODEL_9, convention, MEASURES)
    ranked = table[table["measure"] == "dcor"].sort_values("value", ascending=False)
    top = ranked["metric"].iloc[:2].tolist()
    note = f"of LiDAR and dataset entropy among the first two, which are {' and '.join(top)}"
    count = float(len(STRONGEST_9 & set(top)))
    yield Row(MODEL_9, "dcor: named ones in the top 2", count, set(top) == STRONGEST_9, note)
    for measure in ("spearman", "kendall"):
        rows = table[table["measure"] == measure]
        largest = float(rows["value"].abs().max())
        significant = "some" if (rows["p_adjusted"] < 0.05).any() else "none"
        note = f"largest of the six in size; {significant} with p < 0.05; claim: moderate to strong"
        tasks = int(rows["tasks"].iloc[0])
        name = f"{measure}, largest"
        yield Row(MODEL_9, name, largest, largest >= MODERATE, note, tasks, power=None)


FIG9 = Item(
    "fig9",
    "Figure 9: correlations of metrics with scores, BERT",
    (
        "All metrics are strongly related to the scores, LiDAR and dataset entropy most; other "
        "measures are moderate to strong."
    ),
    _fig9_rows,
    charts_of(MODEL_9, {"dcor": "Distance correlation", "spearman": "Spearman's ρ"}),
)

ITEMS = (FIG3, FIG8, FIG9)
