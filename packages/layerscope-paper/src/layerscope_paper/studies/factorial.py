"""Is "middle layers win" a fact about layers, or about how they are read?

Every layer of every model is read in seven ways: the mean of the tokens (today's default), the same
centered, the mean that weighs later tokens more, the last token, the mean over a repeated text, a
prompt's last token (centered), and a head, which is a linear map of the mean, fitted without labels
so that similarities agree with those of the prompt at one late layer. What is fitted is fitted on
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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
    folder_name,
    kept_arrays,
    most_tokens,
    read_specs,
)
from layerscope_paper.studies.shared.numbers import (
    in_short,
    mean_of,
    percentile_interval,
    whole_layer,
)

READOUTS = (
    "mean",
    "centered",
    "weighted",
    "last",
    "echo",
    "prompt",
    "head",
)  # the first is today's default
PARTS = ("readout", "layer", "both", "all")
COLUMNS = ["kind", "model", "task", "type", "reading", "layer", "site", "depth", *names(VALUE)]
_KINDS = {"plain": ("mean/applied", "wmean/applied", "last/applied"), "echo": ("mean/applied",)}


class Factorial(Study):
    """Readout × layer × task: what each brings."""

    name = "factorial"
    title = "What readout and layer bring, each and together"
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
        if options["template"] in _KINDS:
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
                found = kept_arrays(file, partial(_measure, request, model, task, texts, fit))[
                    "scores"
                ]
                bar.advance(1)
                blocks = found.shape[1] - 1
                kind = task.metadata.type
                rows += [
                    {"kind": "score", "model": spec.label, "task": name, "type": kind, "reading": readout,
                     **whole_layer(layer, blocks), "value": 100 * found[r, layer]}
                    for r, readout in enumerate(READOUTS) for layer in range(blocks + 1)
                ]  # fmt: skip
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
        """Mean scores against depth, a panel per model. Without bands: tasks differ far more from
        each other than layers do."""
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


# --- tasks and vectors
#   ----------------------------------------------------------------------------------------------------------

Tasks = list[
    tuple[str, Any, list[str], list[str]]
]  # names, mteb's tasks, the texts that they encode, others to fit on


def _read_tasks(request: Request, notes: list[str]) -> Tasks:
    require_mteb()
    quiet_mteb()
    options = request.options
    out = Tasks()
    where = options["data_dir"] or None
    for spec in resolve_tasks(
        options["tasks"],
        data_dir=where,
        sample=options["items"],
        seed=request.seed,
    ):
        try:
            out.append(read_task(spec, options["fit"], request.seed))
        except DataError as error:
            notes.append(f"{error} It is left out.")
    if len(out) < 2:
        raise DataError(
            f"the study takes two tasks or more, and can use {len(out)}. {' '.join(notes)}".strip()
        )
    return out


def read_task(spec: TaskSpec, fit: int, seed: int) -> tuple[str, Any, list[str], list[str]]:
    """A task of some of its items, the texts that it encodes, and texts of the others; no text is
    in both, in whatever case."""
    task = spec.load().task
    texts = encoded_texts(task)
    own = {_letters(text) for text in texts}
    rest = [
        text
        for text in encoded_texts(replace(spec, sample=None).load().task)
        if text.strip() and _letters(text) not in own
    ]
    drawn = [rest[i] for i in np.random.default_rng([seed, len(rest)]).permutation(len(rest))[:fit]]
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
    """Scores (readouts, layers) of one task; NaN where all texts have the same vector."""
    import mteb

    from layerscope.evaluation.mteb_models import LayerView, model_meta

    vectors = read_vectors(
        model,
        [*texts, *fit],
        request.options["template"],
        most_tokens(request, model),
        request.batch_size,
    )
    at = {text: i for i, text in enumerate(texts)}
    meta = model_meta(model.name, None, model.width, None)
    found = np.full((len(READOUTS), len(vectors["mean"])), np.nan)
    for r, readout in enumerate(READOUTS):
        read = apply_readout(readout, vectors, len(texts), request.options["teacher"])
        for layer, own in enumerate(read):
            if np.ptp(own, axis=0).max() <= 1e-6 * max(1e-30, float(np.abs(own).max())):
                continue
            view = LayerView(
                lambda some, own=own: own[[at[text] for text in some]].astype(np.float32),  # type: ignore[misc]
                meta,
            )
            reseed(task)
            result = mteb.evaluate(
                view, task, cache=None, show_progress_bar=False, co2_tracker=False
            ).task_results[0]
            found[r, layer] = np.mean(
                [entry["main_score"] for entries in result.scores.values() for entry in entries]
            )
    return {"scores": found}


def read_vectors(
    model: LoadedModel,
    texts: Sequence[str],
    template: str,
    max_length: int,
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Vectors (layers, texts, D) by readout, but for what is fitted."""
    sites = expand_sites(None, model.anatomy)
    found: dict[str, np.ndarray] = {}
    for name, kinds in {**_KINDS, template: ("last/applied",)}.items():
        request = EncodeRequest(get_template(name), tuple(sites), kinds, max_length, batch_size)
        rows = TextEncoder(model, request).encode(texts).vectors
        called = {"plain": ("mean", "weighted", "last"), "echo": ("echo",)}.get(name, ("prompt",))
        found |= {readout: rows[kind] for readout, kind in zip(called, kinds, strict=True)}
    return found


