"""Does the middle win when the readout may learn?

At every layer four readings of the same texts: the mean of the tokens, the same centered, a prompt's last token (centered), and
a head, which is a linear map of the first fitted without labels so that similarities agree with those of the prompt at one late
layer. Heads and means are fitted on texts of each task that are not scored.

Table: a `score` row per task, reading and layer (× 100), a `mean` row over the tasks with its interval, and per reading a `gain`
row (the layer that is best on the other tasks, against the last) and a `middle` row (the middle half, against the last). Figure:
mean scores by depth. Verdict: whether the middle wins under a learned readout, and what a head gains over each other reading.

    python benchmarks/study_heads.py smollm2-135m --set tasks=small --set items=100 --set fit=200
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from text_vectors import run_script

from layerscope.capture import expand_sites
from layerscope.core.columns import VALUE, names
from layerscope.core.heads import LEAST_TEXTS, Ridge, make_target, unit
from layerscope.core.statistics import Interval, bootstrap_weights, mean_ranks, percentile_interval
from layerscope.core.templates import get_template
from layerscope.errors import DataError, InvalidValueError
from layerscope.evaluation.encode import TextEncoder
from layerscope.evaluation.tasks.facts import used_splits
from layerscope.evaluation.tasks.resolve import resolve_tasks
from layerscope.evaluation.tasks.spec import TaskSpec
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.report.drawing import COLORS, escape_math
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.figures import Figure, grid, label_axes, legend_below
from layerscope.studies.shared.models import Request, canonical, folder_name, kept_arrays, most_tokens, read_specs
from layerscope.studies.shared.numbers import in_short, join_words, middle_half, whole_layer

READINGS = ("plain", "centered", "prompt", "head")
NEAREST, DRAWS = 10, 500
COLUMNS = ["kind", "model", "task", "reading", "layer", "site", "depth", *names(VALUE)]


class HeadsByLayer(Study):
    """Scores of every layer as it is and through a head."""

    name = "heads"
    title = "Whether the middle wins when the readout may learn"
    models = (1, None)
    texts = False
    options = (
        Option("tasks", ["small"], "tasks of classes, clusters or pairs, as for `layerscope evaluate --tasks`", filled=True),
        Option("items", 200, "texts or pairs to score per task, at most", least=20),
        Option("fit", 400, "other texts of the task to fit on, at most", least=LEAST_TEXTS),
        Option("template", "one-word", "the prompt that teaches"),
        Option("teacher", 0.9, "depth of the layer whose prompted reading teaches", least=0.05, most=1),
        Option("data_dir", "", "folder with the data of tasks"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Read the texts of every task, fit, and score."""
        request, options = canonical(request), request.options
        tasks, notes = _read_tasks(request)
        found, identities = [], {}
        for spec in read_specs(request.models):
            bar.begin(f"loading {spec.label}|", 1)
            model = spec.open(request)
            found.append(_measure(request, model, spec.label, tasks, bar))
            identities[spec.label] = model.identity
        conventions = {
            "models": identities,
            "tasks": {task.name: {"scored": task.count, "fitted_on": len(task.fit)} for task in tasks},
            "plain": "mean over tokens, final norm applied",
            "centered": "the same minus the mean over the texts to fit on",
            "prompt": f"{options['template']}: the last token, final norm applied, minus the mean over the texts to fit on",
            "head": f"ridge from plain onto the prompt at depth {options['teacher']:g}, fitted on texts that are not scored",
            "score": f"× 100; classes: the share of a text's {NEAREST} nearest that are of its class; pairs: Spearman's ρ",
            "gain": "of the layer with the best mean over the other tasks, over the last layer",
            "middle": "the mean of the layers at a depth of 0.25 to 0.75, minus the last layer",
            "intervals": f"tasks and, within them, items are drawn anew {DRAWS} times",
        }
        table = pd.concat([one.table(request.seed) for one in found], ignore_index=True).reindex(columns=COLUMNS)
        return Result(table, _verdict(found, request.seed), conventions, notes)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Mean scores against depth, a panel per model. Without bands: tasks differ far more from each other than layers do."""
        means = table[table["kind"] == "mean"]
        models = list(dict.fromkeys(means["model"]))
        colors = dict(zip(READINGS, COLORS, strict=False))
        figure, axes = grid(1, len(models), 3.4 * len(models) + 0.6, 3.4)
        for axis, model in zip(axes[0], models, strict=True):
            for reading, color in colors.items():
                rows = means[(means["model"] == model) & (means["reading"] == reading)].sort_values("depth")
                axis.plot(rows["depth"], rows["value"], color=color, linewidth=1.6)
        label_axes(axes, [escape_math(model) for model in models], ["mean score × 100"])
        legend_below(figure, colors)
        return figure


# --- tasks ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadTask:
    """Texts with classes, or pairs of texts with their similarity, and other texts of the same kind to fit on."""

    name: str
    texts: list[str]
    targets: np.ndarray
    fit: list[str]
    pairs: bool

    @property
    def count(self) -> int:
        """How many items are scored."""
        return len(self.targets)


def _read_tasks(request: Request) -> tuple[list[HeadTask], list[str]]:
    options, notes, out = request.options, [], []
    specs = resolve_tasks(options["tasks"], data_dir=options["data_dir"] or None, offline=request.offline, seed=request.seed)
    for spec in specs:
        try:
            out.append(read_task(spec, options["items"], options["fit"], request.seed))
        except DataError as error:
            notes.append(f"{error} It is left out.")
    if not out:
        raise DataError(f"none of the tasks can be used: {notes[0]}")
    return out, notes


def read_task(spec: TaskSpec, items: int, fit: int, seed: int) -> HeadTask:
    """The items of a task that are scored, drawn at random, and texts of the others; no text is in both."""
    task = spec.load()
    rows: list[tuple[Any, ...]] = []
    others: list[str] = []
    for _, split, data in used_splits(task):
        found = _rows(task, data)
        if split in task.eval_splits:
            rows += found
        else:
            others += [text for *texts, _ in found for text in texts]
    if not rows:
        raise DataError(f"{spec.name} is a task of the type {task.metadata.type}; heads are compared on classes and pairs.")
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))
    scored = [rows[i] for i in order[:items]]
    left = [text for i in order[items:] for text in rows[i][:-1]] + others
    own = {text for *texts, _ in scored for text in texts}
    rest = [text for text in dict.fromkeys(left) if text.strip() and text not in own]
    drawn = [rest[i] for i in np.random.default_rng([seed, len(rest), 1]).permutation(len(rest))[:fit]]
    if len(drawn) < LEAST_TEXTS:
        raise DataError(f"{spec.name} has {len(drawn)} texts that are not scored; a head takes {LEAST_TEXTS}.")
    pairs = len(rows[0]) == 3
    targets = [row[-1] for row in scored]
    numbers = np.array(targets, float) if pairs else np.unique([str(label) for label in targets], return_inverse=True)[1]
    if len(np.unique(numbers)) < 2:
        raise DataError(f"{spec.name} has one {'similarity' if pairs else 'class'} alone.")
    texts = [row[0] for row in scored] + ([row[1] for row in scored] if pairs else [])
    return HeadTask(spec.name, texts, numbers, drawn, pairs)


def _rows(task: Any, data: Any) -> list[tuple[Any, ...]]:
    """(text, label) of classes and clusters, (text, text, similarity) of pairs; nothing of other types."""
    kind = task.metadata.type
    if kind in ("Classification", "Clustering"):
        columns = [getattr(task, "input_column_name", "text"), task.label_column_name]
    elif kind in ("STS", "PairClassification"):
        label = "score" if kind == "STS" else getattr(task, "label_column_name", "labels")
        columns = ["sentence1", "sentence2", label]
    else:
        return []
    out: list[tuple[Any, ...]] = []
    for row in zip(*(data[name] for name in columns), strict=True):
        out += list(zip(*row, strict=True)) if isinstance(row[0], list) else [row]
    return out


# --- measuring ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Scores of one model (tasks, readings, layers) × 100, and the same with items drawn anew (…, draws)."""

    label: str
    tasks: Sequence[str]
    score: np.ndarray
    draws: np.ndarray

    @property
    def blocks(self) -> int:
        """The number of the last layer."""
        return self.score.shape[-1] - 1

    def over_tasks(self, score: np.ndarray, draws: np.ndarray, seed: int) -> Interval:
        """The mean over tasks of (tasks,), with tasks drawn anew and items within them (tasks, draws)."""
        weights = bootstrap_weights(len(score), draws.shape[-1], [seed, len(score)])  # (draws, tasks)
        return percentile_interval(float(score.mean()), (weights * draws.T).mean(1), len(score))

    def mean(self, reading: str, layer: int, seed: int) -> Interval:
        """Of one reading at one layer."""
        r = READINGS.index(reading)
        return self.over_tasks(self.score[:, r, layer], self.draws[:, r, layer], seed)

    def best(self, reading: str) -> int:
        """The layer with the best mean; of equals the later."""
        means = self.score[:, READINGS.index(reading)].mean(0)
        return self.blocks - int(np.nanargmax(means[::-1]))

    def chosen(self, reading: str) -> list[int]:
        """For every task the layer that is best on the others; with one task, on it."""
        own = self.score[:, READINGS.index(reading)]
        rest = [np.delete(own, t, 0) if len(own) > 1 else own for t in range(len(own))]
        return [self.blocks - int(np.nanargmax(part.mean(0)[::-1])) for part in rest]

    def gain(self, reading: str, seed: int, other: str = "", at: int | None = None) -> Interval:
        """Of that layer over another reading's layer: by default over the last under the same reading."""
        r, s = READINGS.index(reading), READINGS.index(other or reading)
        against = [self.blocks if at is None else at] * len(self.tasks) if not other or at is not None else self.chosen(other)
        places = list(enumerate(zip(self.chosen(reading), against, strict=True)))
        score = np.array([self.score[t, r, k] - self.score[t, s, j] for t, (k, j) in places])
        draws = np.stack([self.draws[t, r, k] - self.draws[t, s, j] for t, (k, j) in places])
        return self.over_tasks(score, draws, seed)

    def middle(self, reading: str, seed: int) -> Interval:
        """Of the layers at a depth of 0.25 to 0.75, on average, over the last: no layer is chosen."""
        r, within = READINGS.index(reading), middle_half(self.blocks + 1)
        score, draws = self.score[:, r], self.draws[:, r]
        return self.over_tasks(score[:, within].mean(1) - score[:, -1], draws[:, within].mean(1) - draws[:, -1], seed)

    def table(self, seed: int) -> pd.DataFrame:
        """Its rows of the study's table."""
        rows: list[dict[str, Any]] = []
        for r, reading in enumerate(READINGS):
            for layer in range(self.blocks + 1):
                place = {"model": self.label, "reading": reading, **whole_layer(layer, self.blocks)}
                for t, task in enumerate(self.tasks):
                    of_task = percentile_interval(float(self.score[t, r, layer]), self.draws[t, r, layer])
                    rows.append({"kind": "score", "task": task, **place, **of_task.columns})
                rows.append({"kind": "mean", **place, **self.mean(reading, layer, seed).columns})
            for kind, gain in (("gain", self.gain(reading, seed)), ("middle", self.middle(reading, seed))):
                rows.append({"kind": kind, "model": self.label, "reading": reading, **gain.columns})
        return pd.DataFrame(rows)


