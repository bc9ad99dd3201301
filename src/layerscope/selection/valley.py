"""Whether prompt entropy has a valley, read from the evidence on a model: the entropy itself, or the sink that makes it."""

from __future__ import annotations

import numpy as np

from layerscope.core.valley import find_valley
from layerscope.selection.evidence import Evidence

# Norm of the largest token over the median that makes such a valley, where the final norm hides the valley itself.
SINK_RATIO = 10.0


def read_valley(evidence: Evidence) -> tuple[float | None, str, bool]:
    """(probability of a valley, in words, whether it was read as in the atlas); the probability is None where nothing tells."""
    entropy, sink = evidence.curve("prompt_entropy"), evidence.curve("sink_ratio")
    valley = None if entropy is None else find_valley(entropy.value, low=entropy.low, high=entropy.high)
    if valley is not None and evidence.sink_visible:
        return valley.probability, f"prompt entropy dips by {valley.share:.0%} of its shoulder", True
    if sink is not None:
        # the layers between: the embedding's and the last layer's norms have other causes
        largest = float(sink.value[1:-1].max()) if len(sink.value) > 2 else 1.0
        # a sink around the limit may or may not have made a valley: odds of 1 at the limit, 9 at twice, 1/9 at half of it
        odds = (largest / SINK_RATIO) ** np.log2(9)
        return float(odds / (1 + odds)), f"one token reaches {largest:.0f} × the median norm", False
    return None, "neither prompt entropy nor the sink was measured at every layer", False
