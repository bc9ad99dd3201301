"""The choice from an evaluation's scores.

Every candidate (a layer under a readout) is scored on the same resamples of each task's items. The
choice and its gain are made on the same items: `SplitScores` says what such a choice gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from layerscope.choose.candidates import Candidate, block_limits
from layerscope.choose.choice import Choice
from layerscope.choose.claims import SplitScores
from layerscope.choose.decide import Decision, decide, unblocked
from layerscope.core.conventions import Reading
from layerscope.core.readout import Readout, readout_names
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import INTERVAL, Z95, bootstrap_weights
from layerscope.errors import LayerscopeError
from layerscope.evaluation.items import ItemScores, resampled, same_items
from layerscope.evaluation.run import DEFAULT_GAIN, TASK_COLUMNS

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

_TASKS = 5  # fewer say too little about how much tasks differ
_OTHER_READOUT = "another readout was asked for"
_MISSING = "items are not stored for every task: "

WhyNot = Callable[[Readout], str | None]
"""From a readout to the reason why it cannot be used; None where it can."""


@dataclass(frozen=True)
class Measured:
    """Candidates with their mean scores over tasks, in points, and notes on these scores."""

    candidates: list[Candidate]
    scores: Scores
    tasks: list[str]
    notes: tuple[str, ...]

    def last_of(self, candidate: int) -> int:
        """Return the last layer under the candidate's readout."""
        readout = self.candidates[candidate].readout
        places = [i for i, sibling in enumerate(self.candidates) if sibling.readout == readout]
        return max(places, key=lambda place: self.candidates[place].layer)

    @property
    def default(self) -> int | None:
        """The last layer under the default readout; None if it was not measured."""
        readouts = [candidate.readout for candidate in self.candidates]
        return self.last_of(readouts.index(Readout())) if Readout() in readouts else None


def measure(
    evaluation: Evaluation, readouts: Collection[str] | None = None, seed: int = 0
) -> Measured:
    """Return the mean scores of the candidates that every task has; each task weighs the same.

    Where nothing is known of a task's items, draws are over tasks if there are enough of them, and
    otherwise None.
    """
    table = evaluation.gains.dropna(subset=["score"])
    table = table.assign(readout=readout_names(table))
    if readouts is not None:
        table = table[table["readout"].isin(readouts)]
    wide = table.pivot(index=["readout", "layer"], columns=TASK_COLUMNS, values="score")
    complete = wide.dropna()
    if complete.empty:
        raise LayerscopeError(
            "no layer was scored on every task of the evaluation, so layers cannot be compared."
        )
    by_task = 100 * complete.T.groupby(level="task").mean()
    tasks = [str(task) for task in by_task.index]
    parts_of_task = complete.columns.get_level_values("task").value_counts()
    values = by_task.mean().to_numpy()
    moved = np.zeros((len(values), DRAWS))
    sources = []
    for number, (key, rows) in enumerate(table.groupby(TASK_COLUMNS)):
        task_part = (str(key[0]), str(key[1]), str(key[2]))
        moves, source = _resample(evaluation, task_part, rows, list(complete.index), seed)
        # each task's items are its own, so its resamples must not follow another task's order
        order = np.random.default_rng([seed, number]).permutation(DRAWS)
        moved += 100 / parts_of_task[task_part[0]] / len(tasks) * moves[:, order]
        sources.append(source)
    draws: np.ndarray | None = values[:, None] + moved
    notes = []
    if "unknown" in sources and len(tasks) < _TASKS:
        draws = None
        notes.append(f"{_MISSING}how certain the scores are is not known.")
    elif "unknown" in sources:
        draws = values[:, None] + _spread_over_tasks(by_task.to_numpy(), seed)
        notes.append(f"{_MISSING}layers were compared by how they differ from task to task.")
    elif "intervals" in sources:
        notes.append(
            f"{_MISSING}layers were compared by their intervals, as if scored on different items."
        )
    if len(complete) < len(wide):
        notes.append(
            f"{len(wide) - len(complete)} layers or readouts lack a score on some task and were "
            "left out."
        )
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    candidates = [
        Candidate(tuple(range(layer)), readout=Readout.parse(name), cost=layer / blocks)
        for name, layer in complete.index
    ]
    return Measured(candidates, Scores(values, draws, f"{len(tasks)} tasks"), tasks, tuple(notes))