def _measure(request: Request, model: LoadedModel, label: str, tasks: Sequence[HeadTask], bar: Progress) -> Found:
    template = request.options["template"]
    if template == "plain":
        raise InvalidValueError("template=plain cannot teach a head of the plain reading: name a prompt, such as one-word.")
    at = max(1, round(request.options["teacher"] * model.n_blocks))
    bar.begin(f"{label} reads, plain and with the prompt|texts", sum(2 * (len(one.texts) + len(one.fit)) for one in tasks))
    scores, draws = [], []
    for task in tasks:
        every = [*task.texts, *task.fit]
        file = request.work / f"{folder_name(label)}-{folder_name(task.name)}"
        plain, prompted = (
            _kept(file.with_name(f"{file.name}-{what}.npz"), partial(_read, request, model, name, kind, every, bar), bar, every)
            for what, name, kind in (("plain", "plain", "mean/applied"), ("prompt", template, "last/applied"))
        )
        cut = len(task.texts)
        target = make_target(prompted[at, cut:])
        by_layer = [_vectors(plain[k], prompted[k], target, cut) for k in range(len(plain))]
        found = [[_score(task, vectors, request.seed) for vectors in layer] for layer in by_layer]
        scores.append(np.array([[each[0] for each in layer] for layer in found]).T)
        draws.append(np.array([[each[1] for each in layer] for layer in found]).transpose(1, 0, 2))
    return Found(label, [task.name for task in tasks], 100 * np.stack(scores), 100 * np.stack(draws))


