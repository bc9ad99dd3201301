"""Reading with `Capture`, counting hooks, and a toy model whose states are chosen by the test."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from layerscope.capture import (
    Anatomy,
    Batch,
    BatchReduction,
    Capture,
    Reduced,
    Reducer,
    expand_sites,
)
from layerscope.capture.hooks import apply_norm
from layerscope.metrics import Options
from layerscope.models import LoadedModel

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)


def hooks_on(module: nn.Module) -> int:
    """How many forward hooks there are on a module and all its parts."""
    return sum(len(getattr(part, name)) for part in module.modules() for name in _HOOKS)


def capture_states(
    model: LoadedModel, ids: Tensor, final_norm: str, sites: Sequence[str] | None = None
) -> list[Tensor]:
    """Copies of the states at some sites, as `final_norm` asks for them."""
    found = expand_sites(sites, model.anatomy)
    states: dict[int, Tensor] = {}

    def keep(index: int, raw: Tensor, norm: nn.Module | None) -> None:
        states[index] = apply_norm(norm, raw).clone()

    with Capture(model.anatomy, found, final_norm) as capture:  # type: ignore[arg-type]
        capture.run(lambda: model.forward(ids, torch.ones_like(ids)), keep)
    return [states[i] for i in range(len(found))]


def reduce_states(
    batch: Batch,
    states: Sequence[Tensor],
    options: Options | None = None,
    token_level: bool = True,
    kind: type[BatchReduction] = BatchReduction,
) -> Reduced:
    """What the reducer keeps of given states: block k of a toy model returns `states[k]`."""
    blocks = [nn.Identity() for _ in states]
    anatomy = Anatomy("toy", blocks, None)

    def forward(_: Batch) -> None:
        for block, state in zip(blocks, states, strict=True):
            block(state)

    sites = expand_sites(["block.*"], anatomy)
    with Reducer(anatomy, sites, "raw", options or Options()) as reducer:
        reducer.reduction = kind
        return reducer.measure(batch, forward, token_level)
