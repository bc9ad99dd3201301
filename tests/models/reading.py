"""Reading states with plain hooks, independently of the capture code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layerscope.capture.hooks import Tap
from layerscope.models import LoadedModel
from layerscope.models.modules import first


def read_layers(model: LoadedModel, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """Layers 0 … L: the input of block 0, then each block's output."""
    blocks = model.anatomy.blocks
    points = [Tap(blocks[0], "input"), *(Tap(block) for block in blocks)]
    return read(model, points, ids, mask)


def read(
    model: LoadedModel, points: list[Tap], ids: Tensor, mask: Tensor | None = None
) -> list[Tensor]:
    """What passes each tap in one forward pass."""
    seen: dict[int, Tensor] = {}

    def output_hook(i: int) -> Any:
        return lambda _m, _a, out: seen.__setitem__(i, first(out).clone())

    def input_hook(i: int) -> Any:
        return lambda _m, args, kwargs: seen.__setitem__(
            i, (args[0] if args else kwargs["hidden_states"]).clone()
        )

    handles = [
        tap.module.register_forward_hook(output_hook(i))
        if tap.side == "output"
        else tap.module.register_forward_pre_hook(input_hook(i), with_kwargs=True)
        for i, tap in enumerate(points)
    ]
    try:
        model.forward(ids, torch.ones_like(ids) if mask is None else mask)
    finally:
        for handle in handles:
            handle.remove()
    return [seen[i] for i in range(len(points))]


def some_ids(rows: int = 1, length: int = 7, seed: int = 3) -> Tensor:
    """Ordinary token ids (no special ones)."""
    return torch.randint(10, 200, (rows, length), generator=torch.Generator().manual_seed(seed))