def _kept(file: Path, read: Callable[[], dict[str, np.ndarray]], bar: Progress, texts: Sequence[str]) -> np.ndarray:
    return kept_arrays(file, read, bar, len(texts))["vectors"]


def _read(
    request: Request, model: LoadedModel, name: str, kind: str, texts: Sequence[str], bar: Progress
) -> dict[str, np.ndarray]:
    """Vectors (layers, texts, D) of texts under a template."""
    sites, length = expand_sites(None, model.anatomy), most_tokens(request, model)
    encoder = TextEncoder(model, get_template(name), sites, [kind], length, request.batch_size)
    distinct = list(dict.fromkeys(texts))
    vectors, _ = encoder.run(encoder.read(distinct), bar.advance)
    at = {text: i for i, text in enumerate(distinct)}
    bar.advance(len(texts) - len(distinct))
    return {"vectors": vectors[kind][:, [at[text] for text in texts]]}


def _vectors(plain: np.ndarray, prompted: np.ndarray, target: np.ndarray, cut: int) -> list[np.ndarray]:
    """The scored texts' vectors of length 1 under every reading; what is fitted is fitted on the others."""
    head = Ridge(plain[cut:], target).head()
    found = [plain[:cut], *(_centered(rows, cut) for rows in (plain, prompted)), head(plain[:cut])]
    return [unit(np.asarray(rows, dtype=np.float64)) for rows in found]


