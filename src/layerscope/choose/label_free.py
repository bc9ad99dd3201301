"""The choice of a layer without labels, from metric curves over the layers.

The rule `evidence`: whether prompt entropy has a valley decides which of two depth curves of
published results applies. Models with a valley hold their best vectors late (about 80 % depth),
models without one early. Where the evidence is weak the last layer is kept. `lowest_METRIC` takes
the layer at which a metric is lowest. A rule reads an `Evidence`, so that it cannot tell a profile
from published curves.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit

from layerscope.choose.candidates import Limits, block_limits, layers_of
from layerscope.choose.choice import NOTHING, Choice
from layerscope.choose.decide import bound_warning, decide
from layerscope.core.identity import Reading
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.scores import Scores
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL, Interval, find_valley
from layerscope.errors import LayerscopeError, UnknownNameError

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile

__all__ = [
    "DEPTHS",
    "Calibration",
    "Curve",
    "Evidence",
    "Prior",
    "apply_rule",
    "best_layer",
    "choose_by_evidence",
]

FILE = "prior.json"
DEPTHS = np.linspace(0.0, 1.0, 41)
_SMOOTH = np.array([0.1, 0.2, 0.4, 0.2, 0.1])

ISOTROPIC = 0.3
"""The mean cosine below which a layer seems trained for embedding. Vectors of a pretrained model
share a direction (mean cosine 0.6 and more); contrastive training at a layer spreads them out."""

SINK_RATIO = 10.0
"""The norm of the largest token over the median that makes a valley, where the final norm hides the
valley itself."""

MOST_RISK = 1 / 3
"""The largest forecast chance that a layer loses to the last one. Such a forecast, for a model
whose family nobody scored, is wide: 0.24 to 0.33 for every model of the atlas, of which none
lost."""

UNSURE = 1.25
"""The factor on intervals where the evidence was not read as in the published results."""

LOWEST = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")


# Evidence
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A metric over layers 0 … n, with 95 % bounds (the value itself where none are known)."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def exact(cls, value: np.ndarray) -> Curve:
        """Return a curve without known uncertainty."""
        return cls(value, value, value)


@dataclass(frozen=True)
class Evidence:
    """Metric curves of one model.

    `hides_valley`: the states were measured behind the final norm, which takes a valley out of
    prompt entropy. `problem`: the reason why the last layer stays whatever the curves are.
    `tuning_known`: training for embedding at the last layer would show.
    """

    model: str
    n_blocks: int
    curves: dict[str, Curve]
    hides_valley: bool = False
    problem: str = ""
    tuning_known: bool = True

    def curve(self, metric: str) -> Curve | None:
        """Return a metric's curve if it was measured at every layer."""
        curve = self.curves.get(metric)
        if curve is None or len(curve.value) != self.n_blocks + 1:
            return None
        return curve if np.isfinite(curve.value).all() else None


def from_run(run: Profile) -> Evidence:
    """Return the evidence in a finished profile."""
    blocks = int(run.manifest["model"]["n_blocks"])
    table = whole_layers(run.table)
    table = table[(table["normalization"] == "raw") & (table["sink"] == "keep")]
    curves: dict[str, Curve] = {}
    for metric, rows in table.groupby("metric"):
        by_layer = rows.drop_duplicates("layer").set_index("layer").reindex(range(blocks + 1))
        columns = (by_layer[name].to_numpy(dtype=float) for name in ("value", *INTERVAL))
        curves[str(metric)] = Curve(*columns)
    if "curvature" in curves and run.manifest["conventions"].get("curvature_absolute"):
        bent = curves["curvature"]
        curves["curvature"] = Curve(np.pi - bent.value, np.pi - bent.high, np.pi - bent.low)
    reading = Reading.of(run.manifest)
    anisotropy = curves.get("anisotropy") if reading.shows_output else None
    return Evidence(
        model=run.name,
        n_blocks=blocks,
        curves=curves,
        hides_valley=str(reading.final_norm) == "applied" and reading.has_norm,
        problem=_problem(run, anisotropy),
        tuning_known=anisotropy is not None,
    )


