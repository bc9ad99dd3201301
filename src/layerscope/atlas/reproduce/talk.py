"""The authors' talk: "the layer with the lowest entropy gives 5 to 10 %" and "try 20 to 70 % depth", on every scored model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerscope.atlas.queries import metric_values, select_scores
from layerscope.atlas.reproduce.base import Item, Row, highest, score_means
from layerscope.core.charts import Chart, Line
from layerscope.correlation import same_tasks

MODELS = [
    "Pythia-14m",
    "Pythia-70m",
    "Pythia-160m",
    "Pythia-410m",
    "mamba-370m",
    "bert-base",
    "LLM2Vec-mntp-unsup-simcse",
]  # those with scores and metrics at nearly every layer
ENTROPIES = {"entropy_prompt": "prompt", "entropy_dataset": "dataset"}
LEAST, MOST = 5.0, 10.0  # per cent of the last layer's score
SHALLOW, DEEP = 0.2, 0.7


def lowest_entropy_gain(model: str, metric: str, convention: str) -> tuple[int, float, float]:
    """The layer with the lowest entropy on wikitext among those with scores; its gain over the last in points and per cent."""
    scores = score_means(model, convention, fair=True).set_index("layer")["score"]
    values = metric_values(model, "wikitext", metric).set_index("layer")["value"]
    layer = int(values.reindex(scores.index).dropna().idxmin())  # type: ignore[call-overload]
    last = float(scores.loc[scores.index.max()])
    gain = float(scores.loc[layer]) - last
    return layer, gain, 100 * gain / last


def best_depths(model: str, convention: str) -> np.ndarray:
    """The depth of every task's best layer, on the tasks that all kept layers have."""
    table = same_tasks(select_scores(model, convention)).sort_values(["task", "layer"])
    return table.loc[table.groupby("task")["score"].idxmax(), "depth"].to_numpy(float)


def rows(convention: str) -> Iterator[Row]:
    """Per model and entropy the gain of the rule; per model where the best layer lies and what a layer of that range gives."""
    relative: dict[str, list[float]] = {metric: [] for metric in ENTROPIES}
    within, ahead = 0, 0
    for model in MODELS:
        means = score_means(model, convention, fair=True)
        tasks = int(means["tasks"].iloc[0])
        for metric, name in ENTROPIES.items():
            layer, points, share = lowest_entropy_gain(model, metric, convention)
            relative[metric].append(share)
            note = (
                f"layer {layer} has the lowest; {points:+.2f} points; claim: 5 to 10 % over the last layer, judged as at least 5"
            )
            yield Row(model, f"lowest {name} entropy: gain in %", share, share >= LEAST, note, tasks)
        top, last = highest(means, "score"), float(highest(means, "layer")["score"])
        depth, depths = float(top["depth"]), best_depths(model, convention)
        inside = SHALLOW <= depth <= DEEP
        within += inside
        share = float(((depths >= SHALLOW) & (depths <= DEEP)).mean())
        note = f"layer {int(top['layer'])}; {share:.0%} of the tasks have their best layer there; claim: between 0.2 and 0.7"
        yield Row(model, "depth of the best mean", depth, inside, note, tasks)
        range_ = means[(means["depth"] >= SHALLOW) & (means["depth"] <= DEEP)]["score"]
        gain = float(range_.mean()) - last
        ahead += gain > 0
        note = f"mean of the {len(range_)} layers there − the last, in points; the worst of them {range_.min() - last:+.2f}"
        yield Row(model, "any layer of 0.2 to 0.7", gain, gain > 0, note, tasks)
    for metric, name in ENTROPIES.items():
        gains = np.array(relative[metric])
        count = int((gains >= LEAST).sum())
        note = (
            f"of {len(MODELS)} models gain at least 5 %, {int((gains < 0).sum())} lose; from {gains.min():+.1f} "
            f"to {gains.max():+.1f} %; it depends on the model and on which entropy is meant, which the talk does not say"
        )
        yield Row("all", f"lowest {name} entropy: models", float(count), count == len(MODELS), note)
    note = f"of {len(MODELS)} models have their best mean at depth 0.2 to 0.7; it depends on the model: see the rows above"
    yield Row("all", "best mean at 0.2 to 0.7: models", float(within), within == len(MODELS), note)
    note = (
        f"of {len(MODELS)} models are better there on average than at the last layer; it depends on the model, and the range "
        "does not say which of its layers"
    )
    yield Row("all", "0.2 to 0.7 beats the last: models", float(ahead), ahead == len(MODELS), note)


def charts(convention: str) -> list[Chart]:
    """The gain of the two rules by model, and where each model's best layer lies."""
    gains = [
        Line(f"lowest {name} entropy", MODELS, [lowest_entropy_gain(model, metric, convention)[2] for model in MODELS])
        for metric, name in ENTROPIES.items()
    ]
    tops = [float(highest(score_means(model, convention, fair=True), "score")["depth"]) for model in MODELS]
    return [
        Chart("Gain over the last layer", gains, "% of its score", x="", bars=True, level=(LEAST, "5 %: the talk's lower end")),
        Chart("Depth of the best mean score", [Line(convention, MODELS, tops)], "layer / blocks", x="", bars=True),
    ]


ITEM = Item(
    "talk",
    "The talk: two rules of thumb",
    "The layer with the lowest entropy gives 5 to 10 % over the last; the layers to try are at 20 to 70 % of the depth.",
    rows,
    charts,
)
