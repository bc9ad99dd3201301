"""The choice of a layer without labels, from the metrics of a profile.

The rule `evidence`: whether prompt entropy has a valley decides which of two depth curves of
published results applies. Models with a valley hold their best vectors late (about 80 % depth),
models without one early. Where the evidence is weak the last layer is kept. `lowest_METRIC` takes
the layer at which a metric is lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layerscope.choose.candidates import allowed_blocks, block_limits, layers_of
from layerscope.choose.choice import NOTHING, Choice
from layerscope.choose.decide import decide
from layerscope.choose.evidence import Evidence, from_run, read_valley
from layerscope.choose.measured import bound_warning
from layerscope.choose.prior import Forecast, Prior, best_layer, shipped_prior
from layerscope.core.conventions import Reading
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError, UnknownNameError

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile

__all__ = ["apply_rule", "choose_by_evidence"]

MOST_RISK = 1 / 3
"""The largest forecast chance that a layer loses to the last one. Such a forecast, for a model whose
family nobody scored, is wide: 0.24 to 0.33 for every model of the atlas, of which none lost."""

UNSURE = 1.25
"""The factor on intervals where the evidence was not read as in the published results."""

LOWEST = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")
_NEAR = 0.1  # share of the headroom within which one family alone cannot tell layers apart


@dataclass(frozen=True)
class Answer:
    """The layer that a rule names, and why.

    `near` are the layers that the rule expects to be about as good; `forecast` is the gain of each
    layer, None if the rule says nothing about it.
    """

    layer: int
    reason: str
    near: tuple[int, ...] = ()
    forecast: Forecast | None = None
    warnings: tuple[str, ...] = ()
    abstained: bool = False


def apply_rule(rule: str, evidence: Evidence) -> Answer:
    """Return the answer of the rule with a name."""
    if rule == "evidence":
        return choose_by_evidence(evidence, shipped_prior())
    names = {f"lowest_{metric}": metric for metric in LOWEST}
    if rule not in names:
        raise UnknownNameError("rule", rule, ["evidence", "measured", *names])
    return _lowest(names[rule], evidence)


def choose_by_evidence(evidence: Evidence, prior: Prior) -> Answer:
    """Return the answer under a prior: benchmarks give one that has not seen the model's family."""
    last = evidence.n_blocks
    warnings = list(evidence.warnings)

    def keep_last(problem: str) -> Answer:
        reason = f"no layer but the last can be trusted here: {problem}"
        return Answer(last, reason, warnings=tuple(warnings), abstained=True)

    if evidence.untrained:  # its vectors are spread out, too, and mean nothing
        return keep_last(
            "the model's weights are as before any training, so no layer holds anything."
        )
    if evidence.wordless:
        return keep_last("most texts are hardly made of words, and the rule is about language.")
    if evidence.tuned:
        return keep_last(
            f"{evidence.tuned}, so the model seems made for embedding at its last layer."
        )
    valley = read_valley(evidence)
    probability = valley.probability
    if probability is None:
        return keep_last(f"{valley.observed}, so nothing says where in the model to look.")
    if not valley.as_fitted:
        warnings.append(
            "the final norm hides the valley that the rule was fitted on; the sink's norm stands "
            "in for it and the interval is wider. A profile with final_norm=hf is read as the "
            "atlas is."
        )
    shares = prior.shares(probability, last)
    layer = best_layer(shares)
    observed = f"{valley.observed} (chance of a valley {probability:.0%})"
    if layer == last:
        return keep_last(f"{observed}; no layer is expected to gain.")
    forecast = prior.forecast(shares, 1.0 if valley.as_fitted else UNSURE)
    risk = forecast.risk(layer)
    if risk > MOST_RISK:
        return keep_last(
            f"{observed}; layer {layer} looks best but would lose in {risk:.0%} of cases."
        )
    has_valley = probability >= 0.5
    if not evidence.tuning_known:
        unseen = (
            "whether the last layer was trained for embedding cannot be seen without anisotropy "
            "or under final_norm=raw"
        )
        if not has_valley:
            # an early layer of a sentence encoder loses far more than one of a language model gains
            return keep_last(f"{observed}, but {unseen}.")
        warnings.append(f"{unseen}. If it was, keep the last layer.")
    kind = "with a valley gain late" if has_valley else "without a valley gain early"
    reason = f"{observed}; the published models {kind}."
    families = prior.family_shares("valley" if has_valley else "no_valley", last)
    return Answer(layer, reason, _near(families, layer), forecast, tuple(warnings))


