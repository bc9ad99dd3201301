"""Study `penalties`: training with compressed or spread middle layers.

Trains small autoregressive models of the controlled set on the texts given, with a penalty on the
entropy of the tokens at their middle layers. All models of a seed share first weights and batches,
so differences are paired. Held-out texts are measured with entropies of order 1, which no penalty
uses, and by the rank of a text's second half among all by its first half (`found_again`).

Table: a row per weight, seed, layer and metric (`value`), and `change` rows: the difference to the
models without a penalty, with Student's 95 % interval over seeds.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

import layerscope
from layerscope.choose.consistency import halves
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError
from layerscope.models import wrap
from layerscope.progress import Progress
from layerscope_paper.controlled import Plan, read_texts, train
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import Figure, grid, label_axes
from layerscope_paper.studies.shared.models import Request
from layerscope_paper.studies.shared.numbers import in_short, join_words, student_interval
from layerscope_paper.studies.shared.vectors import reciprocal_ranks, vectors_of

_LEAST_TEXTS = 8
METRICS = ("prompt_entropy", "found_again")
UNITS = {"loss": "nats", "prompt_entropy": "nats", "found_again": "mean reciprocal rank"}


class Penalties(Study):
    """Training with a penalty on the entropy of the middle layers, at several strengths."""

    name = "penalties"
    title = "Training with compressed or spread middle layers"
    models = (0, 0)
    options = (
        Option("weights", [0.05, -0.05], "positive: compress, negative: spread", filled=True),
        Option("seeds", [0, 1, 2], "seeds, one training of each weight each", filled=True),
        Option("steps", 1500, "training steps", least=1),
        Option("batch", 256, "rows of tokens per step", least=2),
        Option("length", 128, "tokens per row", least=8),
        Option("width", 128, "width of the models", least=8),
        Option("blocks", 12, "blocks of the models", least=3),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Train and measure every weight with every seed."""
        options = request.options
        streams = read_texts(request.texts or ())
        if len(streams.held_out_texts) < _LEAST_TEXTS:
            raise LayerscopeError(
                f"{len(streams.held_out_texts)} held-out texts are too few: give 20 times "
                f"{_LEAST_TEXTS} texts or more."
            )
        sizes = {name: options[name] for name in ("steps", "batch", "length", "width", "blocks")}
        blocks = options["blocks"]
        middle = [layer for layer in range(1, blocks + 1) if 1 / 3 <= layer / blocks <= 2 / 3]
        weights = [0.0, *(weight for weight in options["weights"] if weight)]
        rows: list[dict[str, Any]] = []
        bar.begin("training|models", len(weights) * len(options["seeds"]))
        for seed in options["seeds"]:
            for weight in weights:
                plan = Plan(seed=seed, **sizes)
                model, loss = train(
                    "ar", streams, plan, penalty=(weight, middle) if weight else None
                )
                common = {"weight": weight, "seed": seed, "kind": "value"}
                rows.append({**common, "metric": "loss", "value": loss})
                loaded = wrap(model, streams.tokenizer, name=f"weight {weight:g}, seed {seed}")
                rows += [{**common, **row} for row in _measure(request, loaded, streams, bar)]
                bar.advance(1)
        table = pd.DataFrame(rows)
        table = pd.concat([table, changes(table)], ignore_index=True)
        conventions = {
            "penalty": f"weight × mean S_2 of each row's tokens at layers {middle}, in nats",
            "change": "minus the model of the seed without a penalty; Student's 95 % interval",
        }
        return Result(table, verdict(table, middle), conventions)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw a panel per metric: the mean over seeds by layer, a color per weight."""
        figure, axes = grid(1, len(METRICS), 4.2 * len(METRICS), 3.4)
        for axis, metric in zip(axes[0], METRICS, strict=True):
            rows = table[(table["kind"] == "value") & (table["metric"] == metric)]
            for i, (weight, curves) in enumerate(rows.groupby("weight")):
                mean = curves.groupby("layer")["value"].mean()
                axis.plot(mean.index, mean, f"C{i}", label=f"weight {weight:g}")
            axis.legend(fontsize=7, frameon=False)
        label_axes(axes, [f"{metric} ({UNITS[metric]})" for metric in METRICS], x="layer")
        return figure


def _measure(request: Request, model: Any, streams: Any, bar: Progress) -> list[dict[str, Any]]:
    """Return, by layer, prompt entropy of the held-out texts and the ranks of their halves."""
    texts = streams.held_out_texts
    name = "prompt_entropy"
    length = request.options["length"]
    run = layerscope.profile(
        model, texts, metrics=[name], final_norm="raw", max_length=length, progress=False
    )
    rows = [
        {"metric": name, "layer": row["layer"], "value": row["value"]}
        for row in run.curve(name).to_dict(orient="records")
    ]
    first_halves, second_halves = zip(*map(halves, texts), strict=True)
    sides = [
        vectors_of(request, model, side, f"{model.identity['name']}, half {number}", bar)["vectors"]
        for number, side in enumerate((first_halves, second_halves))
    ]
    ranks = reciprocal_ranks(sides[0], sides[1], second_halves).mean(axis=1)
    return rows + [
        {"metric": "found_again", "layer": layer, "value": float(value)}
        for layer, value in enumerate(ranks)
    ]


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """Return differences to weight 0, paired by seed: a row per weight, metric and layer."""
    # a loss has no layer
    wide = table.fillna({"layer": -1}).pivot_table(
        index=["metric", "layer"], columns=["weight", "seed"], values="value"
    )
    rows = []
    for weight in table["weight"].unique():
        if weight == 0:
            continue
        for (metric, layer), change in (wide[weight] - wide[0.0]).iterrows():
            place = {"metric": metric, "layer": layer, "weight": weight}
            interval = student_interval(change.to_numpy(float))
            rows.append({**place, "kind": "change", **interval.columns})
    return pd.DataFrame(rows)


def verdict(table: pd.DataFrame, middle: list[int]) -> list[str]:
    """Describe the effect of each weight on the loss and on the middle layers."""
    changed = table[table["kind"] == "change"]
    better = []
    sentences = []
    for weight in changed["weight"].unique():
        name = f"{'compressing' if weight > 0 else 'spreading'} by {abs(weight):g}"
        rows = changed[changed["weight"] == weight]
        loss = Interval.from_row(rows[rows["metric"] == "loss"].iloc[0])
        phrases = [f"held-out loss {loss} nats"]
        helps = loss.sign < 0
        for metric in METRICS:
            inner = rows[(rows["metric"] == metric) & rows["layer"].isin(middle)]
            largest = inner.iloc[int(inner["value"].abs().to_numpy().argmax())]
            change = Interval.from_row(largest)
            phrases.append(f"{metric} {change} at layer {int(largest['layer'])}")
            helps = helps or (metric == "found_again" and change.sign > 0)
        if helps:
            better.append(name)
        sentences.append(f"{name}: {'; '.join(phrases)}.")
    answer = (
        f"{join_words(better) or 'no strength'} clearly improves the loss or finds texts better"
    )
    return [in_short(answer), *sentences]


STUDY = Penalties()
