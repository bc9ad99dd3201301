"""Label-free rules: functions from evidence to an answer, each known under a name.

Ours, `evidence`: whether prompt entropy has a valley decides which of the atlas's depth curves
applies; weak evidence abstains. Models whose prompt entropy has a valley hold their best vectors
late (about 80 % depth), models without one early. The curves, how they carry over to families that
were left out, and what that does not cover are in docs/selection.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from layerscope.choose.evidence import Evidence, read_valley
from layerscope.choose.prior import Forecast, Prior, best_layer, shipped_prior
from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError

__all__ = ["choose_by_evidence", "get_rule", "nearest"]

MOST_RISK = 1 / 3
"""The largest forecast chance that a layer loses to the last one. Such a forecast, for a model whose
family nobody scored, is wide: 0.24 to 0.33 for every model of the atlas, of which none lost."""

UNSURE = 1.25
"""How much wider intervals are where the evidence was not read as in the published results."""

LOWEST = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")
FIXED = "fixed_depth"
DEFAULT_DEPTH = 0.8
_NEAR = 0.1  # share of the headroom within which one family alone cannot tell layers apart


@dataclass(frozen=True)
class Answer:
    """The layer that a rule names, and why.

    `near` are the layers that the rule expects to be about as good; `forecast` is what each layer
    gains, None if the rule says nothing about it.
    """

    layer: int
    reason: str
    near: tuple[int, ...] = ()
    forecast: Forecast | None = None
    warnings: tuple[str, ...] = ()
    abstained: bool = False


Rule = Callable[[Evidence], Answer]


def get_rule(name: str) -> Rule:
    """Return the rule of that name; `fixed_depth:0.7` sets the depth of the one that has a depth."""
    base, _, number = name.partition(":")
    if base not in RULES:
        raise UnknownNameError(
            "rule", name, [*RULES, "measured"], "`measured` reads an evaluation's folder."
        )
    if not number:
        return RULES[base]
    if base != FIXED:
        raise InvalidValueError(f"the rule {base!r} takes no number; {name!r} was given.")
    try:
        depth = float(number)
    except ValueError:
        raise InvalidValueError(
            f"{name!r}: after the colon comes a number, such as {base}:0.7."
        ) from None
    if not 0 <= depth <= 1:
        raise InvalidValueError(
            f"a depth lies between 0 (embeddings) and 1 (last layer), not at {depth:g}."
        )
    return partial(_fixed_depth, depth)


def choose_by_evidence(evidence: Evidence, prior: Prior) -> Answer:
    """Return the answer under a prior: benchmarks give one that has not seen the model's family."""
    last = evidence.n_blocks
    warnings = list(evidence.warnings)

    def keep_last(why: str) -> Answer:
        reason = f"no layer but the last can be trusted here: {why}"
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
    probability, seen, as_fitted = read_valley(evidence)
    if probability is None:
        return keep_last(f"{seen}, so nothing says where in the model to look.")
    if not as_fitted:
        warnings.append(
            "the final norm hides the valley that the rule was fitted on; the sink's norm stands "
            "in for it and the interval is wider. A profile with final_norm=hf is read as the "
            "atlas is."
        )
    shares = prior.shares(probability, last)
    forecast = prior.forecast(shares, 1.0 if as_fitted else UNSURE)
    layer = best_layer(shares)
    sure = f"{seen} (chance of a valley {probability:.0%})"
    if layer == last:
        return keep_last(f"{sure}; no layer is expected to gain.")
    risk = forecast.risk(layer)
    if risk > MOST_RISK:
        return keep_last(f"{sure}; layer {layer} looks best but would lose in {risk:.0%} of cases.")
    if not evidence.tuning_known:
        unseen = (
            "whether the last layer was trained for embedding cannot be seen without anisotropy "
            "or under final_norm=raw"
        )
        if probability < 0.5:
            # an early layer of a sentence encoder loses far more than one of a language model gains
            return keep_last(f"{sure}, but {unseen}.")
        warnings.append(f"{unseen}. If it was, keep the last layer.")
    kind = "with a valley gain late" if probability >= 0.5 else "without a valley gain early"
    reason = f"{sure}; the published models {kind}."
    near = _near(prior, probability, layer, last)
    return Answer(layer, reason, near, forecast, tuple(warnings))


def _near(prior: Prior, probability: float, layer: int, n_blocks: int) -> tuple[int, ...]:
    """Return the layers whose lag behind the chosen one is within a standard error over the
    families, or a tenth of the headroom."""
    families = prior.family_shares(float(probability >= 0.5), n_blocks)
    lag = families[:, [layer]] - families
    error = lag.std(axis=0, ddof=1) / np.sqrt(len(lag)) if len(lag) > 1 else np.zeros(n_blocks + 1)
    near = lag.mean(axis=0) <= np.maximum(error, _NEAR)
    near[0] = False
    near[layer] = True
    return tuple(int(k) for k in np.flatnonzero(near))


def nearest(depth: float, n_blocks: int) -> int:
    """Return the layer at a depth; of two equally near the later one.

    >>> nearest(0.8, 24), nearest(0.75, 6)
    (19, 5)
    """
    return int(np.floor(depth * n_blocks + 0.5))


def _fixed_depth(depth: float, evidence: Evidence) -> Answer:
    reason = f"the layer at {depth:.0%} depth; nothing was looked at."
    return Answer(nearest(depth, evidence.n_blocks), reason)


def _last(evidence: Evidence) -> Answer:
    return Answer(evidence.n_blocks, "the last layer, as asked.")


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


RULES: dict[str, Rule] = {
    "evidence": lambda evidence: choose_by_evidence(evidence, shipped_prior()),
    "last": _last,
    FIXED: partial(_fixed_depth, DEFAULT_DEPTH),
    **{f"lowest_{metric}": partial(_lowest, metric) for metric in LOWEST},
}
