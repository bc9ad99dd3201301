"""Prompt entropy: S_α of one prompt's token states, averaged over prompts."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from layerscope.metrics.base import Estimate, MetricInfo, PromptMean, mean_over_prompts
from layerscope.metrics.entropy import NORMALIZATIONS, Normalization, normalizer
from layerscope.metrics.samples import PromptValues
from layerscope.metrics.tokens.measures import prompt_entropies


class PromptEntropy(PromptMean):
    """How many directions the tokens of one prompt spread over.

    >>> import torch
    >>> metric = PromptEntropy().update(torch.eye(3).unsqueeze(0))
    >>> round(metric.compute().value, 4)  # three centered, orthogonal tokens span a plane: log 2
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
        heading="prompt\nentropy",
        order=10,
        compare_sinks=True,
    )

    fused = "entropy_{}"

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        return prompt_entropies(states, mask, self.options)

    def normalized(self, data: PromptValues, raw: Estimate, normalization: Normalization) -> Estimate:
        """Each prompt by its own number of tokens, then the mean."""
        values, (sizes, which) = data.ordered()[0], data.sizes()
        by = np.array([normalizer(normalization, int(t), data.width or 0) for t in sizes])
        return mean_over_prompts(values / by[which], data.width or 0)
