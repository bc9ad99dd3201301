"""The choice from an evaluation's scores.

Every candidate (a layer under a readout) is scored on the same resamples of each task's items. The
choice and its gain are made on the same items: `SplitScores` says what such a choice gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from layerscope.choose.bounds import block_limits
from layerscope.choose.choice import Choice
from layerscope.choose.claims import SplitScores
from layerscope.choose.decide import Decision, decide
from layerscope.choose.types import Candidate
from layerscope.core.conventions import Reading
from layerscope.core.readout import Readout, readout_names, readouts_of
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import INTERVAL, Z95, bootstrap_weights
from layerscope.errors import LayerscopeError
from layerscope.evaluation.items import ItemScores, resampled, same_items
from layerscope.evaluation.run import DEFAULT_GAIN

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

_TASKS = 5  # fewer say too little about how much tasks differ

WhyNot = Callable[[Readout], str | None]
"""From a readout to why it cannot be used; None where it can."""


@dataclass(frozen=True)
class Measured:
    """Candidates with their mean scores over tasks, in points.

    `paired` says whether all were scored on the same items, `by_tasks` whether the items of a task
    are not known. `left_out` is the number of candidates that lack a score on some task.
    """

    candidates: list[Candidate]
    scores: Scores
    tasks: list[str]
    paired: bool
    by_tasks: bool
    left_out: int

    def last_of(self, candidate: int) -> int:
        """Return the last layer under the candidate's readout."""
        readout = self.candidates[candidate].readout
        places = [i for i, other in enumerate(self.candidates) if other.readout == readout]
        return max(places, key=lambda place: self.candidates[place].layer)

    @property
    def default(self) -> int | None:
        """The last layer under the default readout; None if it was not measured."""
        readouts = [candidate.readout for candidate in self.candidates]
        return self.last_of(readouts.index(Readout())) if Readout() in readouts else None

    def warnings(self) -> list[str]:
        """Return what is not known about the scores."""
        missing = "items are not stored for every task: "
        notes = []
        if self.scores.draws is None:
            notes.append(f"{missing}how certain the scores are is not known.")
        elif self.by_tasks:
            notes.append(f"{missing}layers were compared by how they differ from task to task.")
        elif not self.paired:
            notes.append(
                f"{missing}layers were compared by their intervals, as if scored on different items."
            )
        if self.left_out:
            notes.append(
                f"{self.left_out} layers or readouts lack a score on some task and were left out."
            )
        return notes


def measure(
    evaluation: Evaluation, readouts: Collection[str] | None = None, seed: int = 0
) -> Measured:
    """Return the mean scores of the candidates that every task has; each task weighs the same.

    Where nothing is known of a task's items, draws are over tasks if there are enough of them, and
    otherwise None.
    """
    table = evaluation.gains.dropna(subset=["score"])
    table = table.assign(readout=pd.Series(readout_names(table), index=table.index, dtype=object))
    if readouts is not None:
        table = table[table["readout"].isin(readouts)]
    if table.empty:
        named = f" for {', '.join(sorted(readouts))}" if readouts else ""
        raise LayerscopeError(f"the evaluation in {evaluation.path} has no scores{named}.")
    parts = list(table.groupby(["task", "split", "subset"], sort=True))
    counts = table.groupby(["readout", "layer"]).size()
    complete = counts[counts == len(parts)].index.to_list()
    places = sorted((str(name), int(layer)) for name, layer in complete)
    if not places:
        raise LayerscopeError(
            "no layer was scored on every task of the evaluation, so layers cannot be compared."
        )
    items = evaluation.items()
    parts_of_task = pd.Series([str(key[0]) for key, _ in parts]).value_counts()
    tasks = sorted(parts_of_task.index)
    by_task = {task: np.zeros(len(places)) for task in tasks}
    values, draws = np.zeros(len(places)), np.zeros((len(places), DRAWS))
    paired, by_tasks = True, False
    for number, ((task, split, subset), rows) in enumerate(parts):
        share = 100 / int(parts_of_task[str(task)]) / len(tasks)
        of_part = rows.set_index(["readout", "layer"])
        scores = np.array([float(of_part["score"][place]) for place in places])
        part_items = items.get((str(task), str(split), str(subset)), {})
        moves, in_pairs = _resample(f"{task}/{split}/{subset}", of_part, places, part_items, seed)
        values += share * scores
        by_task[str(task)] += share * len(tasks) * scores
        draws += share * scores[:, None]
        if moves is not None:
            # each task's items are its own, so its resamples must not follow another task's order
            order = np.random.default_rng([seed, number]).permutation(DRAWS)
            draws += share * moves[:, order]
        paired, by_tasks = paired and in_pairs, by_tasks or moves is None
    if by_tasks and len(tasks) >= _TASKS:
        draws = values[:, None] + _spread_over_tasks(np.stack(list(by_task.values())), seed)
    known = not by_tasks or len(tasks) >= _TASKS
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    by_name = {readout.name: readout for readout in readouts_of(table)}
    candidates = [
        Candidate(tuple(range(layer)), readout=by_name[name], cost=layer / blocks)
        for name, layer in places
    ]
    source = Scores(values, draws if known else None, f"{len(tasks)} tasks")
    return Measured(candidates, source, tasks, paired, by_tasks, len(counts) - len(places))


