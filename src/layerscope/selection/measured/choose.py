"""The best layer and readout of an evaluation, what picking it among many is worth, and which others tie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError
from layerscope.selection import budget as budgets
from layerscope.selection.choice import Choice
from layerscope.selection.measured.draws import Candidate, task_draws, with_readout

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

MOST_RISK = 0.2


@dataclass(frozen=True)
class Measured:
    """Mean scores (points) of the candidates over the tasks, and deviations of those means on resampled items."""

    candidates: list[Candidate]
    score: np.ndarray
    draws: np.ndarray  # resamples × candidates
    paired: bool
    tasks: list[str]
    left_out: int


def measure(evaluation: Evaluation, readout: str | None = None, seed: int = 0) -> Measured:
    """Means over tasks for the candidates that every task has."""
    table = with_readout(evaluation.gains.dropna(subset=["score"]))
    if readout is not None:
        table = table[table["readout"] == readout]
    if table.empty:
        raise LayerscopeError(
            f"the evaluation in {evaluation.path} has no scores{f' for the readout {readout}' if readout else ''}."
        )
    entries = list(table.groupby(["task", "split", "subset"], sort=True))
    counts = table.groupby(["readout", "layer"]).size()
    held = counts[counts == len(entries)].index.to_list()
    everywhere: list[Candidate] = sorted((str(name), int(layer)) for name, layer in held)
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


def tied_with(found: Measured, best: int) -> list[int]:
    """Candidates that cannot be told from the best, at 95 % for all comparisons at once."""
    lead = found.score[best] - found.score
    moves = found.draws[:, [best]] - found.draws
    error = moves.std(axis=0, ddof=1)
    moving = error > 1e-12
    if not moving.any():
        return [int(i) for i in np.flatnonzero(lead <= 1e-12)]
    most = np.max(moves[:, moving] / error[moving], axis=1)
    limit = float(np.quantile(most, 0.95))
    return [int(i) for i in np.flatnonzero(lead <= limit * error + 1e-12)]


def optimism(found: Measured) -> float:
    """How much better than itself the best candidate looks for having been picked on the same items."""
    resampled = found.score + found.draws
    winners = resampled.argmax(axis=1)
    rows = np.arange(len(winners))
    return max(0.0, float((resampled[rows, winners] - found.score[winners]).mean()))


def choose_measured(
    evaluation: Evaluation,
    *,
    readout: str | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Choice:
    """The answer from measured scores; the last layer under the default readout is what it is compared with."""
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    found = measure(evaluation, readout, seed)
    best = int(found.score.argmax())
    reference = _reference(found, best)
    tied = tied_with(found, best)
    own = found.candidates[best][0]
    chosen, warning = _shallower(found, best, tied, own, blocks, budget, tolerance)
    price = optimism(found) if chosen != reference else 0.0
    gain = float(found.score[chosen] - found.score[reference]) - price
    moves = found.draws[:, chosen] - found.draws[:, reference] + gain
    low, high = (float(x) for x in np.quantile(moves, [0.025, 0.975]))
    risk = float((np.sum(moves < 0) + 0.5) / (len(moves) + 1)) if chosen != reference else 0.0
    warnings = [warning] if warning else []
    if not found.paired:
        warnings.append(
            "items are not stored for every task: layers were compared as if scored on different items, which is careful."
        )
    if found.left_out:
        warnings.append(f"{found.left_out} layers or readouts lack a score on some task and were left out.")
    abstained = bool(chosen != reference and risk > MOST_RISK and budget is None)
    names = f"{len(found.tasks)} task{'s' if len(found.tasks) != 1 else ''}"
    many = f"best of {len(found.candidates)} on {names}; {price:.2f} points were taken off for picking it on the same items"
    if abstained:
        layer = found.candidates[chosen][1]
        reason = f"layer {layer} is {many}, and would lose to the last in {risk:.0%} of resamples: the last layer is kept."
        chosen, gain, low, high, risk = reference, 0.0, 0.0, 0.0, 0.0
    else:
        reason = f"{many}." if chosen == best else f"earliest layer near the {many}."
    name, layer = found.candidates[chosen]
    return Choice(
        layer=layer,
        site=site_of(layer),
        readout=name,
        expected_gain=gain,
        ci_low=low,
        ci_high=high,
        risk_of_loss=risk,
        tied=sorted({found.candidates[i][1] for i in tied if found.candidates[i][0] == name} | {layer}),
        rule="measured",
        blocks_saved=blocks - layer,
        layers=blocks,
        model=str(evaluation.manifest["model"]["name"]),
        reason=reason,
        warnings=warnings,
        abstained=abstained,
        extra={
            "reference": "/".join((found.candidates[reference][0], f"layer {found.candidates[reference][1]}")),
            "score": float(found.score[chosen]),
            "reference_score": float(found.score[reference]),
            "gain_same_readout": float(found.score[chosen] - max(_lasts(found, name))[1]),
            "optimism": price,
            "tasks": found.tasks,
            "candidates": len(found.candidates),
            "tied_candidates": [{"readout": found.candidates[i][0], "layer": found.candidates[i][1]} for i in tied],
        },
    )


def _reference(found: Measured, best: int) -> int:
    """The last layer under the default readout, else under the best one's."""
    for name in (DEFAULT_READOUT, found.candidates[best][0]):
        layers = [(layer, i) for i, (readout, layer) in enumerate(found.candidates) if readout == name]
        if layers:
            return max(layers)[1]
    raise AssertionError("the best candidate has a readout")


def _lasts(found: Measured, readout: str) -> list[tuple[int, float]]:
    return [(layer, float(found.score[i])) for i, (name, layer) in enumerate(found.candidates) if name == readout]


def _shallower(
    found: Measured, best: int, tied: list[int], own: str, blocks: int, budget: float | None, tolerance: float | None
) -> tuple[int, str | None]:
    """A budget's layer, under the best candidate's readout."""
    where = {layer: i for i, (readout, layer) in enumerate(found.candidates) if readout == own}
    gain = np.full(blocks + 1, -np.inf)
    for layer, i in where.items():
        gain[layer] = found.score[i]
    near = tuple(found.candidates[i][1] for i in tied if found.candidates[i][0] == own)
    layer, warning = budgets.earliest(gain, found.candidates[best][1], near, budget, tolerance)
    return where[layer], warning
