"""Which layers hold up when texts are perturbed?

Perturbs texts in four ways at rising levels (typing errors, words dropped, words out of order,
words in capitals) and asks every layer two things. With labels: how often a linear probe that was
trained on unchanged texts still puts a perturbed text right. Without: whether a perturbed text
finds its own unchanged text again among all (mean reciprocal rank by cosine).

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
_LEAST = 40  # labeled texts


def mistyped(text: str, level: float, seed: int) -> str:
    """Typing errors in a share of the words: the views that profiles compare, at this strength."""
    return augment(text, seed=seed, view=0, strength=level)


def with_words_dropped(text: str, level: float, seed: int) -> str:
    """Without a share of the words."""
    return drop_words(text, _rng(text, seed), level)


def out_of_order(text: str, level: float, seed: int) -> str:
    """A share of the words in each other's places."""
    words = text.split()
    rng = _rng(text, seed)
    chosen = np.flatnonzero(rng.random(len(words)) < level)
    for here, there in zip(chosen, [words[i] for i in rng.permutation(chosen)], strict=True):
        words[here] = there
    return " ".join(words)


def in_capitals(text: str, level: float, seed: int) -> str:
    """A share of the words in capitals."""
    rng = _rng(text, seed)
    return " ".join(word.upper() if rng.random() < level else word for word in text.split())


def _rng(text: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *text.encode("utf-8", "surrogatepass")[:64], len(text)])