def _spread_over_tasks(points: np.ndarray, seed: int) -> np.ndarray:
    """Return deviations (candidates, draws) of the means of points (tasks, candidates) over tasks
    drawn anew, as wide as Student's t."""
    count = len(points)
    wider = math.sqrt(count / (count - 1)) * float(stdtrit(count - 1, 0.975)) / Z95
    weights = bootstrap_weights(count, DRAWS, [seed, count]) / count
    return wider * (weights @ (points - points.mean(0))).T


def _resample(
    name: str,
    rows: pd.DataFrame,
    places: list[tuple[str, int]],
    items: Mapping[tuple[str, int], ItemScores],
    seed: int,
) -> tuple[np.ndarray | None, bool]:
    """Return deviations of each candidate's score (candidates, draws), and whether they are paired.

    Without stored items they are drawn from the intervals of the gains, each candidate by itself;
    None where there are none either. `rows` has a row per readout and layer.
    """
    known = [items[place] for place in places if place in items]
    if len(known) == len(places) and same_items(known):
        scores = np.array([[item.score()] for item in known])
        return np.nan_to_num(resampled(known, seed) - scores), True
    for columns in (DEFAULT_GAIN[1:], list(INTERVAL)):
        low, high = rows.reindex(places).reindex(columns=columns).to_numpy(dtype=float).T
        sd = (high - low) / (2 * Z95)
        if np.isfinite(sd).all() and sd.max() > 0:
            # a layer has no error against itself, which does not say that its score has none
            sd = np.where(sd > 0, sd, sd.max())
            rng = np.random.default_rng([seed, len(name)])
            return (rng.standard_normal((DRAWS, len(places))) * sd).T, False
    return None, False


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
    known = [r.name for r in readouts_of(evaluation.gains.dropna(subset=["score"]))]
    asked = set(known) if readouts is None else set(known) & set(readouts)
    if not asked:
        raise LayerscopeError(
            f"the evaluation in {evaluation.path} did not measure {', '.join(readouts or [])}. "
            f"It measured: {', '.join(sorted(known))}."
            if readouts
            else f"the evaluation in {evaluation.path} has no scores."
        )
    measured = measure(evaluation, asked | {Readout().name}, seed)
    candidates = _block(measured.candidates, asked, usable)
    if all(candidate.blocked for candidate in candidates):
        unusable = next(one for one in candidates if one.blocked != _NOT_ASKED)
        raise LayerscopeError(
            f"no readout of the evaluation in {evaluation.path} can be used: "
            f"{unusable.readout}: {unusable.blocked}."
        )
    scores, default = measured.scores, measured.default
    lasts = [measured.last_of(i) for i in range(len(candidates))]
    stays = lasts
    if default is not None and not candidates[default].blocked:
        stays = [default] * len(candidates)
    open_to = np.array([not candidate.blocked for candidate in candidates])
    others = lasts if default is None else [*lasts, default]
    split = SplitScores.of(scores, open_to, stays, others, seed)
    limits = block_limits(max_blocks, tolerance, int(manifest["model"]["n_blocks"]))
    if max_blocks is None:
        limits = replace(limits, lead=split.lead)
    decision = decide(candidates, [scores], stays, limits, split.claim, split.noise)
    chosen, last = decision.chosen, lasts[decision.chosen]
    reference = last if default is None else default
    claim = split.claim(decision.rule, chosen, chosen, reference)
    by_readout = split.claim(decision.rule, chosen, last, reference)
    by_layer = split.claim(decision.rule, chosen, chosen, last)
    candidate, best = candidates[chosen], candidates[decision.best]
    assert candidate.readout is not None
    abstained = chosen == decision.baseline and chosen != decision.best and max_blocks is None
    tied = [candidates[i] for i in np.flatnonzero(decision.tied)]
    conventions = manifest.get("conventions", {})
    count = len(measured.tasks)
    on = f"{count} task{'s' * (count != 1)}"
    return Choice(
        layer=candidate.layer,
        readout=candidate.readout.name,
        gain=claim.gain,
        risk_of_loss=claim.risk,
        tied=decision.tied_layers,
        rule="measured",
        gain_readout=by_readout.gain,
        gain_layer=by_layer.gain,
        layers=int(manifest["model"]["n_blocks"]),
        model=str(manifest["model"]["name"]),
        reason=_reason(decision, best.layer, int(open_to.sum()), on, abstained),
        warnings=(*_bound_warning(decision, candidates), *measured.warnings()),
        abstained=abstained,
        metric=f"mean score over {on}",
        before=claim.before,
        after=claim.after,
        identity=dict(manifest["model"]),
        source=None if evaluation.path is None else str(evaluation.path),
        max_length=Reading.of(conventions).max_length,
        unit_length=conventions.get("unit_length"),
        center_on=str(evaluation.path) if candidate.readout.centering != "none" else None,
        passed_over=_passed_over(candidates, scores, chosen),
        extra={
            "tasks": measured.tasks,
            "candidates": int(open_to.sum()),
            "tied_candidates": [
                {"readout": one.readout.name, "layer": one.layer} for one in tied if one.readout
            ],
        },
    )


