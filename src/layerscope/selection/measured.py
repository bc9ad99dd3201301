"""The choice from an evaluation's scores, honest about what picking the best of many does to the
promise.

Every candidate (readout, layer) is scored on the same resamples of each task's items.
`core.picking` chooses, keeps the last layer where the evidence is weak, and says what a choice
gains that was made on the same items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from layerscope.core.candidates import DRAWS, Place, ScoredCandidates
from layerscope.core.conventions import Reading
from layerscope.core.picking import pick
from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names, readouts_of
from layerscope.core.statistics import INTERVAL, Z95, bootstrap_weights, student_quantile
from layerscope.errors import LayerscopeError
from layerscope.evaluation.items import ItemScores, resampled, same_items
from layerscope.evaluation.run import DEFAULT_GAIN
from layerscope.selection import shallower
from layerscope.selection.choice import Choice

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

_TASKS = 5  # fewer say too little about how much tasks differ

Entry = tuple[str, str, str]  # task, split, subset
WhyNot = Callable[[Readout], str | None]
"""Why a readout cannot be used; None where it can."""


def measure(
    evaluation: Evaluation, readouts: set[str] | None = None, seed: int = 0
) -> ScoredCandidates:
    """Means over tasks in points, each task with equal weight, for the candidates that every task
    has.

    `facts` has the `tasks`, whether all candidates are `paired` (scored on the same items), and how
    many were `left_out`. Where nothing is known of a task's items, draws are over tasks
    (`by_tasks`) if there are enough of them, and otherwise None.
    """
    table = with_readout(evaluation.gains.dropna(subset=["score"]))
    if readouts is not None:
        table = table[table["readout"].isin(readouts)]
    if table.empty:
        named = f" for {', '.join(sorted(readouts))}" if readouts else ""
        raise LayerscopeError(f"the evaluation in {evaluation.path} has no scores{named}.")
    entries = list(table.groupby(["task", "split", "subset"], sort=True))
    counts = table.groupby(["readout", "layer"]).size()
    complete = counts[counts == len(entries)].index.to_list()
    everywhere = sorted((str(name), int(layer)) for name, layer in complete)
    if not everywhere:
        raise LayerscopeError(
            "no layer was scored on every task of the evaluation, so layers cannot be compared."
        )
    items = evaluation.items()
    weight = {
        task: 1 / sum(str(key[0]) == task for key, _ in entries)
        for task in {str(key[0]) for key, _ in entries}
    }
    names, layers = (
        sorted({name for name, _ in everywhere}),
        sorted({layer for _, layer in everywhere}),
    )
    at = tuple(np.array([(names.index(name), layers.index(layer)) for name, layer in everywhere]).T)
    score, draws = (
        np.full((len(names), len(layers)), np.nan),
        np.full((len(names), len(layers), DRAWS), np.nan),
    )
    score[at], draws[at] = 0.0, 0.0
    paired, by_tasks = True, False
    each = {task: np.zeros(len(everywhere)) for task in weight}
    for number, (key, rows) in enumerate(entries):
        entry = (str(key[0]), str(key[1]), str(key[2]))
        by = rows.set_index(["readout", "layer"])
        share = 100 * weight[entry[0]] / len(weight)
        own = np.array([float(by["score"][candidate]) for candidate in everywhere])
        moved, in_pairs = task_draws(entry, by, everywhere, items.get(entry, {}), seed)
        # each task's items are its own, so its resamples must not follow another task's order
        order = np.random.default_rng([seed, number]).permutation(DRAWS)
        score[at] += share * own
        each[entry[0]] += 100 * weight[entry[0]] * own
        draws[at] += share * own[:, None] + (0 if moved is None else share * moved[:, order])
        paired, by_tasks = paired and in_pairs, by_tasks or moved is None
    facts = {
        "paired": paired,
        "by_tasks": by_tasks,
        "tasks": sorted(weight),
        "left_out": len(counts) - len(everywhere),
    }
    if by_tasks and len(weight) >= _TASKS:
        draws[at] = score[at][:, None] + _spread(np.stack(list(each.values())), seed)
    known = not by_tasks or len(weight) >= _TASKS
    return ScoredCandidates(score, draws if known else None, names, layers, "evaluation", facts)


def _spread(points: np.ndarray, seed: int) -> np.ndarray:
    """Deviations (candidates, draws) of the means of points (tasks, candidates) over tasks drawn
    anew, as wide as Student's t."""
    count = len(points)
    wider = math.sqrt(count / (count - 1)) * student_quantile(0.975, count - 1) / Z95
    return (
        wider
        * (bootstrap_weights(count, DRAWS, [seed, count]) / count @ (points - points.mean(0))).T
    )