def _problem(run: Profile, anisotropy: Curve | None) -> str:
    """Return why the last layer stays: an untrained model, texts without words, or a model that
    seems trained for embedding at its last layer."""
    model = run.manifest["model"]
    if model.get("untrained"):  # its vectors are spread out, too, and mean nothing
        return "the model's weights are as before any training, so no layer holds anything."
    if run.manifest.get("corpus", {}).get("lack_words"):
        return "most texts are hardly made of words, and the rule is about language."
    if model.get("exported"):
        return f"it is an export of layerscope ({model['exported']}), whose layer was chosen."
    if model.get("sentence_encoder") or model.get("normalizes"):
        return "it comes with a sentence-embedding pipeline that reads the last layer."
    if anisotropy is not None and anisotropy.value[-1] < ISOTROPIC:
        return (
            f"the mean cosine of its last-layer vectors is {anisotropy.value[-1]:.2f}, which "
            "contrastive training at that layer leaves behind."
        )
    return ""


def read_valley(evidence: Evidence) -> tuple[float | None, str]:
    """Return the probability of a valley, and what was seen of it.

    It is read from prompt entropy, or from the sink where the final norm hides the valley. The
    probability is None where nothing tells.
    """
    entropy = evidence.curve("prompt_entropy")
    if entropy is not None and not evidence.hides_valley:
        valley = find_valley(entropy.value, low=entropy.low, high=entropy.high)
        if valley is not None:
            return valley.probability, f"prompt entropy dips by {valley.share:.0%} of its shoulder"
    sink = evidence.curve("sink_ratio")
    if sink is not None:
        # the layers between: the embedding's and the last layer's norms have other causes
        largest = float(sink.value[1:-1].max(initial=1.0))
        # a sink around the limit may or may not have made a valley: odds of 1 at the limit, 9 at
        # twice, 1/9 at half of it
        odds = (largest / SINK_RATIO) ** np.log2(9)
        return float(odds / (1 + odds)), f"one token reaches {largest:.0f} × the median norm"
    missing = "neither prompt entropy nor the sink was measured at every layer"
    if entropy is not None:
        missing = (
            "prompt entropy was measured behind the final norm, which hides its valley, and the "
            "sink was not measured (profile with final_norm=hf, or with "
            "metrics=prompt_entropy,sink_ratio)"
        )
    return None, missing


# Depth curves of the published results
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """The outcomes of the rule on families of models that it was not fitted on, in points.

    `gain` is their mean gain, where the rule predicted `share` of the headroom on average. `error`
    is the standard error of a gain on one more of the `families`.
    """

    gain: float
    share: float
    error: float
    families: int


@dataclass(frozen=True)
class Prior:
    """Depth curves by group (`valley`, `no_valley`) and family: gains over the last layer as shares
    of the headroom, on `DEPTHS`."""

    curves: dict[str, dict[str, np.ndarray]]
    calibration: Calibration | None = None

    def shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """Return the mean over families within each group, mixed by the probability of a valley.

        The embedding layer is never chosen.
        """
        depth = np.arange(n_blocks + 1) / n_blocks
        mixed = np.zeros(n_blocks + 1)
        for group, weight in (("valley", probability), ("no_valley", 1 - probability)):
            shares = []
            for _, curve in sorted(self.curves.get(group, {}).items()):
                smoothed = np.convolve(np.pad(curve, 2, mode="edge"), _SMOOTH, "valid")
                shares.append(np.interp(depth, DEPTHS, smoothed))
            if weight > 0 and shares:
                mixed += weight * np.mean(shares, axis=0)
        mixed[0] = -math.inf
        mixed[-1] = 0.0
        return mixed

    def gains(self, shares: np.ndarray) -> np.ndarray:
        """Return gains in points from shares of the headroom.

        No layer is promised more than the rule has delivered on families it had not seen.
        """
        calibration = self.calibration
        assert calibration is not None
        ratio = np.minimum(np.maximum(shares, -1e9) / max(calibration.share, 1e-9), 1.0)
        return np.where(np.isfinite(shares), calibration.gain * ratio, -math.inf)

    def claim(self, gain: float, widen: float) -> tuple[Interval, float]:
        """Return a gain with its 95 % interval, and the chance that it is below zero.

        The error of a gain is a scale times a t variable.
        """
        calibration = self.calibration
        assert calibration is not None
        scale = widen * calibration.error
        reach = float(stdtrit(calibration.families, 0.975)) * scale
        risk = float(stdtr(calibration.families, -gain / scale))
        return Interval(gain, gain - reach, gain + reach), risk


