"""The sink: the one token whose norm stands out, and where it is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.prompt_entropy import PromptMean
from layerscope.metrics.registry import register
from layerscope.metrics.tokens.measures import find_sink

_SOURCE = "Sun et al. 2024 (massive activations); Xiao et al. 2024 (attention sinks)"


@register
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
    )

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """The ratio of each prompt."""
        return find_sink(states, mask).ratio


@register
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
    )

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """1 where the largest token is the first real one."""
        first = mask.to(torch.uint8).argmax(-1)
        share = (find_sink(states, mask).position == first).double()
        return torch.where(mask.any(-1), share, torch.nan)
