"""The sink: the one token whose norm stands out, and where it is."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo, PromptMean
from layerscope.metrics.tokens.norms import find_sink

_SOURCE = "Sun et al. 2024 (massive activations); Xiao et al. 2024 (attention sinks)"


class SinkRatio(PromptMean):
    """Norm of a prompt's largest token over the median norm of its tokens, on states without the final norm."""

    info = MetricInfo(
        name="sink_ratio",
        title="Sink ratio",
        level="tokens",
        unit="ratio",
        higher_means="one token is that many times larger than the median token",
        bounds=lambda n, d, o: (1.0, math.inf),
        bounds_text="at least 1",
        citation=_SOURCE,
        order=80,
        log_scale=True,
        heading="sink\nratio",
    )

    fused = "sink_ratio"

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        return find_sink(states, mask).ratio


class SinkFirst(PromptMean):
    """Share of prompts whose largest token is the first one."""

    info = MetricInfo(
        name="sink_first",
        title="Sink at token 0",
        level="tokens",
        unit="share",
        higher_means="the largest token is more often the first one",
        bounds=lambda n, d, o: (0.0, 1.0),
        bounds_text="0 to 1",
        citation=_SOURCE,
        main=False,
    )

    fused = "sink_position"

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """1 where the largest token is the first real one."""
        first = mask.to(torch.uint8).argmax(-1)
        share = (find_sink(states, mask).position == first).double()
        return torch.where(mask.any(-1), share, torch.nan)

    def from_field(self, values: np.ndarray) -> np.ndarray:
        """1 where the sink is the first token; its position is what is kept."""
        return (values == 0).astype(float)
