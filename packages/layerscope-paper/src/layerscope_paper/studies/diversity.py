"""Does the best layer move when a corpus grows more diverse?

Builds nested corpora of one size from the texts given. `topic`: texts of one topic, of two, … of
all (topics are clusters of the words that texts use). `length`: the same texts cut to their first n
words. `duplication`: the same number of texts with fewer and fewer distinct ones among them. On
each it measures every layer without labels: whether the first half of a text finds its second half
among all (`found_again`), dataset entropy of the pooled vectors, and prompt entropy.

Table: a row per aspect (`condition`), level, layer and metric, and `best layer` rows with the
middle 95 % of the best layers of resampled corpora. Figure: a column per aspect, a color per level,
a dot at each best layer. Verdict: for each metric and aspect, whether the best layer moves beyond
what resampling the texts moves it.

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

from layerscope.choose.judges.consistency import halves
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
# metric: what its best layer has, and its unit
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
_WORDS = 2000  # most words that topics are told by
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
            "best": {name: how for name, (how, _) in METRICS.items()},
            "intervals": f"{_DRAWS} resamples of the corpus's distinct texts, each with its copies",
        }
        return Result(table, verdict(measured), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A column per aspect, a row per metric, a color per level; dots mark the best layers."""
        values = table[table["kind"] == "value"]
        aspects = list(dict.fromkeys(values["condition"]))
        figure, axes = grid(len(METRICS), len(aspects), 3.9 * len(aspects), 7.2, sharex=True)
        for column, aspect in zip(axes.T, aspects, strict=True):
            chosen = values[values["condition"] == aspect]
            levels = sorted(chosen["level"].unique(), reverse=aspect == "duplication")
            for axis, (metric, (how, _)) in zip(column, METRICS.items(), strict=True):
                rows = chosen[chosen["metric"] == metric].dropna(subset=["value"])
                colors = draw_levels(axis, rows, levels, alpha=0.1)
                for level, own in rows.groupby("level"):
                    at = own.loc[
                        own["value"].idxmax() if how == "highest" else own["value"].idxmin()
                    ]
                    axis.plot([at["depth"]], [at["value"]], "o", color=colors[level], markersize=4)
            color_key(figure, list(column), [f"{level:g}" for level in levels], "")
        units = [f"{metric.replace('_', ' ')} ({unit})" for metric, (_, unit) in METRICS.items()]
        label_axes(axes, [_TITLES[aspect] for aspect in aspects], units)
        return with_heading(figure, manifest, table["model"].iloc[0], more="; dots: the best layer")


# --- corpora
#   --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NestedCorpus:
    """One corpus: its texts, in order."""

    aspect: str
    level: float
    texts: tuple[str, ...]


def build_corpora(
    texts: Sequence[str], options: dict[str, Any], seed: int
) -> tuple[list[NestedCorpus], list[str]]:
    """All corpora asked for, from the least diverse to the most, and what a reader must know."""
    warnings: list[str] = []
    size = int(options["size"])
    corpora: list[NestedCorpus] = []
    if "topic" in options["aspects"]:
        corpora += _by_topic(texts, sorted(set(options["topics"])), size, seed, warnings)
    if "length" in options["aspects"]:
        lengths = sorted(set(options["lengths"]))
        usable = [text for text in texts if len(text.split()) >= lengths[-1]]
        usable = _drawn(usable, size or len(usable), seed)
        _enough(usable, f"texts of {lengths[-1]} words or more", "Give smaller lengths")
        corpora += [
            NestedCorpus("length", n, tuple(" ".join(text.split()[:n]) for text in usable))
            for n in lengths
        ]
    if "duplication" in options["aspects"]:
        chosen = _drawn(texts, size or len(texts), seed)
        _enough(chosen, "texts", "Give more texts")
        for share in sorted(set(options["copies"]), reverse=True):
            distinct = max(2, round((1 - share) * len(chosen)))
            corpora.append(
                NestedCorpus(
                    "duplication", share, tuple(chosen[i % distinct] for i in range(len(chosen)))
                )
            )
    return corpora, warnings


