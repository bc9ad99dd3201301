"""`select`: the layer to read, from a profile, from measured scores, or from a few labels.

With measured scores every candidate (a layer under a readout) is scored on the same resamples of
each task's items. The choice and its gain are made on the same items: `SplitScores` says what such
a choice gains.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from layerscope.choose.candidates import Candidate, block_limits
from layerscope.choose.choice import Choice
from layerscope.choose.claims import SplitScores
from layerscope.choose.decide import Decision, bound_warning, decide, unblocked
from layerscope.choose.label_choice import choose_by_labels
from layerscope.choose.label_free import choose_label_free
from layerscope.core.identity import ModelIdentity, Reading
from layerscope.core.options import split_names
from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names
from layerscope.core.runs import load_run
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import Z95, bootstrap_weights
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.evaluation.results import resampled, same_items
from layerscope.evaluation.run import TASK_COLUMNS, Evaluation
from layerscope.profiling.run import Profile

_TASKS = 5  # fewer say too little about how much tasks differ


def select(
    *runs: Any,
    labels: str | Path | None = None,
    rule: str | None = None,
    readouts: str | Sequence[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Choice:
    """Choose the layer to read embeddings from.

    - `runs`: a profile, an evaluation, or one of each (folders of finished runs, or `Profile` and
      `Evaluation` objects). With an evaluation the measured scores decide (rule `measured`). With
      a profile alone the choice is label-free, by the rule `evidence` unless `rule` names another.
    - `labels`: a csv, tsv or jsonl file with the columns `text,label`, `sentence1,sentence2,label`
      or `sentence1,sentence2,score`, which then decides. Give a model (name, folder, hub id,
      loaded) instead of a run.
    - `readouts` restricts the choice.
    - `max_blocks`: the share of the blocks that may run. `tolerance`: the points of score to give
      up for an earlier layer.

    With labels, further keywords are `layers` (all), `max_length`, `store`, `store_size` and
    `progress`.
    """
    limits: Any = {"max_blocks": max_blocks, "tolerance": tolerance}
    if labels is not None:
        if len(runs) != 1 or rule is not None:
            raise LayerscopeError("labels take one model, without a rule.")
        return choose_by_labels(runs[0], labels, readouts=readouts, seed=seed, **limits, **options)
    if options:
        raise InvalidValueError(f"{next(iter(options))}= is for a choice with labels=.")
    profile, evaluation = _open_runs(runs)
    names = split_names(readouts) if isinstance(readouts, str) else readouts
    names = names and [Readout.parse(name).name for name in names]
    if evaluation is not None and rule in (None, "measured"):
        return choose_measured(evaluation, readouts=names, seed=seed, **limits)
    if rule == "measured" or profile is None:
        needed = "evaluate" if rule == "measured" else "profile"
        raise LayerscopeError(
            f"the rule {rule!r} reads another kind of run: make one with `layerscope {needed}`."
        )
    items = profile.manifest["conventions"].get("items", "texts")
    if items != "texts":
        raise LayerscopeError(
            f"{profile.name} reads {items}, and rules without labels rest on scores of language "
            "models. Measure its layers with `layerscope probe MODEL --data DATA`."
        )
    if names and len(names) > 1:
        raise LayerscopeError(
            "rules without labels compare layers, not readouts: give one readout, or an evaluation."
        )
    readout = names[0] if names else DEFAULT_READOUT
    return choose_label_free(profile, rule or "evidence", readout=readout, **limits)


def _open_runs(sources: Sequence[Any]) -> tuple[Profile | None, Evaluation | None]:
    """Return the profile and the evaluation among the sources, of which one may be missing."""
    runs = [load_run(source) if isinstance(source, str | Path) else source for source in sources]
    profiles = [run for run in runs if isinstance(run, Profile)]
    evaluations = [run for run in runs if isinstance(run, Evaluation)]
    counts = (len(profiles), len(evaluations))
    if not runs or max(counts) > 1 or sum(counts) < len(runs):
        kinds = ", ".join(getattr(run, "kind", type(run).__name__) for run in runs) or "nothing"
        raise LayerscopeError(
            "a choice rests on a profile, an evaluation, or one of each, about one model: give "
            f"their folders, not {kinds}."
        )
    if all(counts):
        profiled, evaluated = (ModelIdentity.of(run.manifest["model"]) for run in runs)
        difference = profiled.difference(evaluated)
        if difference is not None:
            raise LayerscopeError(
                f"the runs are of different models, {profiled.name} and {evaluated.name}: they "
                f"differ in {difference}."
            )
    return next(iter(profiles), None), next(iter(evaluations), None)


def choose_measured(
    evaluation: Evaluation,
    *,
    readouts: Collection[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Choice:
    """Choose by measured scores, over the last layer under the default readout.

    `readouts` restricts the choice.
    """
    manifest = evaluation.manifest
    blocks = int(manifest["model"]["n_blocks"])
    candidates, scores, notes = measure(evaluation, readouts, seed)
    open_to = unblocked(candidates)
    last_of = {entry.readout: place for place, entry in enumerate(candidates)}
    lasts = [last_of[entry.readout] for entry in candidates]
    default = last_of.get(Readout())
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
    candidate = candidates[chosen]
    last = lasts[chosen]
    reference = last if default is None else default
    claim = split.claim(decision.rule, chosen, reference)
    abstained = chosen == decision.baseline and chosen != decision.best and max_blocks is None
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
        reason=_reason(decision, f"best of {open_to.sum()} on {scores.source}", abstained),
        warnings=(*bound_warning(decision), *notes),
        abstained=abstained,
        metric=f"mean score over {scores.source}",
        before=claim.before,
        after=claim.after,
        identity=dict(manifest["model"]),
        source=path,
        max_length=Reading.of(conventions).max_length,
        unit_length=conventions.get("unit_length"),
        center_on=path if is_centered else None,
    )


def measure(
    evaluation: Evaluation, readouts: Collection[str] | None = None, seed: int = 0
) -> tuple[list[Candidate], Scores, list[str]]:
    """Return candidates, their mean scores over tasks in points, and notes on these scores.

    Candidates are the layers that every task has under the readouts and the default one, by readout
    and layer. Each task weighs the same. Where nothing is known of a task's items, draws are over
    tasks if there are enough of them, and otherwise None.
    """
    table = evaluation.gains.dropna(subset=["score"])
    table = table.assign(readout=readout_names(table))
    measured = set(table["readout"])
    allowed = measured if readouts is None else measured & set(readouts)
    if not allowed:
        requested = "any layer" if readouts is None else ", ".join(readouts)
        raise LayerscopeError(
            f"the evaluation in {evaluation.path} did not measure {requested}. It measured: "
            f"{', '.join(sorted(measured)) or 'no scores'}."
        )
    table = table[table["readout"].isin(allowed | {DEFAULT_READOUT})]
    wide = table.pivot(index=["readout", "layer"], columns=TASK_COLUMNS, values="score")
    complete = wide.dropna()
    if complete.empty:
        raise LayerscopeError(
            "no layer was scored on every task of the evaluation, so layers cannot be compared."
        )
    blocks = int(evaluation.manifest["model"]["n_blocks"])
    candidates = [
        Candidate(
            tuple(range(layer)),
            readout=Readout.parse(name),
            cost=layer / blocks,
            blocked="" if name in allowed else "another readout was asked for",
        )
        for name, layer in complete.index
    ]
    draws, notes = _resample(evaluation, complete, seed)
    if len(complete) < len(wide):
        notes.append(
            f"{len(wide) - len(complete)} layers or readouts lack a score on some task and were "
            "left out."
        )
    by_task = _mean_by_task(complete)
    source = f"{len(by_task)} task{'s' * (len(by_task) != 1)}"
    return candidates, Scores(by_task.mean().to_numpy(), draws, source), notes


def _mean_by_task(scores: pd.DataFrame) -> pd.DataFrame:
    """Return points by task (rows) and candidate, the mean over a task's splits and subsets."""
    return 100 * scores.T.groupby(level="task").mean()