def _centered(rows: np.ndarray, cut: int) -> np.ndarray:
    """NaN where all texts have the same vector, as a prompt's last token has at layer 0."""
    same = np.ptp(rows, axis=0).max() <= 1e-6 * max(1e-30, np.abs(rows).max())
    return np.full_like(rows[:cut], np.nan) if same else rows[:cut] - rows[cut:].mean(0)


def _score(task: HeadTask, vectors: np.ndarray, seed: int) -> tuple[float, np.ndarray]:
    """A score from 0 to 1 (pairs: −1 to 1), and the same with items drawn anew."""
    if not np.isfinite(vectors).all():
        return np.nan, np.full(DRAWS, np.nan)
    weights = bootstrap_weights(task.count, DRAWS, [seed, task.count]) / task.count
    if not task.pairs:
        similar = vectors @ vectors.T
        np.fill_diagonal(similar, -np.inf)
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, : min(NEAREST, task.count - 1)]
        hits = (task.targets[nearest] == task.targets[:, None]).mean(1)
        return float(hits.mean()), weights @ hits
    first, second = vectors[: task.count], vectors[task.count :]
    ranks = [mean_ranks(values) for values in ((first * second).sum(1).round(7), task.targets)]
    whole = np.full((1, task.count), 1 / task.count)
    both = _correlations(ranks[0], ranks[1], np.concatenate([whole, weights]))
    return float(both[0]), both[1:]


def _correlations(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pearson's correlation under each row of weights, which add up to 1; 0 where one of them does not vary."""
    mx, my = weights @ x, weights @ y
    spread = np.sqrt(np.maximum((weights @ x**2 - mx**2) * (weights @ y**2 - my**2), 0))
    return np.where(spread > 1e-12, (weights @ (x * y) - mx * my) / np.maximum(spread, 1e-12), 0.0)


# --- words ----------------------------------------------------------------------------------------------------------------------


def _verdict(found: Sequence[Found], seed: int) -> list[str]:
    out, signs = [], {reading: [each.middle(reading, seed).sign for each in found] for reading in ("plain", "head")}
    for each in found:
        out.append(f"{each.label} ({len(each.tasks)} tasks):")
        for reading in READINGS:
            at, over = each.best(reading), each.gain(reading, seed)
            score, last = each.mean(reading, at, seed).value, each.mean(reading, each.blocks, seed).value
            layers = join_words(str(k) for k in sorted(set(each.chosen(reading))))
            out.append(
                f"  {reading}: best {score:.1f} at layer {at} of {each.blocks}, last layer {last:.1f}; layer {layers}, chosen on "
                f"the other tasks: {over} points over the last; the middle half: {each.middle(reading, seed)}."
            )
        today = each.gain("head", seed, "plain", each.blocks)
        others = "; ".join(f"{other} {each.gain('head', seed, other)}" for other in READINGS[:-1])
        out.append(f"  A head, each at the layer chosen so: {today} points over plain at the last layer; over {others}.")
    many = f"of {len(found)} model{'s' * (len(found) > 1)}"
    up, down = (sum(sign == side for sign in signs["head"]) for side in (1, -1))
    answer = (
        f"through a head the middle half of the layers clearly beats the last layer in {up} {many} and clearly loses to it in "
    )
    return [in_short(f"{answer}{down}; read plainly it beats it in {sum(sign > 0 for sign in signs['plain'])}"), *out]


if __name__ == "__main__":
    run_script(HeadsByLayer())