def best_layer(shares: np.ndarray) -> int:
    """Return the layer with the largest share; the last one unless another is expected to gain."""
    layer = int(np.argmax(shares))
    return layer if shares[layer] > 0 else len(shares) - 1


@lru_cache(maxsize=1)
def shipped_prior() -> Prior:
    """Return the prior of the package, fitted on the published scores of four families."""
    file = resources.files("layerscope.choose").joinpath(FILE)
    stored = json.loads(file.read_text(encoding="utf-8"))
    curves = {
        group: {family: np.array(curve) for family, curve in families.items()}
        for group, families in stored["curves"].items()
    }
    return Prior(curves, Calibration(**stored["calibration"]))


# Rules
# ------------------------------------------------------------------------------------------------


def apply_rule(
    rule: str,
    evidence: Evidence,
    max_blocks: float | None = None,
    tolerance: float | None = None,
) -> Choice:
    """Return the choice by the rule with a name, within the bound."""
    limits = block_limits(max_blocks, tolerance, evidence.n_blocks)
    if rule == "evidence":
        return choose_by_evidence(evidence, shipped_prior(), limits)
    metric = rule.removeprefix("lowest_")
    if metric == rule or metric not in LOWEST:
        names = [f"lowest_{metric}" for metric in LOWEST]
        raise UnknownNameError("rule", rule, ["evidence", "measured", *names])
    curve = evidence.curve(metric)
    if curve is None:
        measured = ", ".join(sorted(evidence.curves)) or "none"
        raise LayerscopeError(
            f"{rule} needs {metric} at every layer of {evidence.model}; measured: {measured}."
        )
    reason = (
        f"{metric} is lowest there. On the published results this rule loses to the last layer on "
        "some families."
    )
    return _without_forecast(rule, evidence, int(np.argmin(curve.value)), reason, limits)


def _without_forecast(
    rule: str, evidence: Evidence, layer: int, reason: str, limits: Limits, abstained: bool = False
) -> Choice:
    """Return the choice of a layer, or of the last one within the bound, whose gain is not known
    unless it is the last."""
    last = evidence.n_blocks
    bound = last if limits.budget is None else round(limits.budget * last)
    warnings: tuple[str, ...] = ()
    if bound < layer:
        warnings = (f"max_blocks= allows {bound} blocks, and the rule takes layer {layer}.",)
        layer = bound
    choice = _make_choice(rule, evidence, layer, reason, NOTHING if layer == last else None)
    return replace(choice, warnings=warnings, abstained=abstained and layer == last)


def _make_choice(
    rule: str,
    evidence: Evidence,
    layer: int,
    reason: str,
    gain: Interval | None,
    risk: float | None = None,
) -> Choice:
    return Choice(
        layer=layer,
        readout=DEFAULT_READOUT,
        gain=gain,
        risk_of_loss=0.0 if gain == NOTHING else risk,
        tied=(layer,),
        rule=rule,
        layers=evidence.n_blocks,
        model=evidence.model,
        reason=reason,
        gain_readout=gain and NOTHING,
        gain_layer=gain,
    )