def _enough(texts: Sequence[str] | Sequence[int], what: str, hint: str) -> None:
    if len(texts) < _FEWEST:
        raise DataError(
            f"there are {len(texts)} {what}, and at least {_FEWEST} are needed. {hint}, or another "
            "data=."
        )


def _drawn(texts: Sequence[str], count: int, seed: int) -> list[str]:
    order = np.random.default_rng([seed, len(texts)]).permutation(len(texts))[:count]
    return [texts[i] for i in order]


def _by_topic(
    texts: Sequence[str], levels: list[int], size: int, seed: int, warnings: list[str]
) -> list[NestedCorpus]:
    """Texts of the largest topic, of the two largest, …; each corpus has as many texts, drawn
    evenly from its topics."""
    _enough(texts, "texts", "Give more texts")
    topics = word_topics(texts, levels[-1], seed)
    members = sorted(
        ([i for i, t in enumerate(topics) if t == k] for k in set(topics.tolist())),
        key=lambda m: (-len(m), m[0]),
    )
    if len(members) < levels[-1]:
        warnings.append(f"the texts form {len(members)} topics, not {levels[-1]}.")
    levels = sorted({min(level, len(members)) for level in levels})
    count = min([len(members[0]), *([size] if size else [])])
    _enough(members[0], "texts in the largest topic", "Ask for fewer topics")
    rng = np.random.default_rng([seed, len(texts), 1])
    queues = [list(rng.permutation(member)) for member in members]
    out = []
    for level in levels:
        in_turn = [
            i for one_each in zip_longest(*queues[:level]) for i in one_each if i is not None
        ]
        out.append(NestedCorpus("topic", level, tuple(texts[i] for i in sorted(in_turn[:count]))))
    return out


def word_topics(texts: Sequence[str], count: int, seed: int) -> np.ndarray:
    """A cluster number per text: k-means of tf-idf directions over the words that some, but not
    most, texts have."""
    bags = [Counter(word.strip(".,;:!?\"'()").lower() for word in text.split()) for text in texts]
    found = Counter(word for bag in bags for word in bag)
    usable = [
        word for word, n in found.items() if 2 <= n <= max(2, len(texts) // 2) and len(word) > 3
    ]
    usable = sorted(usable, key=lambda word: (-found[word], word))[:_WORDS]
    place = {word: i for i, word in enumerate(usable)}
    rows = np.zeros((len(texts), max(1, len(usable))))
    for i, bag in enumerate(bags):
        for word, n in bag.items():
            if word in place:
                rows[i, place[word]] = np.log1p(n) * np.log(len(texts) / found[word])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    rng = np.random.default_rng([seed, count])
    centers = [rows[int(rng.integers(len(rows)))]]
    while len(centers) < min(count, len(rows)):  # each next one far from those before
        near = (rows @ np.array(centers).T).max(1)
        centers.append(rows[int(near.argmin())])
    middle = np.array(centers)
    topics = np.zeros(len(rows), dtype=int)
    for _ in range(25):
        topics = (rows @ middle.T).argmax(1)
        for k in range(len(middle)):
            if (topics == k).any():
                mean = rows[topics == k].mean(0)
                middle[k] = mean / max(np.linalg.norm(mean), 1e-30)
    return topics


# --- measuring
#   ------------------------------------------------------------------------------------------------------------------


@dataclass
class MeasuredCorpus:
    """One corpus: curves over layers by metric with their resamples (draws, layers), and the number
    of texts."""

    corpus: NestedCorpus
    values: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]

    def best(self, metric: str) -> Interval:
        """The best layer, and the middle 95 % of the best layers of resampled corpora, from the
        first to the last of equals."""
        sign = 1 if METRICS[metric][0] == "highest" else -1
        curve = sign * self.values[metric]
        if not np.isfinite(curve).any():
            return Interval(float("nan"))
        ends = np.array(
            [_best_layers(sign * draw) for draw in self.draws[metric] if np.isfinite(draw).any()],
            dtype=float,
        )
        low = np.quantile(ends[:, 0], 0.025, method="nearest") if len(ends) else np.nan
        high = np.quantile(ends[:, 1], 0.975, method="nearest") if len(ends) else np.nan
        return Interval(float(np.nanargmax(curve)), float(low), float(high), len(self.corpus.texts))


