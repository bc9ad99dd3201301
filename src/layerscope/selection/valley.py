"""How deep the valley of prompt entropy is, and how sure it is that there is one."""

from __future__ import annotations

import numpy as np

from layerscope.selection.evidence import Curve, Evidence

# The least depth, as a share of the lower shoulder, that counts as a valley. In the atlas the models fall into two groups:
# at most 3 % or at least 8 %.
LEAST_DEPTH = 0.05
# Norm of the largest token over the median that makes such a valley, where the final norm hides the valley itself.
SINK_RATIO = 10.0
_DRAWS = 500


def relative_depth(values: np.ndarray) -> np.ndarray:
    """The deepest dip below the lower of its two shoulders, as a share of that shoulder; curves along the last axis.

    >>> float(relative_depth(np.array([4.0, 3.0, 5.0])))
    0.25
    """
    left = np.maximum.accumulate(values, axis=-1)
    right = np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    shoulder = np.minimum(left, right)
    share = (shoulder - values) / np.maximum(np.abs(shoulder), 1e-12)
    return share.max(axis=-1)


def valley_probability(curve: Curve, seed: int = 0) -> float:
    """The share of curves, drawn within the intervals, that have a valley."""
    if not curve.sd.any():
        return float(relative_depth(curve.value) >= LEAST_DEPTH)
    noise = np.random.default_rng(seed).standard_normal((_DRAWS, len(curve.value)))
    # noise makes dips of its own, so each draw is compared with what the same noise does to a curve without any
    drawn = relative_depth(curve.value + noise * curve.sd)
    flat = relative_depth(np.full_like(curve.value, curve.value.mean()) + noise * curve.sd)
    return float((drawn - np.median(flat) >= LEAST_DEPTH).mean())


def read_valley(evidence: Evidence) -> tuple[float | None, str, bool]:
    """(probability of a valley, in words, whether it was read as in the atlas); the probability is None where nothing tells."""
    entropy, sink = evidence.curve("prompt_entropy"), evidence.curve("sink_ratio")
    if entropy is not None and evidence.sink_visible:
        probability = valley_probability(entropy)
        depth = float(relative_depth(entropy.value))
        return probability, f"prompt entropy dips by {depth:.0%} of its shoulder", True
    if sink is not None:
        # the layers between: the embedding's and the last layer's norms have other causes
        largest = float(sink.value[1:-1].max()) if len(sink.value) > 2 else 1.0
        # a sink around the limit may or may not have made a valley: odds of 1 at the limit, 9 at twice, 1/9 at half of it
        odds = (largest / SINK_RATIO) ** np.log2(9)
        return float(odds / (1 + odds)), f"one token reaches {largest:.0f} × the median norm", False
    return None, "neither prompt entropy nor the sink was measured at every layer", False
