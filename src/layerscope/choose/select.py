"""`select`: the layer to read, from a profile, from measured scores, or from a few labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.choose.choice import Choice
from layerscope.choose.label_free import choose_label_free
from layerscope.choose.labels.select import choose_by_labels
from layerscope.choose.measured import WhyNot, choose_measured
from layerscope.core.formatting import split_names
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import load_run
from layerscope.errors import InvalidValueError, LayerscopeError

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile


def select(
    *runs: Any,
    labels: str | Path | None = None,
    rule: str | None = None,
    readouts: str | Sequence[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    usable: WhyNot | None = None,
    **options: Any,
) -> Choice:
    """Choose the layer to read embeddings from.

    - `runs`: a profile, an evaluation, or one of each (folders of finished runs, or `Profile` and
      `Evaluation` objects). With an evaluation the measured scores decide (rule `measured`). With
      a profile alone the choice is label-free, by the rule `evidence` unless `rule` names another.
    - `labels`: a csv, tsv or jsonl file with the columns `text,label`, `sentence1,sentence2,label`
      or `sentence1,sentence2,score`, which then decides. Give a model (name, folder, hub id,
      loaded) or the folder of one run of it.
    - `readouts` restricts the choice.
    - `max_blocks`: the share of the blocks that may run. `tolerance`: the points of score to give
      up for an earlier layer.
    - `usable` says why a readout cannot be used (None: it can); better candidates that cannot be
      are named in `passed_over`.

    With labels, further keywords are `layers` (all), `folds` (5), `max_length`, `batch_size`,
    `store`, `store_size` and `progress`.
    """
    limits: Any = {"max_blocks": max_blocks, "tolerance": tolerance}
    if labels is not None:
        if len(runs) != 1 or rule is not None or usable is not None:
            raise LayerscopeError("labels take one model or the folder of one run, without a rule.")
        return choose_by_labels(runs[0], labels, readouts=readouts, seed=seed, **limits, **options)
    if options:
        raise InvalidValueError(f"{next(iter(options))}= is for a choice with labels=.")
    profile, evaluation = _open_runs(runs)
    names = _parse_names(readouts)
    if evaluation is not None and rule in (None, "measured"):
        return choose_measured(evaluation, readouts=names, seed=seed, usable=usable, **limits)
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
    readout = _single_readout(names, usable)
    return choose_label_free(profile, rule or "evidence", readout=readout, **limits)


def _open_runs(sources: Sequence[Any]) -> tuple[Profile | None, Evaluation | None]:
    """Return the profile and the evaluation among the sources, of which one may be missing."""
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile

    profiles: list[Profile] = []
    evaluations: list[Evaluation] = []
    for source in sources:
        run = load_run(source) if isinstance(source, str | Path) else source
        if isinstance(run, Profile):
            profiles.append(run)
        elif isinstance(run, Evaluation):
            evaluations.append(run)
        else:
            kind = getattr(run, "kind", type(run).__name__)
            raise InvalidValueError(
                f"a choice rests on a profile or an evaluation; the source given is a {kind}."
            )
    if not profiles and not evaluations:
        raise LayerscopeError("give the folder of a profile or of an evaluation.")
    if len(profiles) > 1 or len(evaluations) > 1:
        raise LayerscopeError(
            "give at most one profile and one evaluation: a choice is about one model."
        )
    profile = profiles[0] if profiles else None
    evaluation = evaluations[0] if evaluations else None
    if profile is not None and evaluation is not None:
        profiled = ModelIdentity.of(profile.manifest["model"])
        evaluated = ModelIdentity.of(evaluation.manifest["model"])
        difference = profiled.difference(evaluated)
        if difference is not None:
            raise LayerscopeError(
                f"the runs are of different models: {profiled.name} was profiled, "
                f"{evaluated.name} evaluated, and they differ in {difference}."
            )
    return profile, evaluation


def _parse_names(readouts: str | Sequence[str] | None) -> list[str] | None:
    if readouts is None:
        return None
    names = split_names(readouts) if isinstance(readouts, str) else list(readouts)
    return [Readout.parse(name).name for name in names]


def _single_readout(names: list[str] | None, usable: WhyNot | None) -> str:
    """Return the one readout that a rule without labels is about."""
    if names is not None and len(names) > 1:
        raise LayerscopeError(
            "rules without labels compare layers, not readouts: give one readout, or an evaluation."
        )
    readout = names[0] if names else DEFAULT_READOUT
    problem = None if usable is None else usable(Readout.parse(readout))
    if problem is not None:
        raise LayerscopeError(f"{readout} cannot be used: {problem}.")
    return readout
