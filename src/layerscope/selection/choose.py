"""The choice of a layer from runs: from a profile without labels, or from measured scores.

`export` and the report ask the same function, so that they cannot disagree:

    choice = select("runs/evaluation")                   # a folder, a Profile or an Evaluation
    choice = select(run, evaluation)                        # both: the scores decide
    choice = select(folder, usable=why_not)                 # only what can be exported; `choice.passed_over` says what was not

`choice.headline()`, `gains_in_words(choice)` and `lines(choice)` in `selection.choice` put it into
words.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.conventions import Reading
from layerscope.core.formatting import split_names
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import MANIFEST, load_run
from layerscope.core.statistics import Interval
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.selection import shallower
from layerscope.selection.choice import MOST_RISK, NOTHING, Choice
from layerscope.selection.evidence import Evidence, from_run, need_blocks
from layerscope.selection.measured import WhyNot, choose_measured
from layerscope.selection.prior import Forecast
from layerscope.selection.rules import get_rule

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile


def select(
    *runs: Any,
    rule: str | None = None,
    readouts: str | Sequence[str] | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    usable: WhyNot | None = None,
) -> Choice:
    """Choose the layer to read embeddings from: by a profile or by measured scores.

    - `runs`: a profile, an evaluation, or one of each (folders of finished runs, or `Profile` and
      `Evaluation` objects). With an evaluation the measured scores decide (rule `measured`). With
      a profile alone the choice is label-free, by the rule `evidence` unless `rule` names another.
    - `readouts` restricts the choice.
    - `max_blocks`: the share of the blocks that may run. `tolerance`: the points of score to give
      up for an earlier layer.
    - `usable` says why a readout cannot be used (None: it can); better candidates that cannot be
      are named in `passed_over`.

    A file of labeled examples decides in `select_with_labels`.
    """
    shallower.check(max_blocks, tolerance)
    named = _names(readouts)
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
            readouts=named,
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
    items = profiles[0].manifest["conventions"].get("items", "texts")
    if items != "texts":
        raise LayerscopeError(
            f"{profiles[0].name} reads {items}, and rules without labels rest on scores of language "
            "models. Measure its layers with `layerscope probe MODEL --data DATA`."
        )
    return choose_label_free(
        from_run(profiles[0]),
        rule or "evidence",
        max_blocks=max_blocks,
        tolerance=tolerance,
        readout=_one_readout(named, usable),
        facts=_facts(profiles[0]),
    )


def choose_label_free(
    evidence: Evidence,
    rule: str,
    *,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    readout: str = DEFAULT_READOUT,
    facts: dict[str, Any] | None = None,
) -> Choice:
    """A rule's answer on some evidence, brought within `max_blocks`."""
    last = need_blocks(evidence)
    answer = get_rule(rule)(evidence)
    at, warnings, forecast = answer.layer, list(answer.warnings), answer.forecast
    if forecast is not None:
        at, warning = shallower.earliest(
            _trusted(forecast, last, max_blocks), at, answer.near, max_blocks, tolerance
        )
        warnings += [warning] if warning else []
    elif max_blocks is not None and at > (most := shallower.allowed_blocks(max_blocks, last)):
        at = most
        warnings.append(
            f"max_blocks= allows {most} blocks: layer {most} is the nearest to the rule's {answer.layer}; its gain is not known."
        )
    gain: Interval | None = None
    risk: float | None = None
    if readout != DEFAULT_READOUT:
        warnings.append(
            f"rules without labels are about the default readout: nothing is known about {readout}."
        )
    elif at == last:
        gain, risk = NOTHING, 0.0
    elif forecast is not None and np.isfinite(forecast.gain[at]):
        gain, risk = Interval(float(forecast.gain[at]), *forecast.interval(at)), forecast.risk(at)
    return replace(
        answer,
        layer=at,
        readout=readout,
        gain=gain,
        risk_of_loss=risk,
        tied=(at,),
        near=tuple(sorted(answer.near)) if at in answer.near else (),
        rule=rule,
        gain_readout=None if gain is None else NOTHING,
        gain_layer=gain,
        layers=last,
        model=evidence.model,
        warnings=tuple(warnings),
        abstained=answer.abstained and at == last,
        extra={
            "final_norm": evidence.final_norm,
            "before_max_blocks": answer.layer,
        },
        **(facts or {}),
    )


