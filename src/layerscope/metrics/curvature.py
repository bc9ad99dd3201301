"""Curvature: how sharply the path of token states turns."""

from __future__ import annotations

import math

from torch import Tensor

from layerscope.metrics.base import MetricInfo, PromptMean
from layerscope.metrics.tokens.measures import curvatures


class Curvature(PromptMean):
    """Mean angle, in radians, between successive differences v_k = z_{k+1} − z_k of one prompt's states.

    Prompts of fewer than three tokens have none: they are counted as undefined. Differences of length zero are left out.

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
