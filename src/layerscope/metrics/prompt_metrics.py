"""Metrics of one prompt's tokens, averaged over prompts: entropy, curvature, how long the states
are, and the sink."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, MetricInfo, PromptMean, mean_over_prompts
from layerscope.metrics.entropy import NORMALIZATIONS, Normalization, normalizer
from layerscope.metrics.samples import PromptValues
from layerscope.metrics.tokens.measures import curvatures, prompt_entropies
from layerscope.metrics.tokens.norms import find_sink, token_norms


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

    def normalized(
        self, data: PromptValues, raw: Estimate, normalization: Normalization
    ) -> Estimate:
        """Each prompt by its own number of tokens, then the mean."""
        values, (sizes, which) = data.ordered()[0], data.sizes()
        by = np.array([normalizer(normalization, int(t), data.width or 0) for t in sizes])
        return mean_over_prompts(values / by[which], data.width or 0)


class Curvature(PromptMean):
    """Mean angle, in radians, between successive differences v_k = z_{k+1} − z_k of one prompt's
    states.

    Prompts of fewer than three tokens have none: they are counted as undefined. Differences of
    length zero are left out.

    >>> import torch
    >>> corner = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]])
    >>> round(Curvature().update(corner).compute().value, 4)  # a right angle
    1.5708
    """

    info = MetricInfo(
        name="curvature",
        title="Curvature",
        level="tokens",
        unit="radians",
        higher_means="the path through a prompt's tokens turns more sharply",
        bounds=lambda n, d, o: (0.0, math.pi),
        bounds_text="0 to π",
        citation="Hosseini & Fedorenko 2023; Skean et al. 2025",
        sinks=("keep", "drop"),
        core=True,
        heading="curv-\nature",
        order=20,
    )

    fused = "curvature_{}"

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        return curvatures(states, mask, self.options.curvature_absolute)[0]


class StateNorm(PromptMean):
    """Mean length of a prompt's token states without the final norm; `drop` leaves out the token
    with the largest.

    Each block adds to the residual stream, so that it grows with depth, and what a block adds
    weighs less and less.

    >>> import torch
    >>> StateNorm().update(torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])).compute().value
    3.0
    """

    info = MetricInfo(
        name="state_norm",
        title="State norm",
        level="tokens",
        unit="length",
        higher_means="the token states are longer",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="at least 0",
        citation="Heimersheim & Turner 2023 (residual stream norms)",
        sinks=("keep", "drop"),
        order=85,
        log_scale=True,
        compare_sinks=True,
        by_default=False,
        main=False,
    )

    before_final_norm = True

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """The mean over each prompt's tokens; a prompt without a token has none."""
        norms = torch.where(mask, token_norms(states), 0.0)
        count = mask.sum(-1)
        return torch.where(count > 0, norms.sum(-1) / count.clamp(min=1), torch.nan)


_SOURCE = "Sun et al. 2024 (massive activations); Xiao et al. 2024 (attention sinks)"


class SinkRatio(PromptMean):
    """Norm of a prompt's largest token over the median norm of its tokens, on states without the
    final norm."""

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