def _trusted(forecast: Forecast, last: int, max_blocks: float | None) -> np.ndarray:
    """Gains without the layers that lose too often, as long as `max_blocks` leaves any other."""
    safe = np.array(
        [np.isfinite(g) and forecast.risk(k) <= MOST_RISK for k, g in enumerate(forecast.gain)]
    )
    safe[last] = True
    return (
        np.where(safe, forecast.gain, -np.inf)
        if safe[: shallower.allowed_blocks(max_blocks, last) + 1].any()
        else forecast.gain
    )


def _sort(sources: tuple[Any, ...]) -> tuple[list[Profile], list[Evaluation]]:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile

    profiles: list[Profile] = []
    evaluations: list[Evaluation] = []
    for given in sources:
        source = given
        if isinstance(given, str | Path):
            refuse_model(given)
            source = load_run(given)
        if isinstance(source, Profile):
            profiles.append(source)
        elif isinstance(source, Evaluation):
            evaluations.append(source)
        elif source is not given:
            raise LayerscopeError(
                f"{given} holds a {getattr(source, 'kind', 'run')}; a choice rests on a profile or an evaluation."
            )
        else:
            raise InvalidValueError(
                f"expected the folder of a run, a Profile or an Evaluation, not {type(given).__name__}."
            )
    return profiles, evaluations


def refuse_model(given: str | Path) -> None:
    """An error for a model where a run is meant: it says how to make one."""
    path, name = Path(given), str(given)
    is_model = (path / "config.json").is_file() and not (path / MANIFEST).is_file()
    if not is_model and not path.exists():
        from layerscope.models.catalogue import (
            catalogue,
        )  # loads torch, which a choice from a folder does not need

        is_model = name in catalogue()
    if is_model or name.endswith(".gguf"):
        word = shlex.quote(name)
        raise LayerscopeError(
            f"{name} is a model, and a choice rests on what was measured: profile it first (`layerscope profile {word} --data "
            f"YOUR_TEXTS`) and give the run's folder. `layerscope improve {word} --data YOUR_TEXTS` does it all at once."
        )


def _check_same(profile: Profile, evaluation: Evaluation) -> None:
    one, other = (ModelIdentity.of(run.manifest["model"]) for run in (profile, evaluation))
    if (difference := one.difference(other)) is not None:
        raise LayerscopeError(
            f"the runs are of different models: {one.name} was profiled, {other.name} evaluated, and they differ in {difference}."
        )


def _names(readouts: str | Sequence[str] | None) -> list[str] | None:
    if readouts is None:
        return None
    given = split_names(readouts) if isinstance(readouts, str) else list(readouts)
    return [Readout.parse(name).name for name in given]


def _one_readout(named: list[str] | None, usable: WhyNot | None) -> str:
    if named is not None and len(named) > 1:
        raise LayerscopeError(
            "rules without labels compare layers, not readouts: give one readout, or an evaluation."
        )
    readout = named[0] if named else DEFAULT_READOUT
    if usable is not None and (why := usable(Readout.parse(readout))) is not None:
        raise LayerscopeError(f"{readout} cannot be used: {why}.")
    return readout


def _facts(run: Profile) -> dict[str, Any]:
    """What a choice says about the run that it rests on."""
    model = run.manifest["model"]
    return {
        "identity": dict(model),
        "source": None if run.path is None else str(run.path),
        "max_length": Reading.of(run.manifest).max_length,
        "unit_length": bool(model.get("normalizes")) if "normalizes" in model else None,
    }
