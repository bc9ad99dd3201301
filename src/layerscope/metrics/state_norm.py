"""How long the states are: the norm of the residual stream by depth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo, PromptMean
from layerscope.metrics.tokens.norms import token_norms


class StateNorm(PromptMean):
    """Mean length of a prompt's token states without the final norm; `drop` leaves out the token with the largest.

    Each block adds to the residual stream, so that it grows with depth, and what a block adds weighs less and less.

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