def _near(shares: np.ndarray, layer: int) -> tuple[int, ...]:
    """Return the layers that are about as good as one, by shares (families, layers).

    Their distance is within a standard error over the families, or a tenth of the headroom.
    """
    distance = shares[:, [layer]] - shares
    error = np.zeros(shares.shape[1])
    if len(shares) > 1:
        error = distance.std(axis=0, ddof=1) / np.sqrt(len(shares))
    near = distance.mean(axis=0) <= np.maximum(error, _NEAR)
    near[0] = False
    near[layer] = True
    return tuple(int(k) for k in np.flatnonzero(near))


def _lowest(metric: str, evidence: Evidence) -> Answer:
    curve = evidence.curve(metric)
    if curve is None:
        measured = ", ".join(sorted(evidence.curves)) or "none"
        raise LayerscopeError(
            f"lowest_{metric} needs {metric} at every layer of {evidence.model}; measured: "
            f"{measured}."
        )
    layer = int(np.argmin(curve.value))
    # layers whose interval reaches below the upper end of the lowest one's
    low = np.nan_to_num(curve.low, nan=np.inf)
    near = np.flatnonzero(low <= np.nan_to_num(curve.high[layer], nan=curve.value[layer]))
    warning = "on the published results this rule loses to the last layer on some families."
    reason = f"{metric} is lowest there."
    return Answer(layer, reason, tuple(int(k) for k in near), warnings=(warning,))


def choose_label_free(
    profile: Profile,
    rule: str,
    *,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    readout: str = DEFAULT_READOUT,
) -> Choice:
    """Return a rule's answer on a profile, brought within `max_blocks`."""
    evidence = from_run(profile)
    last = evidence.n_blocks
    if last < 1:
        raise LayerscopeError(f"{evidence.model} has no blocks to choose from.")
    answer = apply_rule(rule, evidence)
    layer, bound_warnings = _within_bound(answer, last, max_blocks, tolerance)
    warnings = [*answer.warnings, *bound_warnings]
    forecast = answer.forecast
    gain: Interval | None = None
    risk: float | None = None
    if readout != DEFAULT_READOUT:
        warnings.append(
            f"rules without labels are about the default readout: nothing is known about {readout}."
        )
    elif layer == last:
        gain = NOTHING
        risk = 0.0
    elif forecast is not None:
        gain = Interval(float(forecast.gain[layer]), *forecast.interval(layer))
        risk = forecast.risk(layer)
    model = profile.manifest["model"]
    return Choice(
        layer=layer,
        readout=readout,
        gain=gain,
        risk_of_loss=risk,
        tied=(layer,),
        near=answer.near if layer in answer.near else (),
        rule=rule,
        reason=answer.reason,
        gain_readout=None if gain is None else NOTHING,
        gain_layer=gain,
        layers=last,
        model=evidence.model,
        warnings=tuple(warnings),
        abstained=answer.abstained and layer == last,
        identity=dict(model),
        source=None if profile.path is None else str(profile.path),
        max_length=Reading.of(profile.manifest).max_length,
        unit_length=bool(model["normalizes"]) if "normalizes" in model else None,
    )


def _within_bound(
    answer: Answer, last: int, max_blocks: float | None, tolerance: float | None
) -> tuple[int, list[str]]:
    """Return the layer within the bound, and a warning where it is not near the rule's."""
    limits = block_limits(max_blocks, tolerance, last)
    if max_blocks is None and tolerance is None:
        return answer.layer, []
    bound = allowed_blocks(max_blocks, last)
    if answer.forecast is None:
        if answer.layer <= bound:
            return answer.layer, []
        return bound, [
            f"max_blocks= allows {bound} blocks: layer {bound} is the nearest to the rule's "
            f"{answer.layer}; its gain is not known."
        ]
    gain = answer.forecast.gain
    safe = np.array([answer.forecast.risk(layer) <= MOST_RISK for layer in range(last + 1)])
    safe[last] = True
    is_open = np.isfinite(gain)
    if safe[: bound + 1].any():
        is_open &= safe
    values = np.where(is_open, gain, np.nan)
    if tolerance is None:  # layers that the rule takes for as good count as that
        near = [layer for layer in answer.near if is_open[layer]]
        values[near] = gain[answer.layer]
    costs = [layer / last for layer in range(last + 1)]
    decision = decide(layers_of(Readout(), range(last + 1), costs), [Scores(values)], last, limits)
    return decision.chosen, bound_warning(decision)
