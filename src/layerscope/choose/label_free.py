"""The choice of a layer by a label-free rule, brought within a bound on the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.choose.bounds import allowed_blocks, block_limits
from layerscope.choose.choice import NOTHING, Choice
from layerscope.choose.decide import decide
from layerscope.choose.evidence import Evidence
from layerscope.choose.prior import Forecast
from layerscope.choose.rules import MOST_RISK, Answer, get_rule
from layerscope.choose.types import layers_of
from layerscope.core.conventions import Reading
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile


def choose_label_free(
    evidence: Evidence,
    rule: str,
    *,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    readout: str = DEFAULT_READOUT,
    profile: Profile | None = None,
) -> Choice:
    """Return a rule's answer on some evidence, brought within `max_blocks`."""
    last = evidence.n_blocks
    if last < 1:
        raise LayerscopeError(f"{evidence.model} has no blocks to choose from.")
    answer = get_rule(rule)(evidence)
    layer, bound_warnings = _bounded(answer, last, max_blocks, tolerance)
    warnings = [*answer.warnings, *bound_warnings]
    forecast = answer.forecast
    gain: Interval | None = None
    risk: float | None = None
    if readout != DEFAULT_READOUT:
        warnings.append(
            f"rules without labels are about the default readout: nothing is known about {readout}."
        )
    elif layer == last:
        gain, risk = NOTHING, 0.0
    elif forecast is not None and np.isfinite(forecast.gain[layer]):
        gain = Interval(float(forecast.gain[layer]), *forecast.interval(layer))
        risk = forecast.risk(layer)
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
        **({} if profile is None else _facts(profile)),
    )


def _bounded(
    answer: Answer, last: int, max_blocks: float | None, tolerance: float | None
) -> tuple[int, list[str]]:
    """Return the layer within the bound, and a warning where it is not near the rule's."""
    limits = block_limits(max_blocks, tolerance, last)
    if max_blocks is None and tolerance is None:
        return answer.layer, []
    if answer.forecast is None:
        most = allowed_blocks(max_blocks, last)
        if answer.layer <= most:
            return answer.layer, []
        return most, [
            f"max_blocks= allows {most} blocks: layer {most} is the nearest to the rule's "
            f"{answer.layer}; its gain is not known."
        ]
    gain = _trusted(answer.forecast, last, max_blocks)
    values = np.where(np.isfinite(gain), gain, np.nan)
    if tolerance is None:  # what the rule takes for as good counts as that
        near = [layer for layer in answer.near if np.isfinite(values[layer])]
        values[near] = gain[answer.layer]
    costs = [layer / last for layer in range(last + 1)]
    decision = decide(layers_of(Readout(), range(last + 1), costs), [Scores(values)], last, limits)
    if decision.kept:
        return decision.chosen, []
    return decision.chosen, [
        f"no layer within max_blocks= is within {limits.tolerance:g} points of the best: layer "
        f"{decision.chosen} is expected to be {gain[answer.layer] - gain[decision.chosen]:.1f} below."
    ]


def _trusted(forecast: Forecast, last: int, max_blocks: float | None) -> np.ndarray:
    """Return gains without the layers that lose too often, as long as the bound leaves another."""
    safe = np.array(
        [np.isfinite(g) and forecast.risk(k) <= MOST_RISK for k, g in enumerate(forecast.gain)]
    )
    safe[last] = True
    if not safe[: allowed_blocks(max_blocks, last) + 1].any():
        return forecast.gain
    return np.where(safe, forecast.gain, -np.inf)


def _facts(profile: Profile) -> dict[str, Any]:
    """Return what a choice says about the run that it rests on."""
    model = profile.manifest["model"]
    return {
        "identity": dict(model),
        "source": None if profile.path is None else str(profile.path),
        "max_length": Reading.of(profile.manifest).max_length,
        "unit_length": bool(model["normalizes"]) if "normalizes" in model else None,
    }