def choose_by_evidence(evidence: Evidence, prior: Prior, limits: Limits | None = None) -> Choice:
    """Return the choice under a prior: benchmarks give one that has not seen the model's family."""
    limits = limits or Limits()
    last = evidence.n_blocks

    def keep_last(problem: str) -> Choice:
        reason = f"no layer but the last can be trusted here: {problem}"
        return _without_forecast("evidence", evidence, last, reason, limits, abstained=True)

    probability, observed = read_valley(evidence)
    if evidence.problem:
        return keep_last(evidence.problem)
    if probability is None:
        return keep_last(f"{observed}, so nothing says where in the model to look.")
    has_valley = probability >= 0.5
    observed = f"{observed} (chance of a valley {probability:.0%})"
    shares = prior.shares(probability, last)
    layer = best_layer(shares)
    # the norm of a sink stands in for a hidden valley, on which the rule was not fitted
    is_fitted = not evidence.hides_valley and evidence.curve("prompt_entropy") is not None
    gains = prior.gains(shares)
    claims = [prior.claim(float(gain), 1.0 if is_fitted else UNSURE) for gain in gains]
    risks = np.array([risk for _, risk in claims])
    if layer == last:
        return keep_last(f"{observed}; no layer is expected to gain.")
    if risks[layer] > MOST_RISK:
        would = f"would lose in {risks[layer]:.0%} of cases"
        return keep_last(f"{observed}; layer {layer} looks best but {would}.")
    unseen = (
        "whether the last layer was trained for embedding cannot be seen without anisotropy or "
        "under final_norm=raw"
    )
    if not evidence.tuning_known and not has_valley:
        # an early layer of a sentence encoder loses far more than one of a language model gains
        return keep_last(f"{observed}, but {unseen}.")
    warnings = [] if evidence.tuning_known else [f"{unseen}. If it was, keep the last layer."]
    if limits.budget is not None:
        is_safe = (risks <= MOST_RISK) | (np.arange(last + 1) == last)
        is_allowed = is_safe[: round(limits.budget * last) + 1].any()
        scores = Scores(np.where(is_safe if is_allowed else np.isfinite(gains), gains, np.nan))
        costs = [layer / last for layer in range(last + 1)]
        decision = decide(layers_of(Readout(), range(last + 1), costs), [scores], last, limits)
        warnings += bound_warning(decision)
        layer = decision.chosen
    kind = "with a valley gain late" if has_valley else "without a valley gain early"
    gain, risk = (NOTHING, 0.0) if layer == last else claims[layer]
    reason = f"{observed}; the published models {kind}."
    choice = _make_choice("evidence", evidence, layer, reason, gain, risk)
    return replace(choice, warnings=tuple(warnings))


def choose_label_free(
    profile: Profile,
    rule: str,
    *,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    readout: str = DEFAULT_READOUT,
) -> Choice:
    """Return a rule's choice on a profile, within `max_blocks`."""
    evidence = from_run(profile)
    if evidence.n_blocks < 1:
        raise LayerscopeError(f"{evidence.model} has no blocks to choose from.")
    choice = apply_rule(rule, evidence, max_blocks, tolerance)
    if readout != DEFAULT_READOUT:
        note = (
            f"rules without labels are about the default readout: nothing is known about {readout}."
        )
        choice = replace(
            choice,
            readout=readout,
            warnings=(*choice.warnings, note),
            gain=None,
            risk_of_loss=None,
            gain_readout=None,
            gain_layer=None,
        )
    model = profile.manifest["model"]
    return replace(
        choice,
        identity=dict(model),
        source=None if profile.path is None else str(profile.path),
        max_length=Reading.of(profile.manifest).max_length,
        unit_length=bool(model["normalizes"]) if "normalizes" in model else None,
    )