def apply_readout(
    readout: str, vectors: dict[str, np.ndarray], cut: int, teacher: float
) -> np.ndarray:
    """Vectors (layers, cut, D) of the first `cut` texts; the others are what is fitted on."""
    if readout == "head":
        prompted = vectors["prompt"]
        target = make_target(prompted[max(1, round(teacher * (len(prompted) - 1))), cut:])
        return np.stack([Ridge(rows[cut:], target).head()(rows[:cut]) for rows in vectors["mean"]])
    rows = vectors["mean" if readout == "centered" else readout]
    return (
        rows[:, :cut] - rows[:, cut:].mean(1, keepdims=True)
        if readout in ("centered", "prompt")
        else rows[:, :cut]
    )


# --- what the scores say
#   --------------------------------------------------------------------------------------------------------


def cubes(scores: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Per model the scores (tasks, readouts, layers). A readout and layer that is undefined in one
    task is so in all: NaN."""
    for name, mine in scores.groupby("model", sort=False):
        wide = mine.pivot_table("value", "task", ["reading", "layer"], dropna=False)[list(READOUTS)]
        cube = wide.to_numpy(float).reshape(len(wide), len(READOUTS), -1)
        yield str(name), np.where(np.isnan(cube).any(0), np.nan, cube)


def gain_parts(cube: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Per task (tasks, 4): what the readout, the layer, and both beyond that gain over today, and
    the whole gain.

    Readout and layer are the pair that is best on the other tasks; the readout's part is its gain
    at the last layer, the layer's its gain under today's readout.
    """
    count = np.ones(len(cube)) if weight is None else weight
    rows = []
    for t, own in enumerate(cube):
        others = np.where(np.arange(len(cube)) == t, 0, count)
        readout, layer = np.unravel_index(
            int(np.nanargmax(np.tensordot(others, cube, 1))), own.shape
        )
        today = own[0, -1]
        alone = own[readout, -1] - today, own[0, layer] - today
        rows.append((*alone, own[readout, layer] - today - sum(alone), own[readout, layer] - today))
    return np.array(rows)


def inner_gains(curves: np.ndarray) -> np.ndarray:
    """Per task of (tasks, layers): the layer before the last that is best on the other tasks, minus
    the last."""
    inner = np.nan_to_num(curves.sum(0) - curves, nan=-np.inf)[:, 1:-1].argmax(1) + 1
    return np.asarray(curves[np.arange(len(curves)), inner] - curves[:, -1])


def summarize(scores: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """The table with its summary rows, and the verdict."""
    rng = np.random.default_rng(seed)
    said = []
    rows: list[dict[str, Any]] = []
    verdict: list[str] = []

    def add(kind: str, told: Interval, **place: Any) -> Interval:
        rows.append({"kind": kind, **place, **told.columns})
        return told

    every = list(cubes(scores))
    names = sorted(set(scores["task"]))
    drawn = rng.multinomial(
        len(names), np.full(len(names), 1 / len(names)), 2 * DRAWS
    )  # the same tasks for all models
    drawn = drawn[(drawn > 0).sum(1) > 1][:DRAWS].astype(
        float
    )  # with one task alone there are no others to choose on
    models = rng.multinomial(len(every), np.full(len(every), 1 / len(every)), len(drawn)) / len(
        every
    )
    parts = []  # per model (draws, 4)
    for name, cube in every:
        parts.append(
            np.array(
                [np.average(gain_parts(cube, weight), axis=0, weights=weight) for weight in drawn]
            )
        )
        said.append(gain_parts(cube).mean(0))
        told = [
            percentile_interval(float(said[-1][i]), parts[-1][:, i], len(cube))
            for i in range(len(PARTS))
        ]
        line = ", ".join(
            f"{part} {add('gain', one, model=name, reading=part)}"
            for part, one in zip(PARTS, told, strict=True)
        )
        verdict.append(f"{name} ({len(cube)} tasks), points over today: {line}.")
    whole = np.mean(said, axis=0)
    again = np.einsum("dm,mdp->dp", models, np.stack(parts))
    if (again[:, 3] > 0).all():  # else there is no gain to share
        shares = [
            percentile_interval(float(100 * whole[i] / whole[3]), 100 * again[:, i] / again[:, 3])
            for i in range(3)
        ]
        line = ", ".join(
            f"{part} {add('share', one, reading=part).format(0)}"
            for part, one in zip(PARTS, shares, strict=False)
        )
        verdict.append(f"Shares of the gain over all models, %: {line}.")
    clear: dict[str, int] = {}
    for r, readout in enumerate(READOUTS):
        each = [inner_gains(cube[:, r]) for _, cube in every]
        again = np.einsum("dm,dt,mt->d", models, drawn / len(names), np.stack(each))
        over = add(
            "inner", percentile_interval(float(np.mean(each)), again, len(every)), reading=readout
        )
        own = [mean_of(gain, seed) for gain in each]
        clear[readout] = sum(one.sign > 0 for one in own)
        by_model = [
            f"{name} {add('inner', one, model=name, reading=readout)}"
            for (name, _), one in zip(every, own, strict=True)
        ]
        verdict.append(
            f"An inner layer over the last, read by {readout}: {over} ({', '.join(by_model)})."
        )
    mixed = mixed_model(scores)
    rows += mixed
    middle = next((row for row in mixed if row["reading"] == "depth[T.middle]"), None)
    if middle is not None:
        over = Interval.from_row(middle)
        verdict.append(
            f"Mixed model: the middle third over the last layer, read by mean: {over} points over "
            "all models."
        )
    elif len(every) > 1:
        verdict.append("No mixed model: statsmodels did not converge.")
    answer = (
        f"the readout alone brings {whole[0]:+.1f} points, the layer alone {whole[1]:+.1f}, of "
        f"{whole[3]:+.1f} in all; models "
    )
    answer += f"of {len(every)} in which an inner layer clearly beats the last: "
    answer += ", ".join(f"{readout} {count}" for readout, count in clear.items())
    return pd.concat([scores, pd.DataFrame(rows)], ignore_index=True), [in_short(answer), *verdict]


def mixed_model(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Score by readout × part of the depth; model and task are random, and so is what a readout or
    a depth does in a model.

    Points over the mean at the last layer. Nothing for one model, or where the fit does not
    converge.
    """
    import statsmodels.formula.api as smf

    if scores["model"].nunique() < 2:
        return []
    parts = {
        "embeddings": (-1, 0),
        "early": (0, 0.34),
        "middle": (0.34, 0.67),
        "late": (0.67, 0.999),
        "last": (0.999, 1),
    }
    bins = pd.cut(
        scores["depth"], [-1, *(high for _, high in parts.values())], labels=list(parts)
    ).astype(str)
    cells = (
        scores.assign(part=bins)
        .groupby(["model", "task", "reading", "part"], as_index=False)["value"]
        .mean()
        .dropna()
    )
    cells["all"] = 1
    for name, two in {"own_readout": "reading", "own_depth": "part"}.items():
        cells[name] = cells["model"] + "\n" + cells[two]
    random = {name: f"0 + C({name})" for name in ("model", "task", "own_readout", "own_depth")}
    formula = "value ~ C(reading, Treatment('mean')) * C(part, Treatment('last'))"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `converged` tells
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
        told = {
            "value": fit.params[name],
            "ci_low": bounds.loc[name, 0],
            "ci_high": bounds.loc[name, 1],
        }
        out.append({"kind": "mixed", "reading": short, **told})
    return out


STUDY = Factorial()


def summarize_stored(file: str) -> list[str]:
    """What the study says of scores in a .csv file: model, task, readout, layer, depth, score."""
    stored = pd.read_csv(file).rename(columns={"readout": "reading", "score": "value"})
    return summarize(stored.assign(kind="score"), 0)[1]


if __name__ == "__main__":  # python -m layerscope_paper.studies.factorial FILE.csv
    print("\n".join(summarize_stored(sys.argv[1])))
