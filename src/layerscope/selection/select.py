"""The public function: a run, an evaluation or a model of the atlas in, a layer out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.selection import budget as budgets
from layerscope.selection.choice import Choice
from layerscope.selection.evidence import Evidence, from_atlas, from_run, need_blocks
from layerscope.selection.prior import MOST_RISK, Forecast

if TYPE_CHECKING:
    from layerscope.selection.rules import Answer


def select(
    *runs: Any,
    atlas: str | None = None,
    rule: str | None = None,
    readout: str | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Choice:
    """Choose a layer.

    `runs`: folders of finished runs, `Run` or `Evaluation` objects. With an evaluation among them the choice is
    `measured`; with a profile alone it is label-free, by the rule `evidence` unless another is named. `atlas` names a
    published model instead. `budget` is the share of the blocks that may be run; `tolerance` the points that may be given up.

    >>> select(atlas="Pythia-410m", rule="fixed_depth").layer
    19
    """
    budgets.check(budget, tolerance)
    profiles, evaluations = _sort(runs)
    if (atlas is None) == (not profiles and not evaluations):
        raise LayerscopeError("give either the folder of a run or atlas=MODEL, and not both.")
    if len(profiles) > 1 or len(evaluations) > 1:
        raise LayerscopeError("give at most one profile and one evaluation: a choice is about one model.")
    if profiles and evaluations and not _same_model(profiles[0].manifest, evaluations[0].manifest):
        other = evaluations[0].manifest["model"]["name"]
        raise LayerscopeError(f"the runs are of different models: {profiles[0].name} was profiled, {other} evaluated.")
    if rule == "measured" and not evaluations:
        raise LayerscopeError("the rule 'measured' reads an evaluation's folder: make one with `layerscope evaluate`.")
    if evaluations and rule in (None, "measured"):
        from layerscope.selection.measured import choose_measured

        return choose_measured(evaluations[0], readout=readout, budget=budget, tolerance=tolerance, seed=seed)
    if not profiles and atlas is None:
        raise LayerscopeError(f"the rule {rule!r} reads a profile's folder: make one with `layerscope profile`.")
    if profiles and "image_tokens" in profiles[0].manifest["conventions"]:
        raise LayerscopeError(
            f"{profiles[0].name} is an image model, and rules without labels rest on scores of language models: they say nothing "
            "about it. Measure its layers with `layerscope probe MODEL --images DATA`."
        )
    evidence = from_atlas(atlas) if atlas is not None else from_run(profiles[0])
    return choose_label_free(evidence, rule or "evidence", budget=budget, tolerance=tolerance)


def choose_label_free(evidence: Evidence, rule: str, *, budget: float | None = None, tolerance: float | None = None) -> Choice:
    """A rule's answer on some evidence, brought within a budget."""
    from layerscope.selection.rules import get_rule

    need_blocks(evidence)
    return make_choice(evidence, rule, get_rule(rule)(evidence), budget=budget, tolerance=tolerance)


def make_choice(
    evidence: Evidence, rule: str, answer: Answer, *, budget: float | None = None, tolerance: float | None = None
) -> Choice:
    """What the user gets: the answer with its forecast at the layer that the budget leaves."""
    last, layer, warnings = evidence.n_blocks, answer.layer, list(answer.warnings)
    forecast = answer.forecast
    if forecast is not None:
        layer, warning = budgets.earliest(_trusted(forecast, last, budget), layer, answer.tied, budget, tolerance)
        warnings += [warning] if warning else []
    elif budget is not None and layer > (most := budgets.allowed_blocks(budget, last)):
        layer = most
        warnings.append(
            f"the budget allows {most} blocks: layer {most} is the nearest to the rule's {answer.layer}; its gain is not known."
        )
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    risk: float | None = None
    if layer == last:
        gain = low = high = risk = 0.0
    elif forecast is not None and np.isfinite(forecast.gain[layer]):
        gain, risk = float(forecast.gain[layer]), forecast.risk(layer)
        low, high = forecast.interval(layer)
    return Choice(
        layer=layer,
        site=site_of(layer),
        readout=DEFAULT_READOUT,  # what the depth curves are about
        expected_gain=gain,
        ci_low=low,
        ci_high=high,
        risk_of_loss=risk,
        tied=sorted(answer.tied) if layer in answer.tied else [layer],
        rule=rule,
        blocks_saved=last - layer,
        layers=last,
        model=evidence.model,
        reason=answer.reason,
        warnings=warnings,
        abstained=answer.abstained and layer == last,
        extra={"source": evidence.source, "final_norm": evidence.final_norm, "before_budget": answer.layer},
    )


def _trusted(forecast: Forecast, last: int, budget: float | None) -> np.ndarray:
    """Gains without the layers that lose too often, as long as the budget leaves any other."""
    safe = np.array([np.isfinite(g) and forecast.risk(k) <= MOST_RISK for k, g in enumerate(forecast.gain)])
    safe[last] = True
    return np.where(safe, forecast.gain, -np.inf) if safe[: budgets.allowed_blocks(budget, last) + 1].any() else forecast.gain


def _sort(runs: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Run
    from layerscope.store import RunFolder

    profiles: list[Any] = []
    evaluations: list[Any] = []
    for run in runs:
        if isinstance(run, Run):
            profiles.append(run)
        elif isinstance(run, Evaluation):
            evaluations.append(run)
        elif isinstance(run, str | Path):
            manifest = RunFolder(run).manifest()
            if manifest is None:
                raise RunFolderError(f"{run} holds no run. Give the folder of a profile or an evaluation, or --atlas MODEL.")
            (evaluations if manifest.get("kind") == "evaluation" else profiles).append(
                Evaluation.load(run) if manifest.get("kind") == "evaluation" else Run.load(run)
            )
        else:
            raise LayerscopeError(f"expected the folder of a run, a Run or an Evaluation, not {type(run).__name__}.")
    return profiles, evaluations


def _same_model(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["model"].get("weights_sha256") == other["model"].get("weights_sha256")
