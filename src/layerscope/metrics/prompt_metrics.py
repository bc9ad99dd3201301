"""Metrics of one prompt's tokens, averaged over prompts: entropy, curvature, how long the states
are, and the sink.

A profile computes all but the state norm together, from one Gram matrix per prompt
(`capture.reduce`), to the same values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.metrics.base import Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS
from layerscope.metrics.tokens import curvatures, find_sink, prompt_entropies, token_norms
from layerscope.metrics.vectors import Options

PROMPT_ENTROPY = Metric(
    MetricInfo(
        name="prompt_entropy",
        title="Prompt entropy",
        level="tokens",
        unit="nats",
        higher_means="the tokens of a prompt spread over more directions (less compressed)",
        bounds="0 to log min(tokens, D)",
        citation="Skean et al. 2025, Eq. 1; Wei et al. 2024",
        normalizations=NORMALIZATIONS,
        sinks=("keep", "drop"),
        core=True,
        heading="prompt\nentropy",
        order=10,
        compare_sinks=True,
    ),
    measure=prompt_entropies,
)


def measure_curvature(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return the mean angle, in radians, between successive differences v_k = z_{k+1} − z_k of each
    prompt's states.

    Prompts of fewer than three tokens have none. Differences of length zero are left out.

    >>> corner = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]])
    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> round(measure_curvature(corner, mask, Options()).item(), 4)  # a right angle
    1.5708
    """
    return curvatures(states, mask, options.curvature_absolute)[0]


CURVATURE = Metric(
    MetricInfo(
        name="curvature",
        title="Curvature",
        level="tokens",
        unit="radians",
        higher_means="the path through a prompt's tokens turns more sharply",
        bounds="0 to π",
        citation="Hosseini & Fedorenko 2023; Skean et al. 2025",
        sinks=("keep", "drop"),
        core=True,
        heading="curv-\nature",
        order=20,
    ),
    measure=measure_curvature,
)


def measure_state_norm(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return the mean length of each prompt's token states; a prompt without a token has none.

    Each block adds to the residual stream, so that it grows with depth, and what a block adds
    weighs less and less.

    >>> states = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    >>> measure_state_norm(states, torch.ones(1, 2, dtype=torch.bool), Options()).item()
    3.0
    """
    norms = torch.where(mask, token_norms(states), 0.0)
    count = mask.sum(-1)
    return torch.where(count > 0, norms.sum(-1) / count.clamp(min=1), torch.nan)


STATE_NORM = Metric(
    MetricInfo(
        name="state_norm",
        title="State norm",
        level="tokens",
        unit="length",
        higher_means="the token states are longer",
        bounds="at least 0",
        citation="Heimersheim & Turner 2023 (residual stream norms)",
        sinks=("keep", "drop"),
        order=85,
        log_scale=True,
        compare_sinks=True,
        by_default=False,
        main=False,
    ),
    measure=measure_state_norm,
    before_final_norm=True,
)


def measure_sink_ratio(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return the norm of each prompt's largest token over the median norm of its tokens."""
    return find_sink(states, mask).ratio


def measure_sink_first(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return 1 where the largest token is the first real one, else 0."""
    start = mask.to(torch.uint8).argmax(-1)
    is_first = (find_sink(states, mask).position == start).double()
    return torch.where(mask.any(-1), is_first, torch.nan)


_CITATION = "Sun et al. 2024 (massive activations); Xiao et al. 2024 (attention sinks)"

SINK_RATIO = Metric(
    MetricInfo(
        name="sink_ratio",
        title="Sink ratio",
        level="tokens",
        unit="ratio",
        higher_means="one token is that many times larger than the median token",
        bounds="at least 1",
        citation=_CITATION,
        order=80,
        log_scale=True,
        heading="sink\nratio",
    ),
    measure=measure_sink_ratio,
    before_final_norm=True,
)

SINK_FIRST = Metric(
    MetricInfo(
        name="sink_first",
        title="Sink at token 0",
        level="tokens",
        unit="share",
        higher_means="the largest token is more often the first one",
        bounds="0 to 1",
        citation=_CITATION,
        main=False,
    ),
    measure=measure_sink_first,
    before_final_norm=True,
)