PERTURBATIONS: dict[str, Callable[[str, float, int], str]] = {
    "typos": mistyped,
    "dropped": with_words_dropped,
    "order": out_of_order,
    "capitals": in_capitals,
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
            "texts": {one.metric: len(one.texts) for one in sets},
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
        return Result(
            tabulate(measured, spec.label, request.seed),
            verdict(measured, request.seed),
            conventions,
        )

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Scores against depth, colored by level: a column per perturbation."""
        values = table[table["kind"] == "value"]
        kinds = [kind for kind in dict.fromkeys(values["condition"]) if kind != "none"]
        names = list(dict.fromkeys(values["metric"]))
        figure, axes = grid(
            len(names),
            len(kinds),
            3.0 * len(kinds) + 0.8,
            2.7 * len(names) + 0.6,
            sharex=True,
            sharey="row",
        )
        levels = sorted(values["level"].unique())
        for (i, metric), (j, kind) in product(enumerate(names), enumerate(kinds)):
            draw_levels(
                axes[i, j],
                values[(values["metric"] == metric) & values["condition"].isin(["none", kind])],
                levels,
                0.12,
            )
        label_axes(
            axes,
            kinds,
            [escape_math(metric.replace("_", " ").replace(":", ", ")) for metric in names],
        )
        color_key(figure, list(axes.ravel()), [f"{level:g}" for level in levels], "share")
        return with_heading(figure, manifest, table["model"].iloc[0])


# --- texts
#   ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextSet:
    """Texts that one score is taken on: with labels an accuracy, without them being found again."""

    metric: str
    texts: list[str]
    labels: np.ndarray | None = None


def read_set(name: str, request: Request) -> TextSet:
    """Labeled texts of a catalogued task, or of a file, as many as asked for."""
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
    order = np.random.default_rng([request.seed, len(rows)]).permutation(len(rows))[
        : request.options["items"]
    ]
    chosen = [rows[i] for i in order]
    counts = Counter(label for _, label in chosen)
    chosen = [row for row in chosen if counts[row[1]] >= FOLDS]  # a class must be in every fold
    if len(chosen) < _LEAST or len({label for _, label in chosen}) < 2:
        raise DataError(
            f"{name} has {len(chosen)} usable labeled texts; at least {_LEAST} in two classes are "
            "needed."
        )
    return TextSet(
        f"accuracy:{Path(name).stem}",
        [text for text, _ in chosen],
        np.array([label for _, label in chosen]),
    )


# --- measuring
#   ------------------------------------------------------------------------------------------------------------------


Scores = dict[
    tuple[str, str, float], np.ndarray
]  # (layers, texts) by metric, perturbation and level; `none`, 0: unchanged


def measure(request: Request, model: LoadedModel, sets: Sequence[TextSet], bar: Progress) -> Scores:
    """Every set of texts under every perturbation."""
    options = request.options
    wanted = [
        (kind, float(level))
        for kind in dict.fromkeys(options["kinds"])
        for level in sorted(set(options["levels"]))
    ]
    bar.begin(
        "texts and perturbed copies|texts", (1 + len(wanted)) * sum(len(one.texts) for one in sets)
    )
    out: Scores = {}
    for one in sets:
        name = folder_name(one.metric)
        plain = vectors_of(request, model, one.texts, f"{name}-none", bar)["vectors"]
        changed = []
        for kind, level in wanted:
            texts = [PERTURBATIONS[kind](text, level, request.seed) for text in one.texts]
            changed.append(
                vectors_of(request, model, texts, f"{name}-{kind}-{level:g}", bar)["vectors"]
            )
        settings = [("none", 0.0), *wanted]
        if one.labels is None:
            scores = [reciprocal_ranks(vectors, plain, one.texts) for vectors in [plain, *changed]]
        else:
            folds = stratified_folds(one.labels, FOLDS, 1, request.seed)[0]
            scores = probe_hits(plain, changed, one.labels, folds)
        for (kind, level), values in zip(settings, scores, strict=True):
            out[one.metric, kind, level] = values
    return out


def tabulate(measured: Scores, label: str, seed: int) -> pd.DataFrame:
    """A row per setting and layer: the score, and its change from the unchanged texts."""
    parts: dict[tuple[str, str, str, float], np.ndarray] = {}
    for (metric, kind, level), values in measured.items():
        parts["value", metric, kind, level] = values.T
        if kind != "none":
            parts["drop", metric, kind, level] = (values - measured[metric, "none", 0.0]).T
    blocks = next(iter(parts.values())).shape[1] - 1
    places = [whole_layer(layer, blocks) for layer in range(blocks + 1)]
    return layer_table(
        parts, ("kind", "metric", "condition", "level"), places, seed, COLUMNS, model=label
    )


def gain_over_last(values: np.ndarray, seed: int) -> tuple[Interval, list[int]]:
    """How far the best layer is ahead of the last, with the layer chosen on one half of the texts
    and judged on the other.

    Both halves do both; per text (layers, texts). Also says which layers were chosen. Ties go to
    the later layer.
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
    """For the unchanged texts and the highest level of each perturbation: the best layer against
    the last."""
    out: list[str] = []
    signs: list[int] = []
    plain_signs: list[int] = []
    for metric in dict.fromkeys(metric for metric, _, _ in measured):
        unit = "% right" if metric != FOUND else "mean reciprocal rank × 100"
        out.append(f"{metric.replace('_', ' ').replace(':', ', ')} ({unit}):")
        for kind in dict.fromkeys(k for m, k, _ in measured if m == metric):
            level = max(one for m, k, one in measured if (m, k) == (metric, kind))
            values = 100 * measured[metric, kind, level]
            gain, chosen = gain_over_last(values, seed)
            best = int(np.nanargmax(values.mean(1)))
            (plain_signs if kind == "none" else signs).append(gain.sign)
            where = "unchanged" if kind == "none" else f"{kind} at {level:g}"
            text = (
                f"{where}: best {values[best].mean():.1f} at {name_layers([best])}, last layer "
                f"{values[-1].mean():.1f}"
            )
            out.append(
                f"  {text}; {name_layers(chosen)}, chosen on the other half of the texts: {gain} "
                "points over the last."
            )
    ahead = sum(sign > 0 for sign in signs)
    behind = sum(sign < 0 for sign in signs)
    answer = (
        f"on perturbed texts an earlier layer clearly beats the last in {ahead} of {len(signs)} "
        "cases and clearly loses to it in "
    )
    answer += (
        f"{behind}; on unchanged texts it beats it in {sum(sign > 0 for sign in plain_signs)} of "
        f"{len(plain_signs)}"
    )
    return [in_short(answer), *out]


STUDY = Robustness()