def _spread_over_tasks(points: np.ndarray, seed: int) -> np.ndarray:
    """Return deviations (candidates, draws) of the means of points (tasks, candidates) over tasks
    drawn anew, as wide as Student's t."""
    count = len(points)
    wider = math.sqrt(count / (count - 1)) * float(stdtrit(count - 1, 0.975)) / Z95
    weights = bootstrap_weights(count, DRAWS, [seed, count]) / count
    return wider * (weights @ (points - points.mean(0))).T


def _resample(
    evaluation: Evaluation,
    task_part: tuple[str, str, str],
    rows: pd.DataFrame,
    places: list[tuple[str, int]],
    seed: int,
) -> tuple[np.ndarray, str]:
    """Return deviations of each candidate's score on one task (candidates, draws), and their source.

    Without stored items they are drawn from the intervals of the gains, each candidate by itself.
    """
    stored = evaluation.items().get(task_part, {})
    items: list[ItemScores] = [stored[place] for place in places if place in stored]
    if len(items) == len(places) and same_items(items):
        scores = np.array([[item.score()] for item in items])
        return np.nan_to_num(resampled(items, seed) - scores), "items"
    bounds = rows.set_index(["readout", "layer"]).reindex(places)
    for columns in (DEFAULT_GAIN[1:], list(INTERVAL)):
        low, high = bounds.reindex(columns=columns).to_numpy(dtype=float).T
        error = (high - low) / (2 * Z95)
        if np.isfinite(error).all() and error.max() > 0:
            # a layer has no error against itself, which does not say that its score has none
            error = np.where(error > 0, error, error.max())
            rng = np.random.default_rng([seed, len("/".join(task_part))])
            return (rng.standard_normal((DRAWS, len(places))) * error).T, "intervals"
    return np.zeros((len(places), DRAWS)), "unknown"