_NOT_ASKED = "another readout was asked for"


def _block(
    candidates: list[Candidate], asked: Collection[str], usable: WhyNot | None
) -> list[Candidate]:
    """Return the candidates with the reason why they may not be chosen, if there is one."""
    blocked = []
    for candidate in candidates:
        assert candidate.readout is not None
        why = _NOT_ASKED
        if candidate.readout.name in asked:
            why = (usable(candidate.readout) if usable is not None else None) or ""
        blocked.append(replace(candidate, blocked=why))
    return blocked


def _reason(decision: Decision, best: int, count: int, on: str, abstained: bool) -> str:
    """Return why this candidate was chosen, in words."""
    many = f"best of {count} on {on}"
    if abstained:
        luck = "equal candidates can differ as much"
        if decision.expected.draws is None:
            luck = "how certain that is is not known"
        return f"layer {best} is {many}, but {luck}: the last layer is kept."
    where = ""
    if decision.chosen != decision.best:
        where = "earliest layer near the " if decision.rule.limits.tolerance else "near the "
    return f"{where}{many}; the gain leaves out what picking it on the same items is worth."


def _bound_warning(decision: Decision, candidates: list[Candidate]) -> list[str]:
    """Return a warning if no layer within the bound is near the best."""
    if decision.kept:
        return []
    limits, values = decision.rule.limits, decision.expected.values
    lost = values[decision.best] - values[decision.chosen]
    return [
        f"no layer within max_blocks= is within {limits.tolerance:g} points of the best: layer "
        f"{candidates[decision.chosen].layer} is expected to be {lost:.1f} below."
    ]


def _passed_over(candidates: list[Candidate], scores: Scores, chosen: int) -> tuple[str, ...]:
    """Return the best candidate that cannot be used, in words, if it scored above the choice."""
    unusable = np.array([one.blocked not in ("", _NOT_ASKED) for one in candidates])
    if not unusable.any():
        return ()
    best = scores.best(unusable)
    if scores.values[best] <= scores.values[chosen]:
        return ()
    points = f"{scores.values[best]:.2f} against {scores.values[chosen]:.2f}"
    candidate = candidates[best]
    assert candidate.readout is not None
    return (
        f"{candidate.readout.name} at layer {candidate.layer} scored higher ({points}), but cannot "
        f"be used: {candidate.blocked}.",
    )