def _best_layers(curve: np.ndarray) -> tuple[int, int]:
    """The first and the last of the layers that share the highest value."""
    best = np.flatnonzero(curve >= np.nanmax(curve) - 1e-12)
    return int(best[0]), int(best[-1])


def measure_corpora(
    request: Request, model: LoadedModel, corpora: Sequence[NestedCorpus], bar: Progress
) -> list[MeasuredCorpus]:
    """Every corpus from vectors that each distinct text is read for once."""
    texts = sorted({text for corpus in corpora for text in corpus.texts})
    place = {text: i for i, text in enumerate(texts)}
    bar.begin("texts and their halves|texts", 3 * len(texts))
    whole = vectors_of(request, model, texts, "whole", bar, "keep")
    sides = zip(("first", "second"), zip(*map(halves, texts), strict=True), strict=True)
    first, second = (vectors_of(request, model, side, name, bar)["vectors"] for name, side in sides)
    bar.begin("corpora|", len(corpora))
    out = []
    for corpus in corpora:
        rows = np.array([place[text] for text in corpus.texts])
        ranks = reciprocal_ranks(first[:, rows], second[:, rows], corpus.texts)
        out.append(
            _measure(corpus, whole["vectors"][:, rows], ranks, whole["keep"][:, rows], request.seed)
        )
        bar.advance(1)
    return out


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
    # its resamples cost an eigenproblem each: a part of the draws has to do
    drawn["dataset_entropy"] = np.stack(
        [_dataset_entropy(rows[:, torch.from_numpy(draw)]) for draw in draws[: _DRAWS // 8]]
    )
    return MeasuredCorpus(corpus, values, drawn)


def resamples(texts: Sequence[str], seed: int) -> list[np.ndarray]:
    """Rows of resampled corpora: distinct texts are drawn, each with all its copies, since a copy
    is no further evidence."""
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
    """A row per corpus, layer and metric, and the best layers."""
    rows = []
    for each in measured:
        setting = {
            "model": label,
            "condition": each.corpus.aspect,
            "level": each.corpus.level,
            "normalization": "raw",
        }
        for metric in METRICS:
            for layer, value in enumerate(each.values[metric]):
                interval = percentile_interval(
                    float(value), each.draws[metric][:, layer], len(each.corpus.texts)
                )
                own = {
                    "kind": "value",
                    **whole_layer(layer, blocks),
                    "metric": metric,
                    "sink": "keep",
                }
                rows.append({**setting, **own, **interval.columns})
            rows.append(
                {**setting, "kind": "best layer", "metric": metric, **each.best(metric).columns}
            )
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def has_moved(one: Interval, other: Interval) -> bool:
    """Whether two best layers differ beyond what resampling moves them: neither is within the
    other's interval."""
    return not (other.low <= one.value <= other.high or one.low <= other.value <= one.high)


def verdict(measured: Sequence[MeasuredCorpus]) -> list[str]:
    """Per aspect and metric, the best layer from the least diverse corpus to the most."""
    out: list[str] = []
    moves: list[str] = []
    stays: list[str] = []
    for aspect in dict.fromkeys(each.corpus.aspect for each in measured):
        corpora = [each for each in measured if each.corpus.aspect == aspect]
        size = len(corpora[0].corpus.texts)
        levels = ", ".join(f"{each.corpus.level:g}" for each in corpora)
        out.append(f"By {aspect} ({levels}; {size} texts each), the best layer:")
        for metric, (how, _) in METRICS.items():
            best = [each.best(metric) for each in corpora]
            path = " → ".join(f"{b.value:.0f} ({b.low:.0f} to {b.high:.0f})" for b in best)
            does = has_moved(best[0], best[-1])
            (moves if does else stays).append(f"{metric} by {aspect}")
            out.append(
                f"  {how} {metric.replace('_', ' ')}: {path}: "
                f"{'it moves' if does else 'no clear move'}."
            )
    answer = (
        f"the best layer moves for {join_words(moves)}" if moves else "no best layer moves clearly"
    )
    if moves and stays:
        answer += f"; not clearly for {join_words(stays)}"
    return [in_short(answer), *out]


STUDY = Diversity()
