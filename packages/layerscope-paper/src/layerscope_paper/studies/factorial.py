"""Study `factorial`: the gains of layers and of readouts, each alone and together.

Every layer of every model is read in seven ways: the mean of the tokens (the default), the same
centered, the mean that weighs later tokens more, the last token, the mean over a repeated text, a
prompt's last token (centered), and a head. The head is a linear map of the mean, fitted without
labels so that similarities agree with those of the prompt at one late layer. Readouts are fitted on
texts of the task that are not scored. Scores are mteb's own.

Table: a `score` row per model, task, readout and layer (× 100); per model `gain` rows (of the
readout alone, the layer alone, both beyond that, and all); `inner` rows per readout (an inner layer
against the last, per model and over all); `share` rows over all models; and `mixed` rows of a mixed
model. Layers and readouts are chosen on the other tasks: no task's gain is one that it helped to
choose.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from layerscope.capture import expand_sites
from layerscope.core.columns import VALUE, names
from layerscope.core.heads import LEAST_TEXTS, Ridge, make_target
from layerscope.core.scores import DRAWS
from layerscope.core.statistics import Interval
from layerscope.core.templates import get_template
from layerscope.errors import DataError, InvalidValueError
from layerscope.evaluation.scoring import encoded_texts, quiet_mteb, require_mteb
from layerscope.evaluation.tasks import TaskSpec, reseed, resolve_tasks
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.vectors.encoder import EncodeRequest, TextEncoder
from layerscope_paper.drawing import COLORS, escape_math
from layerscope_paper.studies.base import DATA_DIR, Option, Result, Study
from layerscope_paper.studies.shared.figures import Figure, grid, label_axes, legend_below
from layerscope_paper.studies.shared.models import (
    Request,
    cached_arrays,
    folder_name,
    max_tokens,
    read_specs,
)
from layerscope_paper.studies.shared.numbers import (
    in_short,
    mean_of,
    percentile_interval,
    whole_layer,
)

# the first is the default
READOUTS = ("mean", "centered", "weighted", "last", "echo", "prompt", "head")
GAINS = ("readout", "layer", "both", "all")
COLUMNS = ["kind", "model", "task", "type", "reading", "layer", "site", "depth", *names(VALUE)]
# by template: the readouts that are not fitted, and their names in the vector store
_READINGS = {
    "plain": {"mean": "mean/applied", "weighted": "wmean/applied", "last": "last/applied"},
    "echo": {"echo": "mean/applied"},
}


class Factorial(Study):
    """Scores by readout, layer and task."""

    name = "factorial"
    title = "The gains of readout and layer, each and together"
    paper = "Fig. 1"
    models = (1, None)
    texts = False
    options = (
        Option(
            "tasks",
            ["small"],
            "two tasks or more, as for `layerscope evaluate --tasks`",
            filled=True,
        ),
        Option("items", 200, "texts, pairs or queries to score per task, at most", least=20),
        Option("fit", 1000, "other texts of the task to fit on, at most", least=LEAST_TEXTS),
        Option("template", "one-word", "the prompt, which also teaches the head"),
        Option(
            "teacher", 0.9, "depth of the layer whose prompted reading teaches", least=0.05, most=1
        ),
        DATA_DIR,
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Read the texts of every task, fit, and have mteb score every layer under every
        readout."""
        options = request.options
        identities = {}
        rows: list[dict[str, Any]] = []
        notes: list[str] = []
        if options["template"] in _READINGS:
            raise InvalidValueError(
                f"template={options['template']} is a readout already: name a prompt, such as "
                "one-word."
            )
        tasks = _read_tasks(request, notes)
        for spec in read_specs(request.models):
            bar.begin(f"loading {spec.label}|", 1)
            model = spec.open(request)
            if model.n_blocks < 2:
                raise InvalidValueError(
                    f"{spec.label} has {model.n_blocks} block: there is no layer between the first "
                    "and the last."
                )
            identities[spec.label] = model.identity
            bar.begin(f"{spec.label}: every layer, {len(READOUTS)} readouts|tasks", len(tasks))
            for name, task, texts, fit in tasks:
                file = request.work / f"{folder_name(spec.label)}-{folder_name(name)}.safetensors"
                measure = partial(_measure, request, model, task, texts, fit)
                scores = cached_arrays(file, measure)["scores"]
                bar.advance(1)
                place = {"model": spec.label, "task": name, "type": task.metadata.type}
                for (r, readout), layer in product(enumerate(READOUTS), range(scores.shape[1])):
                    rows.append(
                        {
                            "kind": "score",
                            **place,
                            "reading": readout,
                            **whole_layer(layer, scores.shape[1] - 1),
                            "value": 100 * scores[r, layer],
                        }
                    )
            del model
        table, verdict = summarize(pd.DataFrame(rows), request.seed)
        conventions = {
            "models": identities,
            "tasks": {
                name: {"texts": len(texts), "fitted_on": len(fit)} for name, _, texts, fit in tasks
            },
            "readouts": f"final norm applied; prompt: {options['template']}; head: ridge from the "
            "mean "
            "onto the prompt at depth "
            f"{options['teacher']:g}; centered, prompt and head are fitted on texts that are not "
            "scored",
            "score": "mteb's main score × 100",
            "gain": "the readout and layer that are best on the other tasks, over the mean at the "
            "last layer; `readout`: at the "
            "last layer; `layer`: of the mean; `both`: the rest",
            "intervals": (
                f"tasks drawn anew {DRAWS} times; of shares and inner layers, models as well"
            ),
        }
        return Result(table.reindex(columns=COLUMNS), verdict, conventions, notes)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw mean scores against depth, a panel per model, without bands: tasks differ far more
        from each other than layers do."""
        scores = table[table["kind"] == "score"]
        models = list(dict.fromkeys(scores["model"]))
        colors = dict(zip(READOUTS, COLORS, strict=False))
        across = min(3, len(models))
        down = -(-len(models) // 3)
        figure, axes = grid(down, across, 3.4 * across + 0.6, 3 * down + 0.5)
        for i, (axis, model) in enumerate(zip(axes.flat, models, strict=False)):
            for readout, color in colors.items():
                rows = scores[(scores["model"] == model) & (scores["reading"] == readout)]
                axis.plot(rows.groupby("depth")["value"].mean(), color=color, linewidth=1.6)
            label_axes(
                axes[i // across : i // across + 1, i % across : i % across + 1],
                [escape_math(model)],
                ["mean score × 100"],
            )
        for axis in axes.flat[len(models) :]:
            axis.set_axis_off()
        legend_below(figure, colors)
        return figure


# a task's name, mteb's task, the texts that it encodes, other texts to fit on
Task = tuple[str, Any, list[str], list[str]]


def _read_tasks(request: Request, notes: list[str]) -> list[Task]:
    require_mteb()
    quiet_mteb()
    options = request.options
    tasks = []
    for spec in resolve_tasks(
        options["tasks"],
        data_dir=options["data_dir"] or None,
        sample=options["items"],
        seed=request.seed,
    ):
        try:
            tasks.append(read_task(spec, options["fit"], request.seed))
        except DataError as error:
            notes.append(f"{error} It is left out.")
    if len(tasks) < 2:
        reasons = " ".join(notes)
        raise DataError(
            f"the study takes two tasks or more, and can use {len(tasks)}. {reasons}".strip()
        )
    return tasks


def read_task(spec: TaskSpec, fit: int, seed: int) -> Task:
    """Return a task of some of its items, the texts that it encodes, and texts of its other items;
    no text is in both, in whatever case."""
    task = spec.load().task
    texts = encoded_texts(task)
    scored = {_letters(text) for text in texts}
    unscored = [
        text
        for text in encoded_texts(replace(spec, sample=None).load().task)
        if text.strip() and _letters(text) not in scored
    ]
    order = np.random.default_rng([seed, len(unscored)]).permutation(len(unscored))
    drawn = [unscored[i] for i in order[:fit]]
    if len(drawn) < LEAST_TEXTS:
        raise DataError(
            f"{spec.name} has {len(drawn)} texts that are not scored; a head takes {LEAST_TEXTS}."
        )
    return spec.name, task, texts, drawn


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum()) or text


def _measure(
    request: Request, model: LoadedModel, task: Any, texts: list[str], fit: list[str]
) -> dict[str, np.ndarray]:
    """Return scores (readouts, layers) of one task; NaN where all texts have the same vector."""
    import mteb

    from layerscope.evaluation.mteb_models import LayerView, model_meta

    vectors = read_vectors(
        model,
        [*texts, *fit],
        request.options["template"],
        max_tokens(request, model),
        request.batch_size,
    )
    row_of = {text: i for i, text in enumerate(texts)}
    meta = model_meta(model.name, None, model.width, None)
    scores = np.full((len(READOUTS), len(vectors["mean"])), np.nan)
    for r, readout in enumerate(READOUTS):
        by_layer = apply_readout(readout, vectors, len(texts), request.options["teacher"])
        for layer, rows in enumerate(by_layer):
            if np.ptp(rows, axis=0).max() <= 1e-6 * max(1e-30, float(np.abs(rows).max())):
                continue
            view = LayerView(partial(_select_rows, rows.astype(np.float32), row_of), meta)
            reseed(task)
            result = mteb.evaluate(
                view, task, cache=None, show_progress_bar=False, co2_tracker=False
            ).task_results[0]
            scores[r, layer] = np.mean(
                [entry["main_score"] for entries in result.scores.values() for entry in entries]
            )
    return {"scores": scores}


def _select_rows(rows: np.ndarray, row_of: dict[str, int], texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of some texts."""
    return rows[[row_of[text] for text in texts]]


