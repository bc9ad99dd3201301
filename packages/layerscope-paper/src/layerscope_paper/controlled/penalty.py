"""A loss term that compresses or spreads the states of chosen layers while a model trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from layerscope.errors import ModelError


def token_entropies(states: Tensor) -> Tensor:
    """Return S_2 of each text's token states (B, T, D), in nats (B,): `prompt_entropy` of order 2,
    with gradients. Order 2 needs no eigenvalues. Three orthogonal tokens have log 2:

    >>> import torch
    >>> round(token_entropies(torch.eye(3)[None]).item(), 4)
    0.6931
    """
    with torch.autocast(states.device.type, enabled=False):
        x = states if states.dtype == torch.float64 else states.float()
        before = x.detach().square().sum(-1)
        x = x - x.mean(1, keepdim=True)
        # a token that equals the mean has no direction, only rounding error
        squares = x.square().sum(-1)
        has_direction = squares > before * torch.finfo(x.dtype).eps ** 2
        scale = torch.where(has_direction, squares, 1.0).rsqrt()
        x = x * torch.where(has_direction, scale, 0.0).unsqueeze(-1)
        gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return 2 * trace.log() - gram.square().sum((-2, -1)).log()


class LayerPenalty:
    """Add `weight` × the mean entropy of each text's tokens at some layers to a loss.

    A positive weight compresses, a negative one spreads. States are those of the residual stream,
    without the final norm, of texts without padding.

        with LayerPenalty(model, 0.05, [4, 5, 6]) as penalty:
            for batch in batches:
                loss = model(**batch).loss + penalty.term()
    """

    def __init__(self, model: nn.Module, weight: float, layers: Sequence[int]) -> None:
        self.weight = weight
        self._states: list[Tensor] = []
        blocks: Any = model.base_model
        self._handles = [
            blocks.layers[layer - 1].register_forward_hook(self._keep) for layer in layers
        ]

    def _keep(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._states.append(output if isinstance(output, Tensor) else output[0])

    def term(self) -> Tensor:
        """Return the term of the last forward pass; the states of each pass are used once."""
        if not self._states:
            raise ModelError("call term() once after each forward pass with gradients.")
        states = self._states
        self._states = []
        return self.weight * torch.stack([token_entropies(layer).mean() for layer in states]).mean()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self._handles:
            handle.remove()
