"""Study `robustness`: the scores of every layer on perturbed texts.

Perturbs texts in four ways at rising levels (typing errors, words dropped, words out of order,
words in capitals) and scores every layer twice. With labels: the accuracy on perturbed texts of a
linear probe that was trained on unchanged texts. Without: the rank of a text's unchanged vector
among all by cosine with its perturbed vector (mean reciprocal rank).

Table: a row per kind of perturbation (`condition`), level, layer and metric, `accuracy:TASK` and
`found_again`; `drop` rows are the paired change from the unchanged texts. Figure: a column per
perturbation, a row per metric, a color per level. Verdict: at the highest level, the best layer
against the last, chosen on one half of the texts and judged on the other.

    layerscope-paper study robustness smollm2-135m -n 60 --set levels=0.6
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.consistency import drop_words
from layerscope.choose.label_scores import stratified_folds
from layerscope.choose.labels import read_labels
from layerscope.core.columns import PLACE, VALUE, names
from layerscope.core.statistics import Interval
from layerscope.data import augment
from layerscope.errors import DataError
from layerscope.evaluation.tasks import TASKS
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.drawing import escape_math
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    color_key,
    draw_levels,
    grid,
    label_axes,
    with_heading,
)
from layerscope_paper.studies.shared.models import Request, canonical, folder_name, read_specs
from layerscope_paper.studies.shared.numbers import (
    in_short,
    layer_table,
    mean_of,
    name_layers,
    whole_layer,
)
from layerscope_paper.studies.shared.vectors import FOLDS, probe_hits, reciprocal_ranks, vectors_of

FOUND = "found_again"
COLUMNS = ["model", "kind", "condition", "level", *names(PLACE), "metric", *names(VALUE)]
_LEAST = 40  # labeled texts of a task


def mistype(text: str, level: float, seed: int) -> str:
    """Return a text with typing errors in a share of its words, as in the views of profiles."""
    return augment(text, seed=seed, view=0, strength=level)


def leave_out_words(text: str, level: float, seed: int) -> str:
    """Return a text without a share of its words."""
    return drop_words(text, _rng(text, seed), level)


def shuffle_words(text: str, level: float, seed: int) -> str:
    """Return a text with a share of its words in each other's places."""
    words = text.split()
    rng = _rng(text, seed)
    places = np.flatnonzero(rng.random(len(words)) < level)
    for place, word in zip(places, [words[i] for i in rng.permutation(places)], strict=True):
        words[place] = word
    return " ".join(words)


def capitalize_words(text: str, level: float, seed: int) -> str:
    """Return a text with a share of its words in capitals."""
    rng = _rng(text, seed)
    return " ".join(word.upper() if rng.random() < level else word for word in text.split())


def _rng(text: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *text.encode("utf-8", "surrogatepass")[:64], len(text)])


PERTURBATIONS: dict[str, Callable[[str, float, int], str]] = {
    "typos": mistype,
    "dropped": leave_out_words,
    "order": shuffle_words,
    "capitals": capitalize_words,
}