def last_of(scored: ScoredCandidates, row: int) -> Place:
    """The last layer under a readout."""
    return row, int(np.flatnonzero(scored.defined[row])[-1])


def choose_measured(
    evaluation: Evaluation,
    *,
    readouts: Collection[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    usable: WhyNot | None = None,
) -> Choice:
    """The answer from measured scores, over the last layer under the default readout.

    `readouts` restricts the choice. `usable` says why a readout cannot be used: better candidates
    that cannot be are named in `passed_over`.
    """
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    known = {
        readout.name: readout for readout in readouts_of(evaluation.gains.dropna(subset=["score"]))
    }
    refused = {
        name: why
        for name, value in known.items()
        if usable is not None and (why := usable(value)) is not None
    }
    wanted = {name for name in known if readouts is None or name in readouts}
    if not wanted:
        asked = (
            f"did not measure {', '.join(readouts)}. It measured: {', '.join(sorted(known))}."
            if readouts
            else "has no scores."
        )
        raise LayerscopeError(f"the evaluation in {evaluation.path} {asked}")
    every = measure(
        evaluation, None if readouts is None else wanted | ({DEFAULT_READOUT} & set(known)), seed
    )
    names, layers = list(every.readouts), list(every.layers)
    fitting = every.defined & np.isin(names, list(wanted))[:, None]
    open_to = fitting & ~np.isin(names, list(refused))[:, None]
    if not open_to.any():
        name = names[int(np.argwhere(fitting)[0][0])]
        raise LayerscopeError(
            f"no readout of the evaluation in {evaluation.path} can be used: {name}: {refused[name]}."
        )
    measured = every.where(open_to)
    best, tied = measured.best(), measured.tied()
    slack = cache(lambda place: measured.slack(place, measured.defined))
    default = last_of(every, names.index(DEFAULT_READOUT)) if DEFAULT_READOUT in names else None
    stays = (
        default if DEFAULT_READOUT in wanted - set(refused) else None
    )  # else the last layer under the same readout

    def shallower(values: np.ndarray) -> int:
        score = np.full(every.score.shape, np.nan)
        score[tuple(np.array(places).T)] = values[: len(places)]
        drawn = replace(measured, score=score)
        top = drawn.best()
        # what is tied is told by the same scores: by those that were measured, the choice would
        # know what the gain is judged by
        return places.index(
            _shallower(drawn, top, score[top] - score <= slack(top), blocks, max_blocks, tolerance)[
                0
            ]
        )

    places: list[Place] = list(map(tuple, np.argwhere(open_to).tolist()))
    lasts = tuple({last_of(every, r) for r in range(len(names)) if every.defined[r].any()})
    picking = pick(
        every,
        open_to,
        lambda place: stays or last_of(every, place[0]),
        (*lasts, *([] if default is None else [default])),
        rule=None if max_blocks is None and tolerance is None else shallower,
        forced=max_blocks is not None,
        seed=seed,
    )
    at, same_last = picking.place, last_of(every, picking.place[0])
    reference = default or same_last
    _, warning = _shallower(measured, best, tied, blocks, max_blocks, tolerance)
    warnings = [warning] if warning else []
    missing = "items are not stored for every task: "
    if every.draws is None:
        warnings.append(f"{missing}how certain the scores are is not known.")
    elif every.facts["by_tasks"]:
        warnings.append(f"{missing}layers were compared by how they differ from task to task.")
    elif not every.facts["paired"]:
        warnings.append(
            f"{missing}layers were compared by their intervals, as if scored on different items."
        )
    if every.facts["left_out"]:
        warnings.append(
            f"{every.facts['left_out']} layers or readouts lack a score on some task and were left out."
        )
    tasks, candidates = every.facts["tasks"], int(open_to.sum())
    abstained = not picking.moved and best != at and max_blocks is None
    on = f"{len(tasks)} task{'s' if len(tasks) != 1 else ''}"
    many = f"best of {candidates} on {on}"
    if abstained:
        luck = (
            "equal candidates can differ as much"
            if every.draws is not None
            else "how certain that is is not known"
        )
        reason = f"layer {layers[best[1]]} is {many}, but {luck}: the last layer is kept."
    else:
        how = (
            ""
            if at == best
            else "near the "
            if max_blocks is None and tolerance is None
            else "earliest layer near the "
        )
        reason = f"{how}{many}; the gain leaves out what picking it on the same items is worth."
    name, number = names[at[0]], layers[at[1]]
    conventions = evaluation.manifest.get("conventions", {})
    return Choice(
        layer=number,
        readout=name,
        gain=picking.gain(at, reference),
        risk_of_loss=None if math.isnan(risk := picking.risk(at, reference)) else risk,
        tied=tuple(sorted({layers[k] for k in np.flatnonzero(tied[at[0]])} | {number})),
        rule="measured",
        gain_readout=picking.gain(same_last, reference),
        gain_layer=picking.gain(at, same_last),
        layers=blocks,
        model=str(evaluation.manifest["model"]["name"]),
        reason=reason,
        warnings=tuple(warnings),
        abstained=abstained,
        metric=f"mean score over {on}",
        before=float(every.score[reference]),
        after=float(every.score[at]),
        identity=dict(evaluation.manifest["model"]),
        source=None if evaluation.path is None else str(evaluation.path),
        max_length=Reading.of(conventions).max_length,
        unit_length=conventions.get("unit_length"),
        center_on=str(evaluation.path) if known[name].centering != "none" else None,
        passed_over=_passed_over(every, fitting, at, refused),
        extra={
            "reference": f"{names[reference[0]]}/layer {layers[reference[1]]}",
            "score": float(every.score[at]),
            "reference_score": float(every.score[reference]),
            "gain_same_readout": float(every.score[at] - every.score[same_last]),
            "optimism": float(every.score[at] - every.score[reference])
            - picking.gain(at, reference).value,
            "tasks": tasks,
            "candidates": candidates,
            "tied_candidates": [
                {"readout": names[r], "layer": layers[k]} for r, k in np.argwhere(tied)
            ],
        },
    )


def _passed_over(
    every: ScoredCandidates, fitting: np.ndarray, at: Place, refused: dict[str, str]
) -> tuple[str, ...]:
    """The best candidate that cannot be used, if it scored higher than the choice."""
    unusable = fitting & np.isin(every.readouts, list(refused))[:, None]
    best = every.best(unusable)
    if not (every.defined & unusable).any() or every.score[best] <= every.score[at]:
        return ()
    name = every.readouts[best[0]]
    scores = f"{every.score[best]:.2f} against {every.score[at]:.2f}"
    return (
        f"{name} at layer {every.layers[best[1]]} scored higher ({scores}), but cannot be used: {refused[name]}.",
    )


def _shallower(
    measured: ScoredCandidates,
    best: Place,
    tied: np.ndarray,
    blocks: int,
    max_blocks: float | None,
    tolerance: float | None,
) -> tuple[Place, str | None]:
    """The layer within `max_blocks`, under the best candidate's readout."""
    row, layers = best[0], list(measured.layers)
    gain = np.full(blocks + 1, -np.inf)
    gain[layers] = np.where(measured.defined[row], measured.score[row], -np.inf)
    near = tuple(layers[k] for k in np.flatnonzero(tied[row]))
    layer, warning = shallower.earliest(gain, layers[best[1]], near, max_blocks, tolerance)
    return (row, layers.index(layer)), warning


# --- scores of every candidate on the same resamples of each task's items, from an evaluation's
#   folder ------------------------


def with_readout(gains: pd.DataFrame) -> pd.DataFrame:
    """The table with a column that names the readout."""
    return gains.assign(readout=pd.Series(readout_names(gains), index=gains.index, dtype=object))


def task_draws(
    entry: Entry,
    rows: pd.DataFrame,
    candidates: list[tuple[str, int]],
    items: Mapping[tuple[str, int], ItemScores],
    seed: int,
) -> tuple[np.ndarray | None, bool]:
    """Deviations of each candidate's score from its own value (candidates × draws), and whether
    they are paired.

    Without stored items they are drawn from the intervals of the gains, each candidate by itself;
    None where there are none either. `rows` has a row per readout and layer.
    """
    own = [items[candidate] for candidate in candidates if candidate in items]
    if len(own) == len(candidates) and same_items(own):
        return np.nan_to_num(
            resampled(own, seed) - np.array([[item.score()] for item in own])
        ), True
    for names in (DEFAULT_GAIN[1:], list(INTERVAL)):
        low, high = rows.reindex(candidates).reindex(columns=names).to_numpy(dtype=float).T
        sd = (high - low) / (2 * Z95)
        if np.isfinite(sd).all() and sd.max() > 0:
            # a layer has no error against itself, which does not say that its score has none
            sd = np.where(sd > 0, sd, sd.max())
            noise = np.random.default_rng([seed, len("/".join(entry))]).standard_normal(
                (DRAWS, len(candidates))
            )
            return (noise * sd).T, False
    return None, False
