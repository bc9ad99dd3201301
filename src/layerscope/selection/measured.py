"""The choice from an evaluation's scores, honest about what picking the best of many does to the promise.

Every candidate (readout, layer) is scored on the same resamples of each task's items. The best is taken, what picking it among
many on the same items is worth is taken off its gain, and weak evidence keeps the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerscope.core.conventions import Reading
from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names
from layerscope.core.sites import site_of
from layerscope.core.statistics import Z95, Interval
from layerscope.errors import LayerscopeError
from layerscope.evaluation.run import ItemScores, resampled, same_items
from layerscope.selection import budget as budgets
from layerscope.selection.choice import NOTHING, Choice

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

MOST_RISK = 0.2
RESAMPLES = 200
Candidate = tuple[str, int]  # readout, layer
Entry = tuple[str, str, str]  # task, split, subset
WhyNot = Callable[[Readout], str | None]
"""Why a readout cannot be used; None where it can."""


@dataclass(frozen=True)
class Measured:
    """Mean scores (points) of the candidates over the tasks, and deviations of those means on resampled items."""

    candidates: list[Candidate]
    score: np.ndarray
    draws: np.ndarray  # resamples × candidates
    paired: bool
    tasks: list[str]
    left_out: int

    def among(self, wanted: list[int]) -> Measured:
        """Only some of the candidates."""
        names = [self.candidates[i] for i in wanted]
        return Measured(names, self.score[wanted], self.draws[:, wanted], self.paired, self.tasks, self.left_out)

    def last(self, readout: str) -> int | None:
        """The candidate at the last layer under a readout."""
        layers = [(layer, i) for i, (name, layer) in enumerate(self.candidates) if name == readout]
        return max(layers)[1] if layers else None

    def gain(self, one: int, other: int, price: float = 0.0) -> Interval:
        """One candidate minus another, less a price, with its 95 % interval over the items."""
        if one == other:
            return NOTHING
        value = float(self.score[one] - self.score[other]) - price
        low, high = np.quantile(self.draws[:, one] - self.draws[:, other] + value, [0.025, 0.975])
        return Interval(value, float(low), float(high))


def measure(evaluation: Evaluation, readouts: set[str] | None = None, seed: int = 0) -> Measured:
    """Means over tasks, each task with equal weight, for the candidates that every task has."""
    table = with_readout(evaluation.gains.dropna(subset=["score"]))
    if readouts is not None:
        table = table[table["readout"].isin(readouts)]
    if table.empty:
        named = f" for {', '.join(sorted(readouts))}" if readouts else ""
        raise LayerscopeError(f"the evaluation in {evaluation.path} has no scores{named}.")
    entries = list(table.groupby(["task", "split", "subset"], sort=True))
    counts = table.groupby(["readout", "layer"]).size()
    complete = counts[counts == len(entries)].index.to_list()
    everywhere: list[Candidate] = sorted((str(name), int(layer)) for name, layer in complete)
    if not everywhere:
        raise LayerscopeError("no layer was scored on every task of the evaluation, so layers cannot be compared.")
    items = evaluation.items()
    weight = {task: 1 / sum(str(key[0]) == task for key, _ in entries) for task in {str(key[0]) for key, _ in entries}}
    score = np.zeros(len(everywhere))
    draws: Any = 0.0
    paired = True
    for key, rows in entries:
        entry = (str(key[0]), str(key[1]), str(key[2]))
        by = rows.set_index(["readout", "layer"])["score"]
        share = 100 * weight[entry[0]] / len(weight)
        score += share * np.array([float(by[c]) for c in everywhere])
        moved, in_pairs = task_draws(entry, rows, everywhere, items.get(entry, {}), seed)
        # each task's items are its own, so its resamples must not follow another task's order
        order = np.random.default_rng([seed, len(draws) if isinstance(draws, np.ndarray) else 0]).permutation(len(moved))
        draws = draws + share * moved[order]
        paired &= in_pairs
    return Measured(everywhere, score, draws, paired, sorted(weight), len(counts) - len(everywhere))


def tied_with(measured: Measured, best: int) -> list[int]:
    """Candidates that cannot be told from the best, at 95 % for all comparisons at once."""
    lead = measured.score[best] - measured.score
    moves = measured.draws[:, [best]] - measured.draws
    error = moves.std(axis=0, ddof=1)
    moving = error > 1e-12
    if not moving.any():
        return [int(i) for i in np.flatnonzero(lead <= 1e-12)]
    most = np.max(moves[:, moving] / error[moving], axis=1)
    limit = float(np.quantile(most, 0.95))
    return [int(i) for i in np.flatnonzero(lead <= limit * error + 1e-12)]


def optimism(measured: Measured) -> float:
    """How much better than itself the best candidate looks for having been picked on the same items."""
    resampled_scores = measured.score + measured.draws
    winners = resampled_scores.argmax(axis=1)
    rows = np.arange(len(winners))
    return max(0.0, float((resampled_scores[rows, winners] - measured.score[winners]).mean()))


def _optimism_of_readout(measured: Measured, whole: float) -> float:
    """The part of the optimism that picking the readout makes: how the last layer under each winner's readout moves."""
    winners = (measured.score + measured.draws).argmax(axis=1)
    lasts = {name: measured.last(name) for name in {candidate[0] for candidate in measured.candidates}}
    moved = [measured.draws[row, lasts[measured.candidates[winner][0]]] for row, winner in enumerate(winners)]
    return float(np.clip(np.mean(moved), 0.0, whole))


