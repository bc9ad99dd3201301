"""`select`: the layer to read, from a profile, from measured scores, or from a few labels."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.choose.choice import Choice
from layerscope.choose.evidence import from_run
from layerscope.choose.label_free import choose_label_free
from layerscope.choose.labels.select import choose_by_labels
from layerscope.choose.measured import WhyNot, choose_measured
from layerscope.core.formatting import split_names
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import MANIFEST, load_run
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
    if labels is not None:
        if len(runs) != 1 or rule is not None or usable is not None:
            raise LayerscopeError("labels take one model or the folder of one run, without a rule.")
        return choose_by_labels(
            runs[0],
            labels,
            readouts=readouts,
            max_blocks=max_blocks,
            tolerance=tolerance,
            seed=seed,
            **options,
        )
    if options:
        raise InvalidValueError(f"{next(iter(options))}= is for a choice with labels=.")
    names = _parse_names(readouts)
    profiles, evaluations = _sort(runs)
    if not profiles and not evaluations:
        raise LayerscopeError("give the folder of a profile or of an evaluation.")
    if len(profiles) > 1 or len(evaluations) > 1:
        raise LayerscopeError(
            "give at most one profile and one evaluation: a choice is about one model."
        )
    if profiles and evaluations:
        _check_same(profiles[0], evaluations[0])
    if evaluations and rule in (None, "measured"):
        return choose_measured(
            evaluations[0],
            readouts=names,
            max_blocks=max_blocks,
            tolerance=tolerance,
            seed=seed,
            usable=usable,
        )
    if rule == "measured" or not profiles:
        needed = "evaluate" if rule == "measured" else "profile"
        raise LayerscopeError(
            f"the rule {rule!r} reads another kind of run: make one with `layerscope {needed}`."
        )
    profile = profiles[0]
    items = profile.manifest["conventions"].get("items", "texts")
    if items != "texts":
        raise LayerscopeError(
            f"{profile.name} reads {items}, and rules without labels rest on scores of language "
            "models. Measure its layers with `layerscope probe MODEL --data DATA`."
        )
    return choose_label_free(
        from_run(profile),
        rule or "evidence",
        max_blocks=max_blocks,
        tolerance=tolerance,
        readout=_single_readout(names, usable),
        profile=profile,
    )


def _sort(sources: tuple[Any, ...]) -> tuple[list[Profile], list[Evaluation]]:
    """Open the sources, and tell profiles from evaluations."""
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile

    profiles: list[Profile] = []
    evaluations: list[Evaluation] = []
    for source in sources:
        run = source
        if isinstance(source, str | Path):
            _refuse_model(source)
            run = load_run(source)
        if isinstance(run, Profile):
            profiles.append(run)
        elif isinstance(run, Evaluation):
            evaluations.append(run)
        elif run is not source:
            raise LayerscopeError(
                f"{source} holds a {getattr(run, 'kind', 'run')}; a choice rests on a profile or "
                "an evaluation."
            )
        else:
            raise InvalidValueError(
                "expected the folder of a run, a Profile or an Evaluation, not "
                f"{type(source).__name__}."
            )
    return profiles, evaluations


def _refuse_model(source: str | Path) -> None:
    """Raise for a model where a run is meant, and say how to make one."""
    path, name = Path(source), str(source)
    is_model = (path / "config.json").is_file() and not (path / MANIFEST).is_file()
    if not is_model and not path.exists():
        from layerscope.models.catalogue import catalogue  # loads torch

        is_model = name in catalogue()
    if is_model or name.endswith(".gguf"):
        word = shlex.quote(name)
        raise LayerscopeError(
            f"{name} is a model, and a choice rests on what was measured: profile it first "
            f"(`layerscope profile {word} --data YOUR_TEXTS`) and give the run's folder. "
            f"`layerscope improve {word} --data YOUR_TEXTS` does it all at once."
        )


def _check_same(profile: Profile, evaluation: Evaluation) -> None:
    profiled = ModelIdentity.of(profile.manifest["model"])
    evaluated = ModelIdentity.of(evaluation.manifest["model"])
    difference = profiled.difference(evaluated)
    if difference is not None:
        raise LayerscopeError(
            f"the runs are of different models: {profiled.name} was profiled, {evaluated.name} "
            f"evaluated, and they differ in {difference}."
        )


def _parse_names(readouts: str | Sequence[str] | None) -> list[str] | None:
    if readouts is None:
        return None
    names = split_names(readouts) if isinstance(readouts, str) else list(readouts)
    return [Readout.parse(name).name for name in names]


def _single_readout(names: list[str] | None, usable: WhyNot | None) -> str:
    if names is not None and len(names) > 1:
        raise LayerscopeError(
            "rules without labels compare layers, not readouts: give one readout, or an evaluation."
        )
    readout = names[0] if names else DEFAULT_READOUT
    why = None if usable is None else usable(Readout.parse(readout))
    if why is not None:
        raise LayerscopeError(f"{readout} cannot be used: {why}.")
    return readout