def read_vectors(
    model: LoadedModel,
    texts: Sequence[str],
    template: str,
    max_length: int,
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Return vectors (layers, texts, D) by readout, before any fit."""
    sites = tuple(expand_sites(None, model.anatomy))
    vectors: dict[str, np.ndarray] = {}
    for name, readings in {**_READINGS, template: {"prompt": "last/applied"}}.items():
        kinds = tuple(readings.values())
        request = EncodeRequest(get_template(name), sites, kinds, max_length, batch_size)
        rows = TextEncoder(model, request).encode(texts).vectors
        vectors |= {readout: rows[kind] for readout, kind in readings.items()}
    return vectors


def apply_readout(
    readout: str, vectors: dict[str, np.ndarray], cut: int, teacher: float
) -> np.ndarray:
    """Return vectors (layers, cut, D) of the first `cut` texts; readouts are fitted on the
    others."""
    if readout == "head":
        prompted = vectors["prompt"]
        target = make_target(prompted[max(1, round(teacher * (len(prompted) - 1))), cut:])
        return np.stack([Ridge(rows[cut:], target).head()(rows[:cut]) for rows in vectors["mean"]])
    rows = vectors["mean" if readout == "centered" else readout]
    if readout in ("centered", "prompt"):
        return rows[:, :cut] - rows[:, cut:].mean(1, keepdims=True)
    return rows[:, :cut]


def cubes(scores: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the scores (tasks, readouts, layers) of each model. A readout and layer that is
    undefined in one task is NaN in all."""
    by_model = {}
    for name, rows in scores.groupby("model", sort=False):
        wide = rows.pivot_table("value", "task", ["reading", "layer"], dropna=False)[list(READOUTS)]
        cube = wide.to_numpy(float).reshape(len(wide), len(READOUTS), -1)
        by_model[str(name)] = np.where(np.isnan(cube).any(0), np.nan, cube)
    return by_model


def split_gains(cube: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return, per task (tasks, 4), the gains over the default of the readout alone, of the layer
    alone, of both beyond that, and of all.

    Readout and layer are the pair that is best on the other tasks; the readout's gain is at the
    last layer, the layer's under the default readout.
    """
    counts = np.ones(len(cube)) if weights is None else weights
    rows = []
    for t, scores in enumerate(cube):
        other_tasks = np.where(np.arange(len(cube)) == t, 0, counts)
        best = int(np.nanargmax(np.tensordot(other_tasks, cube, 1)))
        readout, layer = np.unravel_index(best, scores.shape)
        default = scores[0, -1]
        by_readout = scores[readout, -1] - default
        by_layer = scores[0, layer] - default
        total = scores[readout, layer] - default
        rows.append((by_readout, by_layer, total - (by_readout + by_layer), total))
    return np.array(rows)


def inner_gains(curves: np.ndarray) -> np.ndarray:
    """Return, per task of (tasks, layers), the gain over the last layer of the inner layer that is
    best on the other tasks."""
    inner = np.nan_to_num(curves.sum(0) - curves, nan=-np.inf)[:, 1:-1].argmax(1) + 1
    return np.asarray(curves[np.arange(len(curves)), inner] - curves[:, -1])


def summarize(scores: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with its summary rows, and the verdict."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    verdict: list[str] = []

    def add(kind: str, interval: Interval, **place: Any) -> Interval:
        rows.append({"kind": kind, **place, **interval.columns})
        return interval

    by_model = cubes(scores)
    tasks = scores["task"].nunique()
    # the same tasks for all models; one task alone leaves no others to choose on
    drawn = rng.multinomial(tasks, np.full(tasks, 1 / tasks), 2 * DRAWS)
    drawn = drawn[(drawn > 0).sum(1) > 1][:DRAWS].astype(float)
    count = len(by_model)
    models = rng.multinomial(count, np.full(count, 1 / count), len(drawn)) / count
    gains = []  # per model (4)
    gain_draws = []  # per model (draws, 4)
    for name, cube in by_model.items():
        gains.append(split_gains(cube).mean(0))
        gain_draws.append(
            np.array([np.average(split_gains(cube, draw), axis=0, weights=draw) for draw in drawn])
        )
        words = []
        for i, gain in enumerate(GAINS):
            interval = percentile_interval(float(gains[-1][i]), gain_draws[-1][:, i], len(cube))
            words.append(f"{gain} {add('gain', interval, model=name, reading=gain)}")
        verdict.append(f"{name} ({len(cube)} tasks), points over the baseline: {', '.join(words)}.")
    mean = np.mean(gains, axis=0)
    means = np.einsum("dm,mdp->dp", models, np.stack(gain_draws))
    if (means[:, 3] > 0).all():  # otherwise there is no gain to share
        words = []
        for i, gain in enumerate(GAINS[:3]):
            share = float(100 * mean[i] / mean[3])
            interval = percentile_interval(share, 100 * means[:, i] / means[:, 3])
            words.append(f"{gain} {add('share', interval, reading=gain).format(0)}")
        verdict.append(f"Shares of the gain over all models, %: {', '.join(words)}.")
    clear: dict[str, int] = {}
    for r, readout in enumerate(READOUTS):
        inner = {name: inner_gains(cube[:, r]) for name, cube in by_model.items()}
        stacked = np.stack(list(inner.values()))
        draws = np.einsum("dm,dt,mt->d", models, drawn / tasks, stacked)
        interval = percentile_interval(float(stacked.mean()), draws, count)
        overall = add("inner", interval, reading=readout)
        clear[readout] = 0
        words = []
        for name, model_gains in inner.items():
            interval = add("inner", mean_of(model_gains, seed), model=name, reading=readout)
            clear[readout] += interval.sign > 0
            words.append(f"{name} {interval}")
        verdict.append(
            f"An inner layer over the last, read by {readout}: {overall} ({', '.join(words)})."
        )
    mixed = mixed_model(scores)
    rows += mixed
    middle = next((row for row in mixed if row["reading"] == "depth[T.middle]"), None)
    if middle is not None:
        verdict.append(
            "Mixed model: the middle third over the last layer, read by mean: "
            f"{Interval.from_row(middle)} points over all models."
        )
    elif count > 1:
        verdict.append("No mixed model: statsmodels did not converge.")
    clear_counts = ", ".join(f"{readout} {number}" for readout, number in clear.items())
    answer = (
        f"the readout alone brings {mean[0]:+.1f} points, the layer alone {mean[1]:+.1f}, of "
        f"{mean[3]:+.1f} in all; models of {count} in which an inner layer clearly beats the last: "
        f"{clear_counts}"
    )
    return pd.concat([scores, pd.DataFrame(rows)], ignore_index=True), [in_short(answer), *verdict]


def mixed_model(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Fit the scores by readout and part of the depth, with random effects of model and task, and
    of readout and depth in each model.

    Values are points over the mean at the last layer. Return no rows for one model, or where the
    fit does not converge.
    """
    import statsmodels.formula.api as smf

    if scores["model"].nunique() < 2:
        return []
    names = ["embeddings", "early", "middle", "late", "last"]
    bins = pd.cut(scores["depth"], [-1, 0, 0.34, 0.67, 0.999, 1], labels=names).astype(str)
    groups = scores.assign(part=bins).groupby(["model", "task", "reading", "part"], as_index=False)
    cells = groups["value"].mean().dropna()
    cells["all"] = 1
    for name, column in {"own_readout": "reading", "own_depth": "part"}.items():
        cells[name] = cells["model"] + "\n" + cells[column]
    random = {name: f"0 + C({name})" for name in ("model", "task", "own_readout", "own_depth")}
    formula = "value ~ C(reading, Treatment('mean')) * C(part, Treatment('last'))"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `converged` is checked
        fit = smf.mixedlm(formula, cells, groups="all", vc_formula=random, re_formula="0").fit(
            reml=True, method=["lbfgs"]
        )
    if not fit.converged:
        return []
    out = []
    bounds = fit.conf_int()
    for name in fit.model.exog_names:
        short = name.replace("C(reading, Treatment('mean'))", "readout").replace(
            "C(part, Treatment('last'))", "depth"
        )
        out.append(
            {
                "kind": "mixed",
                "reading": short,
                "value": fit.params[name],
                "ci_low": bounds.loc[name, 0],
                "ci_high": bounds.loc[name, 1],
            }
        )
    return out


STUDY = Factorial()


def summarize_stored(file: str) -> list[str]:
    """Return the verdict on scores in a .csv file: model, task, readout, layer, depth, score."""
    stored = pd.read_csv(file).rename(columns={"readout": "reading", "score": "value"})
    return summarize(stored.assign(kind="score"), 0)[1]


if __name__ == "__main__":  # python -m layerscope_paper.studies.factorial FILE.csv
    print("\n".join(summarize_stored(sys.argv[1])))