class Robustness(Study):
    """Scores of every layer on perturbed texts."""

    name = "robustness"
    title = "Scores of every layer on perturbed texts"
    models = (1, 1)
    options = (
        Option(
            "kinds", list(PERTURBATIONS), "perturbations", valid=tuple(PERTURBATIONS), filled=True
        ),
        Option(
            "levels", [0.1, 0.3, 0.6], "shares of words to perturb", least=0.01, most=1, filled=True
        ),
        Option(
            "labels",
            ["TrecQuestions"],
            "classification tasks of the catalogue or files (text,label); `none`: no labels",
        ),
        Option("items", 300, "labeled texts per task", least=_LEAST),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Read unchanged and perturbed texts, then score every layer on both."""
        request = canonical(request)
        spec = read_specs(request.models)[0]
        sets = [TextSet(FOUND, sorted(set(request.texts or ())))]
        sets += [read_set(name, request) for name in request.options["labels"] if name != "none"]
        bar.begin(f"loading {spec.label}|", 1)
        model = spec.open(request)
        measured = measure(request, model, sets, bar)
        conventions = {
            "models": {spec.label: model.identity},
            "texts": {text_set.metric: len(text_set.texts) for text_set in sets},
            "probe": (
                f"ridge on class indicators, trained on unchanged texts, {FOLDS} folds; "
                "mean-pooled vectors"
            ),
            FOUND: (
                "mean reciprocal rank of the unchanged text among all, by cosine, centered on the "
                "unchanged texts"
            ),
            "levels": "the share of words touched",
            "intervals": "over texts; drops are paired",
        }
        table = tabulate(measured, spec.label, request.seed)
        return Result(table, verdict(measured, request.seed), conventions)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw scores against depth, colored by level: a column per perturbation."""
        values = table[table["kind"] == "value"]
        kinds = [kind for kind in dict.fromkeys(values["condition"]) if kind != "none"]
        names = list(dict.fromkeys(values["metric"]))
        width = 3.0 * len(kinds) + 0.8
        height = 2.7 * len(names) + 0.6
        figure, axes = grid(len(names), len(kinds), width, height, sharex=True, sharey="row")
        levels = sorted(values["level"].unique())
        for (i, metric), (j, kind) in product(enumerate(names), enumerate(kinds)):
            rows = values[values["condition"].isin(["none", kind])]
            draw_levels(axes[i, j], rows[rows["metric"] == metric], levels, 0.12)
        label_axes(axes, kinds, [escape_math(_title(metric)) for metric in names])
        color_key(figure, list(axes.ravel()), [f"{level:g}" for level in levels], "share")
        return with_heading(figure, manifest, table["model"].iloc[0])


def _title(metric: str) -> str:
    return metric.replace("_", " ").replace(":", ", ")


@dataclass(frozen=True)
class TextSet:
    """Texts for one score: with labels an accuracy, without labels the rank of each text."""

    metric: str
    texts: list[str]
    labels: np.ndarray | None = None


def read_set(name: str, request: Request) -> TextSet:
    """Return labeled texts of a catalogued task or of a file, at most `items` of them."""
    if Path(name).suffix and Path(name).exists():
        labeled = read_labels(name)
        if labeled.kind != "classification":
            raise DataError(
                f"{name} holds {labeled.kind}, not classes: a file for this study has the columns "
                "text,label."
            )
        rows = list(zip(labeled.sides[0], labeled.targets.tolist(), strict=True))
    else:
        entry = TASKS.get(name)
        if entry.task_type != "Classification":
            raise DataError(
                f"{name} is a task of the type {entry.task_type}; this study takes classification "
                "tasks."
            )
        splits = entry.splits()
        rows = [(row["text"], row["label"]) for row in splits["test"]]
    order = np.random.default_rng([request.seed, len(rows)]).permutation(len(rows))
    drawn = [rows[i] for i in order[: request.options["items"]]]
    counts = Counter(label for _, label in drawn)
    usable = [(text, label) for text, label in drawn if counts[label] >= FOLDS]  # in every fold
    labels = np.array([label for _, label in usable])
    if len(usable) < _LEAST or len(set(labels.tolist())) < 2:
        raise DataError(
            f"{name} has {len(usable)} usable labeled texts; at least {_LEAST} in two classes are "
            "needed."
        )
    return TextSet(f"accuracy:{Path(name).stem}", [text for text, _ in usable], labels)


# (layers, texts) by metric, perturbation and level; `none`, 0: unchanged
Scores = dict[tuple[str, str, float], np.ndarray]


def measure(request: Request, model: LoadedModel, sets: Sequence[TextSet], bar: Progress) -> Scores:
    """Score every set of texts under every perturbation."""
    levels = sorted({float(level) for level in request.options["levels"]})
    settings = [("none", 0.0), *product(dict.fromkeys(request.options["kinds"]), levels)]
    texts_read = len(settings) * sum(len(text_set.texts) for text_set in sets)
    bar.begin("texts and perturbed copies|texts", texts_read)
    measured: Scores = {}
    for text_set in sets:
        name = folder_name(text_set.metric)
        texts = text_set.texts
        plain = vectors_of(request, model, texts, f"{name}-none", bar)["vectors"]
        changed = []
        for kind, level in settings[1:]:
            perturbed = [PERTURBATIONS[kind](text, level, request.seed) for text in texts]
            file_name = f"{name}-{kind}-{level:g}"
            changed.append(vectors_of(request, model, perturbed, file_name, bar)["vectors"])
        if text_set.labels is None:
            scores = [reciprocal_ranks(vectors, plain, texts) for vectors in [plain, *changed]]
        else:
            folds = stratified_folds(text_set.labels, FOLDS, 1, request.seed)[0]
            scores = probe_hits(plain, changed, text_set.labels, folds)
        for (kind, level), values in zip(settings, scores, strict=True):
            measured[text_set.metric, kind, level] = values
    return measured


def tabulate(measured: Scores, label: str, seed: int) -> pd.DataFrame:
    """Return a row per setting and layer: the score, and its change from the unchanged texts."""
    values: dict[tuple[str, str, str, float], np.ndarray] = {}
    for (metric, kind, level), scores in measured.items():
        values["value", metric, kind, level] = scores.T
        if kind != "none":
            values["drop", metric, kind, level] = (scores - measured[metric, "none", 0.0]).T
    blocks = next(iter(measured.values())).shape[0] - 1
    places = [whole_layer(layer, blocks) for layer in range(blocks + 1)]
    keys = ("kind", "metric", "condition", "level")
    return layer_table(values, keys, places, seed, COLUMNS, model=label)


def gain_over_last(values: np.ndarray, seed: int) -> tuple[Interval, list[int]]:
    """Return the gain of the best layer over the last, with the layer chosen on one half of the
    texts and judged on the other, and the layers chosen.

    `values` is (layers, texts). Each half serves both purposes. Ties go to the later layer.
    """
    half = np.random.default_rng([seed, values.shape[1]]).permutation(values.shape[1]) % 2
    gains = np.full(values.shape[1], np.nan)
    chosen = []
    for side in (0, 1):
        means = values[:, half != side].mean(1)
        best = len(means) - 1 - int(np.nanargmax(means[::-1]))
        gains[half == side] = values[best, half == side] - values[-1, half == side]
        chosen.append(best)
    return mean_of(gains, seed), sorted(set(chosen))


def verdict(measured: Scores, seed: int) -> list[str]:
    """Describe, for the unchanged texts and the highest level of each perturbation, the best layer
    against the last."""
    out: list[str] = []
    signs: list[int] = []
    plain_signs: list[int] = []
    for metric in dict.fromkeys(metric for metric, _, _ in measured):
        unit = "% right" if metric != FOUND else "mean reciprocal rank × 100"
        out.append(f"{_title(metric)} ({unit}):")
        for kind in dict.fromkeys(k for m, k, _ in measured if m == metric):
            level = max(value for m, k, value in measured if (m, k) == (metric, kind))
            values = 100 * measured[metric, kind, level]
            gain, chosen = gain_over_last(values, seed)
            best = int(np.nanargmax(values.mean(1)))
            (plain_signs if kind == "none" else signs).append(gain.sign)
            condition = "unchanged" if kind == "none" else f"{kind} at {level:g}"
            out.append(
                f"  {condition}: best {values[best].mean():.1f} at {name_layers([best])}, last "
                f"layer {values[-1].mean():.1f}; {name_layers(chosen)}, chosen on the other half "
                f"of the texts: {gain} points over the last."
            )
    answer = (
        f"on perturbed texts an earlier layer clearly beats the last in {signs.count(1)} of "
        f"{len(signs)} cases and clearly loses to it in {signs.count(-1)}; on unchanged texts it "
        f"beats it in {plain_signs.count(1)} of {len(plain_signs)}"
    )
    return [in_short(answer), *out]


STUDY = Robustness()