def _resample(
    evaluation: Evaluation, scores: pd.DataFrame, seed: int
) -> tuple[np.ndarray | None, list[str]]:
    """Return mean scores over tasks (candidates, draws) on resamples, and notes on them.

    `scores` has a row per candidate and a column per part of a task.
    """
    by_task = _mean_by_task(scores)
    values = by_task.mean().to_numpy()[:, None]
    missing = "items are not stored for every task: "
    parts_of_task = scores.columns.get_level_values("task").value_counts()
    moved = np.zeros((len(values), DRAWS))
    task_parts: Any = sorted(scores.columns)
    for number, (task, split, subset) in enumerate(task_parts):
        stored = evaluation.items().get((task, split, subset), {})
        items = [stored[place] for place in scores.index if place in stored]
        if len(items) < len(scores) or not same_items(items):
            break
        moves = resampled(items, seed) - np.array([[item.score()] for item in items])
        # each task's items are its own, so its resamples must not follow another task's order
        order = np.random.default_rng([seed, number]).permutation(DRAWS)
        share = 100 / parts_of_task[task] / len(by_task)
        moved += share * np.nan_to_num(moves)[:, order]
    else:
        return values + moved, []
    count = len(by_task)
    if count < _TASKS:
        return None, [f"{missing}how certain the scores are is not known."]
    # tasks drawn anew, as wide as Student's t
    wider = math.sqrt(count / (count - 1)) * float(stdtrit(count - 1, 0.975)) / Z95
    weights = bootstrap_weights(count, DRAWS, [seed, count]) / count
    deviations = wider * (weights @ (by_task.to_numpy() - by_task.to_numpy().mean(0))).T
    return values + deviations, [f"{missing}layers were compared by how they differ between tasks."]


def _reason(decision: Decision, best: str, abstained: bool) -> str:
    """Return why this candidate was chosen, in words."""
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