def choose_measured(
    evaluation: Evaluation,
    *,
    readouts: Collection[str] | None = None,
    layer: int | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    usable: WhyNot | None = None,
) -> Choice:
    """The answer from measured scores, over the last layer under the default readout.

    `readouts` and `layer` restrict the choice; a layer that was asked for is not abstained from. `usable` says why a readout
    cannot be used: better candidates that cannot be are named in `passed_over`.
    """
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    known = {name: Readout.from_row(row) for name, row in _readouts(evaluation).items()}
    refused = {name: why for name, value in known.items() if usable is not None and (why := usable(value)) is not None}
    wanted = {name for name in known if readouts is None or name in readouts}
    if not wanted:
        asked = (
            f"did not measure {', '.join(readouts)}. It measured: {', '.join(sorted(known))}." if readouts else "has no scores."
        )
        raise LayerscopeError(f"the evaluation in {evaluation.path} {asked}")
    every = measure(evaluation, None if readouts is None else wanted | ({DEFAULT_READOUT} & set(known)), seed)
    fitting = [i for i, (name, at) in enumerate(every.candidates) if name in wanted and layer in (None, at)]
    if not fitting:
        layers = sorted({at for name, at in every.candidates if name in wanted})
        raise LayerscopeError(f"the evaluation in {evaluation.path} did not measure layer {layer}; it measured {layers}.")
    open_to = [i for i in fitting if every.candidates[i][0] not in refused]
    if not open_to:
        name = every.candidates[fitting[0]][0]
        raise LayerscopeError(f"no readout of the evaluation in {evaluation.path} can be used: {name}: {refused[name]}.")
    measured = every.among(open_to)
    picked = int(measured.score.argmax())
    tied = tied_with(measured, picked)
    chosen, warning = _shallower(measured, picked, tied, blocks, budget, tolerance)
    warnings = [warning] if warning else []
    own = measured.candidates[chosen][0]
    at, same_last = open_to[chosen], every.last(own)
    assert same_last is not None, "the chosen readout has a last layer"
    default_last = every.last(DEFAULT_READOUT)
    reference = same_last if default_last is None else default_last
    price = optimism(measured) if at != reference and len(open_to) > 1 else 0.0
    gains = _split(every, measured, at, same_last, reference, price)
    fallback = reference if DEFAULT_READOUT in wanted - set(refused) else same_last
    risk = _risk(every, at, reference, gains[0].value) if at != reference else 0.0
    risk_kept = risk if fallback == reference else _risk(every, at, fallback, gains[2].value) if at != fallback else 0.0
    if not every.paired:
        warnings.append(
            "items are not stored for every task: layers were compared as if scored on different items, which is careful."
        )
    if every.left_out:
        warnings.append(f"{every.left_out} layers or readouts lack a score on some task and were left out.")
    abstained = bool(at != fallback and risk_kept > MOST_RISK and budget is None and layer is None)
    names = f"{len(every.tasks)} task{'s' if len(every.tasks) != 1 else ''}"
    many = f"best of {len(measured.candidates)} on {names}; {price:.2f} points were taken off for picking it on the same items"
    if abstained:
        reason = (
            f"layer {every.candidates[at][1]} is {many}, and would lose to the last in {risk_kept:.0%} of resamples: "
            "the last layer is kept."
        )
        at = fallback
        gains = _split(every, measured, at, at, reference, 0.0)
        risk = _risk(every, at, reference, gains[0].value) if at != reference else 0.0
    elif layer is not None:
        reason = f"layer {layer} was asked for; its gain was measured on {names}."
    else:
        reason = f"{many}." if chosen == picked else f"earliest layer near the {many}."
    name, number = every.candidates[at]
    conventions = evaluation.manifest.get("conventions", {})
    whole, by_readout, by_layer = gains
    return Choice(
        layer=number,
        site=site_of(number),
        readout=name,
        expected_gain=whole.value,
        ci_low=whole.low,
        ci_high=whole.high,
        risk_of_loss=risk,
        tied=tuple(sorted({measured.candidates[i][1] for i in tied if measured.candidates[i][0] == name} | {number})),
        rule="measured",
        blocks_saved=blocks - number,
        gain_readout=by_readout,
        gain_layer=by_layer,
        layers=blocks,
        model=str(evaluation.manifest["model"]["name"]),
        reason=reason,
        warnings=tuple(warnings),
        abstained=abstained,
        metric=f"mean score over {names}",
        before=float(every.score[reference]),
        after=float(every.score[at]),
        identity=dict(evaluation.manifest["model"]),
        source=None if evaluation.path is None else str(evaluation.path),
        max_length=Reading.of(conventions).max_length,
        unit_length=conventions.get("unit_length"),
        center_on=str(evaluation.path) if known[name].centering != "none" else None,
        passed_over=_passed_over(every, fitting, at, refused),
        extra={
            "reference": "/".join((every.candidates[reference][0], f"layer {every.candidates[reference][1]}")),
            "score": float(every.score[at]),
            "reference_score": float(every.score[reference]),
            "gain_same_readout": float(every.score[at] - every.score[same_last]),
            "optimism": price,
            "tasks": every.tasks,
            "candidates": len(measured.candidates),
            "tied_candidates": [{"readout": measured.candidates[i][0], "layer": measured.candidates[i][1]} for i in tied],
        },
    )


