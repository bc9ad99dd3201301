"""AdamW (Loshchilov & Hutter 2019) for many probes at once: each has a learning rate of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from layerscope.probing.heads import Parameters

_BETAS = (0.9, 0.999)
_EPS = 1e-8


def adamw_step(
    parameters: Parameters,
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    piece: slice,
    grads: Sequence[Tensor],
    rates: Tensor,
    step: int,
    decay: float,
) -> None:
    """Change the layers of a piece in place. `rates` (G, R) are the learning rates now; `step` counts from 1; no bias decays.

    Everything is elementwise: what one probe does never reaches another.
    """
    fix_first, fix_second = 1 - _BETAS[0] ** step, 1 - _BETAS[1] ** step
    with torch.no_grad():
        for name, grad in zip(parameters, grads, strict=True):
            value, m, v = parameters[name][piece], first[name][piece], second[name][piece]
            rate = rates.view(*rates.shape, *[1] * (value.dim() - 2))
            m.lerp_(grad, 1 - _BETAS[0])
            v.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
            if name != "bias":
                value.mul_(1 - rate * decay)
            size = (v / fix_second).sqrt_().add_(_EPS)
            value.sub_(torch.div(m, size, out=size).mul_(rate / fix_first))
