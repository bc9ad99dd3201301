"""Our rule: whether prompt entropy has a valley decides which of the atlas's depth curves applies; weak evidence abstains.

Models whose prompt entropy has a valley hold their best vectors late (about 80 % depth), models without one early. The curves,
how they carry over to families that were left out, and what that does not cover are in docs/selection.md.
"""

from __future__ import annotations

import numpy as np

from layerscope.selection.evidence import Evidence
from layerscope.selection.prior import MOST_RISK, Prior, best_layer, shipped
from layerscope.selection.rules.base import Answer, Rule, register
from layerscope.selection.valley import read_valley

UNSURE = 1.25  # how much wider intervals are where the evidence was not read as in the atlas
_TIE = 0.1  # share of the headroom within which one family alone cannot tell layers apart


def choose(evidence: Evidence, prior: Prior) -> Answer:
    """The answer under some prior: benchmarks give one that has not seen the model's family."""
    last = evidence.n_blocks
    if evidence.tuned:
        return _abstain(last, f"the model seems trained for embedding at its last layer: {evidence.tuned}.", evidence.warnings)
    probability, seen, as_fitted = read_valley(evidence)
    if probability is None:
        return _abstain(last, f"{seen}, so nothing says where in the model to look.", evidence.warnings)
    warnings = list(evidence.warnings)
    if not as_fitted:
        warnings.append(
            "the final norm hides the valley that the rule was fitted on; the sink's norm stands in for it and the interval is "
            "wider. A profile with --final-norm hf is read as the atlas is."
        )
    shares = prior.shares(probability, last)
    forecast = prior.forecast(shares, 1.0 if as_fitted else UNSURE)
    layer = best_layer(shares)
    sure = f"{seen} (chance of a valley {probability:.0%})"
    if layer == last:
        return _abstain(last, f"{sure}; no layer is expected to gain.", tuple(warnings))
    if forecast.risk(layer) > MOST_RISK:
        return _abstain(last, f"{sure}; layer {layer} looks best but would lose {_odds(forecast.risk(layer))}.", tuple(warnings))
    if not evidence.tuning_known:
        unseen = "whether the last layer was trained for embedding cannot be seen without anisotropy or under --final-norm raw"
        if probability < 0.5:
            # an early layer of a sentence encoder loses far more than one of a language model gains
            return _abstain(last, f"{sure}, but {unseen}.", tuple(warnings))
        warnings.append(f"{unseen}. If it was, keep the last layer.")
    kind = "with a valley gain late" if probability >= 0.5 else "without a valley gain early"
    reason = f"{sure}; the published models {kind}."
    return Answer(layer, reason, forecast, _tied(prior, probability, layer, last), tuple(warnings))


def _tied(prior: Prior, probability: float, layer: int, n_blocks: int) -> tuple[int, ...]:
    """Layers whose lag behind the chosen one is within a standard error over the families."""
    families = prior.family_shares(float(probability >= 0.5), n_blocks)
    lag = families[:, [layer]] - families
    error = lag.std(axis=0, ddof=1) / np.sqrt(len(lag)) if len(lag) > 1 else np.zeros(n_blocks + 1)
    near = lag.mean(axis=0) <= np.maximum(error, _TIE)
    near[0] = False
    near[layer] = True
    return tuple(int(k) for k in np.flatnonzero(near))


def _abstain(last: int, why: str, warnings: tuple[str, ...]) -> Answer:
    return Answer(last, f"no layer but the last can be trusted here: {why}", None, (last,), warnings, abstained=True)


def _odds(risk: float) -> str:
    return f"in {risk:.0%} of cases"


@register("evidence", "ours: depth curves of the atlas, chosen by the valley of prompt entropy; abstains where evidence is weak")
def make(_: float | None) -> Rule:
    """The rule with the curves that come with the package."""
    return lambda evidence: choose(evidence, shipped())
