"""Prompt entropy: S_α of one prompt's token states, averaged over prompts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, Normalization, normalizer
from layerscope.metrics.registry import register
from layerscope.metrics.samples import PromptValues
from layerscope.metrics.tokens.measures import full_mask, prompt_entropies


def mean_over_prompts(values: np.ndarray, width: int) -> Estimate:
    """The mean of per-prompt values; undefined ones (NaN) are left out and counted."""
    defined = np.isfinite(values)
    n = int(defined.sum())
    if n == 0:
        return Estimate(math.nan, 0, width, undefined=len(values))
    kept = values if n == len(values) else values[defined]
    mean = float(kept.mean())
    return Estimate(mean, n, width, (kept - mean) / n, undefined=len(values) - n)


class PromptMean(Metric[PromptValues]):
    """Base of metrics that are a mean of one number per prompt."""

    def new_data(self) -> PromptValues:
        """Per-prompt values."""
        return PromptValues()

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """One value per prompt of token states (B, T, D)."""
        raise NotImplementedError(f"{type(self).__name__} must measure a prompt")

    def update(self, states: Tensor, mask: Tensor | None = None, keys: Any = None) -> PromptMean:
        """Add prompts: token states (B, T, D), with a mask (B, T) that is False at padding."""
        if states.ndim != 3:
            raise ValueError(f"expected token states (prompts, tokens, width), got shape {tuple(states.shape)}")
        mask = full_mask(states) if mask is None else mask.bool()
        if mask.shape != states.shape[:2]:
            raise ValueError(f"mask of shape {tuple(mask.shape)} does not fit states of shape {tuple(states.shape)}")
        self.data.update(self.measure(states, mask), mask.sum(-1), keys, width=states.shape[-1])
        return self

    def estimate(self, data: PromptValues) -> Estimate:
        """The mean over prompts."""
        return mean_over_prompts(data.ordered()[0], data.width or 0)


@register
class PromptEntropy(PromptMean):
    """How many directions the tokens of one prompt spread over.

    >>> import torch
    >>> metric = PromptEntropy().update(torch.eye(3).unsqueeze(0))
    >>> round(metric.compute().value, 4)  # three centred, orthogonal tokens span a plane: log 2
    0.6931
    """

    info = MetricInfo(
        name="prompt_entropy",
        title="Prompt entropy",
        level="tokens",
        unit="nats",
        higher_means="the tokens of a prompt spread over more directions (less compressed)",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="0 to log min(tokens, D)",
        citation="Skean et al. 2025, Eq. 1; Wei et al. 2024",
        normalizations=NORMALIZATIONS,
        sinks=("keep", "drop"),
        core=True,
    )

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """S_α of each prompt."""
        return prompt_entropies(states, mask, self.options)

    def normalized(self, data: PromptValues, raw: Estimate, normalization: Normalization) -> Estimate:
        """Each prompt by its own number of tokens, then the mean."""
        values, (sizes, which) = data.ordered()[0], data.sizes()
        by = np.array([normalizer(normalization, int(t), data.width or 0) for t in sizes])
        return mean_over_prompts(values / by[which], data.width or 0)