def _split(
    every: Measured, measured: Measured, at: int, same_last: int, reference: int, price: float
) -> tuple[Interval, Interval, Interval]:
    """The whole gain, the readout's part and the layer's part; the price of picking is split as the picking was."""
    by_readout = price if at == same_last else 0.0 if same_last == reference else _optimism_of_readout(measured, price)
    readout = every.gain(same_last, reference, by_readout)
    layer = every.gain(at, same_last, price - by_readout)
    return every.gain(at, reference, price), readout, layer


def _risk(every: Measured, one: int, other: int, gain: float) -> float:
    moves = every.draws[:, one] - every.draws[:, other] + gain
    return float((np.sum(moves < 0) + 0.5) / (len(moves) + 1))


def _passed_over(every: Measured, fitting: list[int], at: int, refused: dict[str, str]) -> tuple[str, ...]:
    """The best candidate that cannot be used, if it scored higher than the choice."""
    better = [i for i in fitting if every.candidates[i][0] in refused and every.score[i] > every.score[at]]
    if not better:
        return ()
    best = max(better, key=lambda i: every.score[i])
    name, layer = every.candidates[best]
    scores = f"{every.score[best]:.2f} against {every.score[at]:.2f}"
    return (f"{name} at layer {layer} scored higher ({scores}), but cannot be used: {refused[name]}.",)


def _shallower(
    measured: Measured, best: int, tied: list[int], blocks: int, budget: float | None, tolerance: float | None
) -> tuple[int, str | None]:
    """A budget's layer, under the best candidate's readout."""
    own = measured.candidates[best][0]
    where = {layer: i for i, (readout, layer) in enumerate(measured.candidates) if readout == own}
    gain = np.full(blocks + 1, -np.inf)
    for layer, i in where.items():
        gain[layer] = measured.score[i]
    near = tuple(measured.candidates[i][1] for i in tied if measured.candidates[i][0] == own)
    layer, warning = budgets.earliest(gain, measured.candidates[best][1], near, budget, tolerance)
    return where[layer], warning


def _readouts(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """The readouts that were measured, by name."""
    table = with_readout(evaluation.gains.dropna(subset=["score"])).drop_duplicates("readout")
    return {str(row["readout"]): {str(k): v for k, v in row.items()} for row in table.to_dict(orient="records")}


# --- scores of every candidate on the same resamples of each task's items, from an evaluation's folder ------------------------


def with_readout(gains: pd.DataFrame) -> pd.DataFrame:
    """The table with a column that names the readout."""
    return gains.assign(readout=pd.Series(readout_names(gains), index=gains.index, dtype=object))


def task_draws(
    entry: Entry, rows: pd.DataFrame, candidates: list[Candidate], items: dict[Candidate, ItemScores], seed: int
) -> tuple[np.ndarray, bool]:
    """Deviations of each candidate's score from its own value (resamples × candidates), and whether they are paired.

    Without stored items they are drawn from the intervals of the gains, each candidate by itself, which is too careful.
    """
    scores = rows.set_index(["readout", "layer"])["score"]
    if all(c in items for c in candidates) and same_items([items[c] for c in candidates]):
        drawn = resampled({i: items[c] for i, c in enumerate(candidates)}, seed, RESAMPLES)
        table = np.column_stack([drawn[i] for i in range(len(candidates))])
        point = np.array([items[c].score() for c in candidates])
        return np.nan_to_num(table - point), True
    wide = (rows.set_index(["readout", "layer"])["ci_high"] - rows.set_index(["readout", "layer"])["ci_low"]) / (2 * Z95)
    sd = np.nan_to_num(np.array([float(wide.get(c, math.nan)) for c in candidates]))
    assert len(scores) >= len(candidates)
    noise = np.random.default_rng([seed, len("/".join(entry))]).standard_normal((RESAMPLES, len(candidates)))
    return noise * sd, False