def choose_measured(
    evaluation: Evaluation,
    *,
    readouts: Collection[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    usable: WhyNot | None = None,
) -> Choice:
    """Choose by measured scores, over the last layer under the default readout.

    `readouts` restricts the choice. `usable` says why a readout cannot be used: better candidates
    that cannot be are named in `passed_over`.
    """
    manifest = evaluation.manifest
    blocks = int(manifest["model"]["n_blocks"])
    measured_names = set(readout_names(evaluation.gains.dropna(subset=["score"])))
    if not measured_names:
        raise LayerscopeError(f"the evaluation in {evaluation.path} has no scores.")
    allowed = measured_names if readouts is None else measured_names & set(readouts)
    if not allowed:
        raise LayerscopeError(
            f"the evaluation in {evaluation.path} did not measure {', '.join(readouts or [])}. "
            f"It measured: {', '.join(sorted(measured_names))}."
        )
    measured = measure(evaluation, allowed | {Readout().name}, seed)
    candidates = [_block(candidate, allowed, usable) for candidate in measured.candidates]
    open_to = unblocked(candidates)
    if not open_to.any():
        unusable = next(entry for entry in candidates if entry.blocked != _OTHER_READOUT)
        raise LayerscopeError(
            f"no readout of the evaluation in {evaluation.path} can be used: "
            f"{unusable.readout}: {unusable.blocked}."
        )
    scores = measured.scores
    default = measured.default
    lasts = [measured.last_of(i) for i in range(len(candidates))]
    stays = lasts
    if default is not None and open_to[default]:
        stays = [default] * len(candidates)
    references = lasts if default is None else [*lasts, default]
    split = SplitScores.of(scores, open_to, stays, references, seed)
    limits = block_limits(max_blocks, tolerance, blocks)
    if max_blocks is None:
        limits = replace(limits, lead=split.lead)
    decision = decide(candidates, [scores], stays, limits, split.claim, split.noise)
    chosen = decision.chosen
    last = lasts[decision.chosen]
    reference = last if default is None else default
    claim = split.claim(decision.rule, chosen, reference)
    candidate = candidates[chosen]
    abstained = chosen == decision.baseline and chosen != decision.best and max_blocks is None
    count = len(measured.tasks)
    tasks = f"{count} task{'s' * (count != 1)}"
    conventions = manifest.get("conventions", {})
    path = None if evaluation.path is None else str(evaluation.path)
    is_centered = candidate.readout is not None and candidate.readout.centering != "none"
    return Choice(
        layer=candidate.layer,
        readout=candidate.readout_name,
        gain=claim.gain,
        risk_of_loss=claim.risk,
        tied=decision.tied_layers,
        rule="measured",
        gain_readout=split.claim(decision.rule, chosen, reference, last).gain,
        gain_layer=split.claim(decision.rule, chosen, last).gain,
        layers=blocks,
        model=str(manifest["model"]["name"]),
        reason=_reason(decision, int(open_to.sum()), tasks, abstained),
        warnings=(*bound_warning(decision), *measured.notes),
        abstained=abstained,
        metric=f"mean score over {tasks}",
        before=claim.before,
        after=claim.after,
        identity=dict(manifest["model"]),
        source=path,
        max_length=Reading.of(conventions).max_length,
        unit_length=conventions.get("unit_length"),
        center_on=path if is_centered else None,
        passed_over=_passed_over(candidates, scores, chosen),
    )


def _block(candidate: Candidate, allowed: Collection[str], usable: WhyNot | None) -> Candidate:
    """Return a candidate with the reason why it may not be chosen, if there is one."""
    if candidate.readout is None or candidate.readout.name not in allowed:
        return replace(candidate, blocked=_OTHER_READOUT)
    return replace(candidate, blocked=(usable and usable(candidate.readout)) or "")


def _reason(decision: Decision, count: int, tasks: str, abstained: bool) -> str:
    """Return why this candidate was chosen, in words."""
    best = f"best of {count} on {tasks}"
    if abstained:
        doubt = "equal candidates can differ as much"
        if decision.expected.draws is None:
            doubt = "how certain that is is not known"
        layer = decision.rule.candidates[decision.best].layer
        return f"layer {layer} is {best}, but {doubt}: the last layer is kept."
    if decision.chosen != decision.best:
        near = "earliest layer near the" if decision.rule.limits.tolerance else "near the"
        best = f"{near} {best}"
    return f"{best}; the gain leaves out what picking it on the same items is worth."


def bound_warning(decision: Decision) -> list[str]:
    """Return a warning if no layer within the bound is near the best."""
    if decision.kept:
        return []
    values = decision.expected.values
    lost = values[decision.best] - values[decision.chosen]
    layer = decision.rule.candidates[decision.chosen].layer
    return [
        f"no layer within max_blocks= is within {decision.rule.limits.tolerance:g} points of the "
        f"best: layer {layer} is expected to be {lost:.1f} below."
    ]


def _passed_over(candidates: list[Candidate], scores: Scores, chosen: int) -> tuple[str, ...]:
    """Return the best candidate that cannot be used, in words, if it scored above the choice."""
    unusable = np.array([entry.blocked not in ("", _OTHER_READOUT) for entry in candidates])
    best = scores.best(unusable)
    if not unusable.any() or scores.values[best] <= scores.values[chosen]:
        return ()
    candidate = candidates[best]
    points = f"{scores.values[best]:.2f} against {scores.values[chosen]:.2f}"
    return (
        f"{candidate.readout_name} at layer {candidate.layer} scored higher ({points}), but cannot "
        f"be used: {candidate.blocked}.",
    )
