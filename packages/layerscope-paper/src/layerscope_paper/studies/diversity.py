"""Study `diversity`: the best layer as a corpus grows more diverse.

Builds nested corpora of one size from the given texts. `topic`: texts of one topic, of two, … of
all (topics are clusters of the words that texts use). `length`: the same texts cut to their first n
words. `duplication`: the same number of texts with fewer and fewer distinct ones among them. On
each it measures every layer without labels: the rank of a text's second half among all by its first
half (`found_again`), dataset entropy of the pooled vectors, and prompt entropy.

Table: a row per aspect (`condition`), level, layer and metric, and `best layer` rows with the
middle 95 % of the best layers of resampled corpora. Figure: a column per aspect, a color per level,
a dot at each best layer. Verdict: the metrics and aspects for which the best layer moves more than
by resampling the texts.

    layerscope-paper study diversity minilm-l6 --max-length 64 --set topics=1,2,4
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
import torch

from layerscope.choose.consistency import halves
from layerscope.core.columns import PLACE, VALUE, names
from layerscope.core.statistics import Interval, bootstrap_rows
from layerscope.errors import DataError
from layerscope.metrics import matrix_entropy
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    color_key,
    draw_levels,
    grid,
    label_axes,
    with_heading,
)
from layerscope_paper.studies.shared.models import Request, canonical, read_specs
from layerscope_paper.studies.shared.numbers import (
    in_short,
    join_words,
    percentile_interval,
    whole_layer,
)
from layerscope_paper.studies.shared.vectors import reciprocal_ranks, vectors_of

ASPECTS = ("topic", "length", "duplication")
# metric: the value of its best layer, and its unit
METRICS = {
    "found_again": ("highest", "mean reciprocal rank"),
    "dataset_entropy": ("highest", "nats"),
    "prompt_entropy": ("lowest", "nats"),
}
COLUMNS = [
    "model",
    "kind",
    "condition",
    "level",
    *names(PLACE),
    "metric",
    "sink",
    "normalization",
    *names(VALUE),
]
_DRAWS = 200
_WORDS = 2000  # the largest vocabulary that topics are formed from
_FEWEST = 8  # texts of a corpus
_TITLES = {"topic": "Topics", "length": "Words kept", "duplication": "Share of copies"}


class Diversity(Study):
    """The best layer on nested corpora by topic, length and duplication."""

    name = "diversity"
    title = "The best layer as a corpus grows more diverse"
    models = (1, 1)
    options = (
        Option(
            "aspects",
            list(ASPECTS),
            "series of corpora to build: topic, length, duplication",
            valid=ASPECTS,
            filled=True,
        ),
        Option(
            "topics",
            [1, 2, 4, 8],
            "nested numbers of topics; the largest is the number of clusters",
            least=1,
            filled=True,
        ),
        Option(
            "lengths",
            [8, 16, 32, 64],
            "words to keep; texts with fewer than the largest are left out",
            least=4,
            filled=True,
        ),
        Option(
            "copies",
            [0.0, 0.5, 0.75, 0.9],
            "shares of texts that are copies of others",
            least=0,
            most=0.95,
            filled=True,
        ),
        Option("size", 0, "texts per corpus; 0: as many as the smallest corpus allows", least=0),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Read each text once, then measure every corpus from these vectors."""
        request = canonical(request)
        spec = read_specs(request.models)[0]
        bar.begin(f"loading {spec.label}|", 1)
        model = spec.open(request)
        texts = list(dict.fromkeys(request.texts or ()))
        corpora, warnings = build_corpora(texts, request.options, request.seed)
        measured = measure_corpora(request, model, corpora, bar)
        table = tabulate(measured, spec.label, model.n_blocks)
        conventions = {
            "models": {spec.label: model.identity},
            "corpora": {
                f"{c.aspect} {c.level:g}": {"texts": len(c.texts), "distinct": len(set(c.texts))}
                for c in corpora
            },
            "topics": "clusters of texts by their words (k-means of tf-idf directions)",
            "found_again": (
                "mean reciprocal rank of a text's second half among all, asked with the first; by "
                "cosine, centered"
            ),
            "best": {name: extreme for name, (extreme, _) in METRICS.items()},
            "intervals": f"{_DRAWS} resamples of the corpus's distinct texts, each with its copies",
        }
        return Result(table, verdict(measured), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw a column per aspect, a row per metric, a color per level, and a dot at each best
        layer."""
        values = table[table["kind"] == "value"]
        aspects = list(dict.fromkeys(values["condition"]))
        figure, axes = grid(len(METRICS), len(aspects), 3.9 * len(aspects), 7.2, sharex=True)
        for column, aspect in zip(axes.T, aspects, strict=True):
            by_aspect = values[values["condition"] == aspect]
            levels = sorted(by_aspect["level"].unique(), reverse=aspect == "duplication")
            for axis, (metric, (best, _)) in zip(column, METRICS.items(), strict=True):
                rows = by_aspect[by_aspect["metric"] == metric].dropna(subset=["value"])
                colors = draw_levels(axis, rows, levels, alpha=0.1)
                for level, curve in rows.groupby("level"):
                    scores = curve["value"]
                    point = curve.loc[scores.idxmax() if best == "highest" else scores.idxmin()]
                    axis.plot(
                        point["depth"], point["value"], "o", color=colors[level], markersize=4
                    )
            color_key(figure, list(column), [f"{level:g}" for level in levels], "")
        units = [f"{metric.replace('_', ' ')} ({unit})" for metric, (_, unit) in METRICS.items()]
        label_axes(axes, [_TITLES[aspect] for aspect in aspects], units)
        return with_heading(
            figure, manifest, table["model"].iloc[0], suffix="; dots: the best layer"
        )


@dataclass(frozen=True)
class NestedCorpus:
    """One corpus of a series: its aspect, its level and its texts."""

    aspect: str
    level: float
    texts: tuple[str, ...]


def build_corpora(
    texts: Sequence[str], options: dict[str, Any], seed: int
) -> tuple[list[NestedCorpus], list[str]]:
    """Return all corpora of the options, from the least diverse to the most, and warnings."""
    warnings: list[str] = []
    size = int(options["size"])
    corpora: list[NestedCorpus] = []
    if "topic" in options["aspects"]:
        corpora += _by_topic(texts, sorted(set(options["topics"])), size, seed, warnings)
    if "length" in options["aspects"]:
        lengths = sorted(set(options["lengths"]))
        usable = [text for text in texts if len(text.split()) >= lengths[-1]]
        usable = _draw(usable, size or len(usable), seed)
        _check_count(usable, f"texts of {lengths[-1]} words or more", "Give smaller lengths")
        for n in lengths:
            cut = tuple(" ".join(text.split()[:n]) for text in usable)
            corpora.append(NestedCorpus("length", n, cut))
    if "duplication" in options["aspects"]:
        drawn = _draw(texts, size or len(texts), seed)
        _check_count(drawn, "texts", "Give more texts")
        for share in sorted(set(options["copies"]), reverse=True):
            distinct = max(2, round((1 - share) * len(drawn)))
            copied = tuple(drawn[i % distinct] for i in range(len(drawn)))
            corpora.append(NestedCorpus("duplication", share, copied))
    return corpora, warnings


def _check_count(texts: Sequence[str] | Sequence[int], noun: str, hint: str) -> None:
    """Refuse too few texts."""
    if len(texts) < _FEWEST:
        raise DataError(
            f"there are {len(texts)} {noun}, and at least {_FEWEST} are needed. {hint}, or another "
            "data=."
        )


def _draw(texts: Sequence[str], count: int, seed: int) -> list[str]:
    order = np.random.default_rng([seed, len(texts)]).permutation(len(texts))[:count]
    return [texts[i] for i in order]


def _by_topic(
    texts: Sequence[str], levels: list[int], size: int, seed: int, warnings: list[str]
) -> list[NestedCorpus]:
    """Return corpora of the largest topic, of the two largest, …; each has as many texts, drawn
    evenly from its topics."""
    _check_count(texts, "texts", "Give more texts")
    topics = word_topics(texts, levels[-1], seed)
    members = sorted(
        ([i for i, t in enumerate(topics) if t == k] for k in set(topics.tolist())),
        key=lambda m: (-len(m), m[0]),
    )
    if len(members) < levels[-1]:
        warnings.append(f"the texts form {len(members)} topics, not {levels[-1]}.")
    levels = sorted({min(level, len(members)) for level in levels})
    count = min(len(members[0]), size or len(members[0]))
    _check_count(members[0], "texts in the largest topic", "Ask for fewer topics")
    rng = np.random.default_rng([seed, len(texts), 1])
    queues = [list(rng.permutation(member)) for member in members]
    out = []
    for level in levels:
        rounds = zip_longest(*queues[:level])  # one text of each topic in every round
        drawn = [i for numbers in rounds for i in numbers if i is not None][:count]
        out.append(NestedCorpus("topic", level, tuple(texts[i] for i in sorted(drawn))))
    return out


def word_topics(texts: Sequence[str], count: int, seed: int) -> np.ndarray:
    """Return a cluster number per text: k-means of tf-idf directions over the words that some, but
    not most, texts have."""
    bags = [Counter(word.strip(".,;:!?\"'()").lower() for word in text.split()) for text in texts]
    frequency = Counter(word for bag in bags for word in bag)
    limit = max(2, len(texts) // 2)
    words = [word for word, n in frequency.items() if 2 <= n <= limit and len(word) > 3]
    words = sorted(words, key=lambda word: (-frequency[word], word))[:_WORDS]
    column = {word: i for i, word in enumerate(words)}
    rows = np.zeros((len(texts), max(1, len(words))))
    for i, bag in enumerate(bags):
        for word, n in bag.items():
            if word in column:
                rows[i, column[word]] = np.log1p(n) * np.log(len(texts) / frequency[word])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    rng = np.random.default_rng([seed, count])
    first_centers = [rows[int(rng.integers(len(rows)))]]
    while len(first_centers) < min(count, len(rows)):  # the text farthest from the centers so far
        nearest = (rows @ np.array(first_centers).T).max(1)
        first_centers.append(rows[int(nearest.argmin())])
    centers = np.array(first_centers)
    topics = np.zeros(len(rows), dtype=int)
    for _ in range(25):
        topics = (rows @ centers.T).argmax(1)
        for k in range(len(centers)):
            if (topics == k).any():
                mean = rows[topics == k].mean(0)
                centers[k] = mean / max(np.linalg.norm(mean), 1e-30)
    return topics


@dataclass
class MeasuredCorpus:
    """One corpus, with curves over layers by metric and their resamples (draws, layers)."""

    corpus: NestedCorpus
    values: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]

    def best(self, metric: str) -> Interval:
        """Return the best layer, and the middle 95 % of the best layers of resampled corpora, from
        the first to the last of equals."""
        sign = 1 if METRICS[metric][0] == "highest" else -1
        curve = sign * self.values[metric]
        if not np.isfinite(curve).any():
            return Interval(float("nan"))
        best = float(np.nanargmax(curve))
        count = len(self.corpus.texts)
        draws = [sign * draw for draw in self.draws[metric] if np.isfinite(draw).any()]
        if not draws:
            return Interval(best, n=count)
        first_layers, last_layers = zip(*map(_best_layers, draws), strict=True)
        low = np.quantile(first_layers, 0.025, method="nearest")
        high = np.quantile(last_layers, 0.975, method="nearest")
        return Interval(best, float(low), float(high), count)


def _best_layers(curve: np.ndarray) -> tuple[int, int]:
    """Return the first and the last of the layers that share the highest value."""
    layers = np.flatnonzero(curve >= np.nanmax(curve) - 1e-12)
    return int(layers[0]), int(layers[-1])


def measure_corpora(
    request: Request, model: LoadedModel, corpora: Sequence[NestedCorpus], bar: Progress
) -> list[MeasuredCorpus]:
    """Measure every corpus from vectors of its distinct texts and their halves."""
    texts = sorted({text for corpus in corpora for text in corpus.texts})
    row_of = {text: i for i, text in enumerate(texts)}
    bar.begin("texts and their halves|texts", 3 * len(texts))
    whole = vectors_of(request, model, texts, "whole", bar, "keep")
    first_halves, second_halves = zip(*map(halves, texts), strict=True)
    first = vectors_of(request, model, first_halves, "first", bar)["vectors"]
    second = vectors_of(request, model, second_halves, "second", bar)["vectors"]
    bar.begin("corpora|", len(corpora))
    measured = []
    for corpus in corpora:
        rows = np.array([row_of[text] for text in corpus.texts])
        ranks = reciprocal_ranks(first[:, rows], second[:, rows], corpus.texts)
        vectors = whole["vectors"][:, rows]
        measured.append(_measure(corpus, vectors, ranks, whole["keep"][:, rows], request.seed))
        bar.advance(1)
    return measured


def _measure(
    corpus: NestedCorpus, whole: np.ndarray, ranks: np.ndarray, entropy: np.ndarray, seed: int
) -> MeasuredCorpus:
    draws = resamples(corpus.texts, seed)
    values = {"found_again": ranks.mean(1), "prompt_entropy": np.nanmean(entropy, 1)}
    drawn = {
        "found_again": np.stack([ranks[:, draw].mean(1) for draw in draws]),
        "prompt_entropy": np.stack([np.nanmean(entropy[:, draw], 1) for draw in draws]),
    }
    rows = torch.from_numpy(whole)
    values["dataset_entropy"] = _dataset_entropy(rows)
    # each resample costs an eigenproblem, so fewer are drawn
    drawn["dataset_entropy"] = np.stack(
        [_dataset_entropy(rows[:, torch.from_numpy(draw)]) for draw in draws[: _DRAWS // 8]]
    )
    return MeasuredCorpus(corpus, values, drawn)


def resamples(texts: Sequence[str], seed: int) -> list[np.ndarray]:
    """Draw rows of resampled corpora: distinct texts, each with all its copies, because a copy is
    no further evidence."""
    places: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        places.setdefault(text, []).append(i)
    copies = [np.array(rows) for rows in places.values()]
    return [
        np.concatenate([copies[i] for i in draw])
        for draw in bootstrap_rows(len(copies), _DRAWS, [seed, len(texts)])
    ]


def _dataset_entropy(rows: torch.Tensor) -> np.ndarray:
    if not bool(torch.isfinite(rows).all()):
        return np.full(len(rows), np.nan)
    return matrix_entropy(rows, rows="centered-unit").numpy()


def tabulate(measured: Sequence[MeasuredCorpus], label: str, blocks: int) -> pd.DataFrame:
    """Return a row per corpus, layer and metric, and the best layers."""
    rows = []
    for result in measured:
        corpus = result.corpus
        common = {
            "model": label,
            "condition": corpus.aspect,
            "level": corpus.level,
            "normalization": "raw",
        }
        for metric in METRICS:
            setting = {**common, "metric": metric}
            for layer, value in enumerate(result.values[metric]):
                place = {"kind": "value", **whole_layer(layer, blocks), "sink": "keep"}
                draws = result.draws[metric][:, layer]
                interval = percentile_interval(float(value), draws, len(corpus.texts))
                rows.append({**setting, **place, **interval.columns})
            rows.append({**setting, "kind": "best layer", **result.best(metric).columns})
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def has_moved(before: Interval, after: Interval) -> bool:
    """Return True if neither of two best layers is within the other's interval by resampling."""
    return not (after.low <= before.value <= after.high or before.low <= after.value <= before.high)


def verdict(measured: Sequence[MeasuredCorpus]) -> list[str]:
    """Describe, per aspect and metric, the best layer from the least diverse corpus to the most."""
    out: list[str] = []
    moving: list[str] = []
    unclear: list[str] = []
    for aspect in dict.fromkeys(result.corpus.aspect for result in measured):
        results = [result for result in measured if result.corpus.aspect == aspect]
        size = len(results[0].corpus.texts)
        levels = ", ".join(f"{result.corpus.level:g}" for result in results)
        out.append(f"By {aspect} ({levels}; {size} texts each), the best layer:")
        for metric, (extreme, _) in METRICS.items():
            best = [result.best(metric) for result in results]
            path = " → ".join(f"{b.value:.0f} ({b.low:.0f} to {b.high:.0f})" for b in best)
            moves = has_moved(best[0], best[-1])
            (moving if moves else unclear).append(f"{metric} by {aspect}")
            change = "it moves" if moves else "no clear move"
            out.append(f"  {extreme} {metric.replace('_', ' ')}: {path}: {change}.")
    answer = "no best layer moves clearly"
    if moving:
        answer = f"the best layer moves for {join_words(moving)}"
        if unclear:
            answer += f"; not clearly for {join_words(unclear)}"
    return [in_short(answer), *out]


STUDY = Diversity()
