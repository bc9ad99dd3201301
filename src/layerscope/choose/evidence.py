"""The evidence of a label-free rule: a model's metric curves over its layers, and facts about it.

A rule that reads an `Evidence` cannot tell where it comes from: a profile, or published curves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

# Vectors of a pretrained model share a direction (mean cosine 0.6 and more); contrastive training
# at a layer spreads them out.
ISOTROPIC = 0.3
# Norm of the largest token over the median that makes a valley, where the final norm hides the
# valley itself.
SINK_RATIO = 10.0


@dataclass(frozen=True)
class Curve:
    """A metric over layers 0 … n: its value and its 95 % interval (the value itself where none is
    known)."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def exact(cls, value: Any) -> Curve:
        """Return a curve without known uncertainty."""
        array = np.asarray(value, dtype=float)
        return cls(array, array, array)


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
    warnings: tuple[str, ...] = field(default=())

    def curve(self, metric: str) -> Curve | None:
        """Return a metric's curve if it was measured at every layer."""
        curve = self.curves.get(metric)
        if curve is None or len(curve.value) != self.n_blocks + 1:
            return None
        return curve if np.isfinite(curve.value).all() else None

    @property
    def sink_visible(self) -> bool:
        """Whether the measured states show a sink's norm.

        The final norm, applied at every layer, takes it out.
        """
        return self.final_norm != "applied" or not self.has_final_norm


def from_run(run: Profile) -> Evidence:
    """Return the evidence in a finished profile."""
    blocks = int(run.manifest["model"]["n_blocks"])
    table = whole_layers(run.table)
    table = table[(table["normalization"] == "raw") & (table["sink"] == "keep")]
    curves: dict[str, Curve] = {}
    for metric, rows in table.groupby("metric"):
        rows = rows.drop_duplicates("layer").set_index("layer").reindex(range(blocks + 1))
        curves[str(metric)] = Curve(
            *(rows[name].to_numpy(dtype=float) for name in ("value", *INTERVAL))
        )
    if "curvature" in curves and run.manifest["conventions"].get("curvature_absolute"):
        bent = curves["curvature"]
        curves["curvature"] = Curve(np.pi - bent.value, np.pi - bent.high, np.pi - bent.low)
    reading = Reading.of(run.manifest)
    return Evidence(
        model=run.name,
        n_blocks=blocks,
        curves=curves,
        final_norm=str(reading.final_norm),
        has_final_norm=reading.has_norm,
        tuned=_tuned(run.manifest["model"], curves, reading.shows_output),
        tuning_known=reading.shows_output and "anisotropy" in curves,
        untrained=bool(run.manifest["model"].get("untrained")),
        wordless=bool(run.manifest.get("corpus", {}).get("lack_words")),
        warnings=_warnings(run.manifest),
    )


def _tuned(model: dict[str, Any], curves: dict[str, Curve], shows_last: bool) -> str | None:
    if model.get("exported"):
        return f"it is an export of layerscope ({model['exported']}), whose last layer was chosen"
    if model.get("sentence_encoder") or model.get("normalizes"):
        return "it comes with a sentence-embedding pipeline that reads the last layer"
    spread = curves.get("anisotropy")
    if (
        shows_last
        and spread is not None
        and np.isfinite(spread.value[-1])
        and spread.value[-1] < ISOTROPIC
    ):
        cosine = f"{spread.value[-1]:.2f}"
        return f"the mean cosine of its last-layer vectors is {cosine}, which contrastive training at that layer leaves behind"
    return None


def _warnings(manifest: dict[str, Any]) -> tuple[str, ...]:
    prompts = int(manifest["counts"]["prompts"])
    if prompts >= 50:
        return ()
    count = count_of(prompts, "prompts")
    return (f"the profile has only {count}: 100 or more give steadier curves.",)


def read_valley(evidence: Evidence) -> tuple[float | None, str, bool]:
    """Return the probability of a valley, what was seen, and whether it was read as published.

    The probability is None where nothing tells.
    """
    entropy = evidence.curve("prompt_entropy")
    sink = evidence.curve("sink_ratio")
    valley = (
        None if entropy is None else find_valley(entropy.value, low=entropy.low, high=entropy.high)
    )
    if valley is not None and evidence.sink_visible:
        return (
            valley.probability,
            f"prompt entropy dips by {valley.share:.0%} of its shoulder",
            True,
        )
    if sink is not None:
        # the layers between: the embedding's and the last layer's norms have other causes
        largest = float(sink.value[1:-1].max()) if len(sink.value) > 2 else 1.0
        # a sink around the limit may or may not have made a valley: odds of 1 at the limit, 9 at
        # twice, 1/9 at half of it
        odds = (largest / SINK_RATIO) ** np.log2(9)
        return float(odds / (1 + odds)), f"one token reaches {largest:.0f} × the median norm", False
    if valley is not None:
        seen = "prompt entropy was measured behind the final norm, which hides its valley, and the sink was not measured"
        return (
            None,
            f"{seen} (profile with final_norm=hf, or with metrics=prompt_entropy,sink_ratio)",
            False,
        )
    if "prompt_entropy" in evidence.curves:
        return (
            None,
            "prompt entropy was not measured at every layer, and the sink not at all",
            False,
        )
    return None, "neither prompt entropy nor the sink was measured at every layer", False
