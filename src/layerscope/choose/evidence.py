"""The evidence of a label-free rule: a model's metric curves over its layers, and facts about it.

A rule that reads an `Evidence` cannot tell where it comes from: a profile, or published curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.conventions import Reading
from layerscope.core.formatting import count_of
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL
from layerscope.core.valley import find_valley

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile

__all__ = ["Curve", "Evidence"]

ISOTROPIC = 0.3
"""The mean cosine below which a layer seems trained for embedding. Vectors of a pretrained model
share a direction (mean cosine 0.6 and more); contrastive training at a layer spreads them out."""

SINK_RATIO = 10.0
"""The norm of the largest token over the median that makes a valley, where the final norm hides the
valley itself."""


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
    """Metric curves of one model and the final norm of the states measured.

    `tuned` says why the model seems trained for embedding at its last layer, if it does;
    `tuning_known` whether that can be seen. `untrained`: its weights are as before any training.
    `wordless`: the texts measured are hardly made of words.
    """

    model: str
    n_blocks: int
    curves: dict[str, Curve]
    final_norm: str
    has_final_norm: bool = True
    tuned: str | None = None
    tuning_known: bool = True
    untrained: bool = False
    wordless: bool = False
    warnings: tuple[str, ...] = ()

    def curve(self, metric: str) -> Curve | None:
        """Return a metric's curve if it was measured at every layer."""
        curve = self.curves.get(metric)
        if curve is None or len(curve.value) != self.n_blocks + 1:
            return None
        return curve if np.isfinite(curve.value).all() else None


def from_run(run: Profile) -> Evidence:
    """Return the evidence in a finished profile."""
    model = run.manifest["model"]
    blocks = int(model["n_blocks"])
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
    prompts = int(run.manifest["counts"]["prompts"])
    few = f"the profile has only {count_of(prompts, 'prompts')}: 100 or more give steadier curves."
    return Evidence(
        model=run.name,
        n_blocks=blocks,
        curves=curves,
        final_norm=str(reading.final_norm),
        has_final_norm=reading.has_norm,
        tuned=_tuned(model, curves.get("anisotropy") if reading.shows_output else None),
        tuning_known=reading.shows_output and "anisotropy" in curves,
        untrained=bool(model.get("untrained")),
        wordless=bool(run.manifest.get("corpus", {}).get("lack_words")),
        warnings=(few,) if prompts < 50 else (),
    )


def _tuned(model: Mapping[str, Any], anisotropy: Curve | None) -> str | None:
    """Return why a model seems trained for embedding at its last layer; None if it does not."""
    if model.get("exported"):
        return f"it is an export of layerscope ({model['exported']}), whose last layer was chosen"
    if model.get("sentence_encoder") or model.get("normalizes"):
        return "it comes with a sentence-embedding pipeline that reads the last layer"
    if anisotropy is not None and anisotropy.value[-1] < ISOTROPIC:
        return (
            f"the mean cosine of its last-layer vectors is {anisotropy.value[-1]:.2f}, which "
            "contrastive training at that layer leaves behind"
        )
    return None


@dataclass(frozen=True)
class ValleySigns:
    """The probability of a valley and what was seen of it.

    The probability is None where nothing tells. `as_fitted`: it was read as in the published
    results.
    """

    probability: float | None
    observed: str
    as_fitted: bool = False


def read_valley(evidence: Evidence) -> ValleySigns:
    """Return the signs of a valley in prompt entropy, or in the sink where the norm hides it."""
    entropy = evidence.curve("prompt_entropy")
    sink = evidence.curve("sink_ratio")
    valley = None
    if entropy is not None:
        valley = find_valley(entropy.value, low=entropy.low, high=entropy.high)
    # the final norm, applied at every layer, takes a sink's norm out of the states
    is_visible = evidence.final_norm != "applied" or not evidence.has_final_norm
    if valley is not None and is_visible:
        observed = f"prompt entropy dips by {valley.share:.0%} of its shoulder"
        return ValleySigns(valley.probability, observed, as_fitted=True)
    if sink is not None:
        # the layers between: the embedding's and the last layer's norms have other causes
        largest = float(sink.value[1:-1].max(initial=1.0))
        # a sink around the limit may or may not have made a valley: odds of 1 at the limit, 9 at
        # twice, 1/9 at half of it
        odds = (largest / SINK_RATIO) ** np.log2(9)
        observed = f"one token reaches {largest:.0f} × the median norm"
        return ValleySigns(float(odds / (1 + odds)), observed)
    if valley is not None:
        return ValleySigns(
            None,
            "prompt entropy was measured behind the final norm, which hides its valley, and the "
            "sink was not measured (profile with final_norm=hf, or with "
            "metrics=prompt_entropy,sink_ratio)",
        )
    if "prompt_entropy" in evidence.curves:
        observed = "prompt entropy was not measured at every layer, and the sink not at all"
        return ValleySigns(None, observed)
    return ValleySigns(None, "neither prompt entropy nor the sink was measured at every layer")
