"""Refit the kept blocks of an encoder, so that each also does the work of those removed behind it.

Block by block, in order, over the tokens of unlabeled texts: the last linear layer is corrected by
ridge regression so that the cut model's state comes near the whole model's where the next kept
block begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.kinds.base import BlockKind, tap
from layerscope.blocks.regression import Ridge

HELD_OUT = 5
"""One text in so many chooses the penalty and says whether a fit helps."""


@dataclass(frozen=True)
class Refit:
    """A refitted variant, and for each block that was fitted the share of the error that is left on
    held-out tokens (1 where the block stayed as it was)."""

    variant: Variant
    remaining: dict[int, float]


def targets(
    encoder: Encoder, batch: Batch, kind: BlockKind, blocks: Sequence[int]
) -> dict[int, Tensor]:
    """Return the whole model's sums (texts, tokens, D) at some of its blocks."""
    whole = encoder.whole
    taken: dict[int, list[Tensor]] = {block: [] for block in blocks}
    hooks = [_tapping(kind, whole.modules[block], taken[block]) for block in taken]
    last = max(blocks) + 1
    encoder.run(Variant(whole.blocks[:last], whole.modules[:last]), batch, hooks=hooks)
    return {block: sums[0] for block, sums in taken.items()}


def refit(
    encoder: Encoder,
    variant: Variant,
    batches: Sequence[Batch],
    kind: BlockKind,
    advance: Callable[[int], None] = lambda n: None,
) -> Refit:
    """Refit a variant on texts, the first block first; `advance` is called after each block."""
    ends = [*variant.blocks[1:], encoder.n_blocks]
    goals = [targets(encoder, batch, kind, [end - 1 for end in ends]) for batch in batches]
    states: list[Start | None] = [None] * len(batches)
    remaining: dict[int, float] = {}
    for place, (block, end) in enumerate(zip(variant.blocks, ends, strict=True)):
        one = Variant((block,), (variant.modules[place],))
        behind: list[Start | None] = []
        if remaining or end > block + 1 or block > place:
            fit = Ridge(*sizes(kind, one.modules[0]), encoder.device)
            for batch, state, goal in zip(batches, states, goals, strict=True):
                given = goal.pop(end - 1)
                behind.append(add_tokens(encoder, one, batch, state, given, kind, fit))
            solution = fit.solve()
            remaining[block] = 1.0 if solution is None else solution.remaining
            if solution is not None:
                last = encoder.whole.modules[end - 1]
                module = kind.changed(one.modules[0], solution.weight, solution.bias, last)
                variant = variant.replace(block, module)
                one, behind = Variant((block,), (module,)), []
        if place + 1 < len(ends):
            states = behind or states_behind(encoder, one, batches, states)
        advance(1)
    return Refit(variant, remaining)


def add_tokens(
    encoder: Encoder,
    one: Variant,
    batch: Batch,
    start: Start | None,
    goal: Tensor,
    kind: BlockKind,
    fit: Ridge,
) -> Start:
    """Run one block, add its tokens to a fit, and return the state behind it."""
    inputs: list[Tensor] = []
    sums: list[Tensor] = []
    linear = kind.linear(one.modules[0])
    assert linear is not None
    hooks = [lambda: tap((linear, True), inputs), _tapping(kind, one.modules[0], sums)]
    state = encoder.run(one, batch, start, hooks)
    add_rows(batch, inputs[0], sums[0], goal, kind, fit)
    return Start(one.blocks[0], state)


def states_behind(
    encoder: Encoder, one: Variant, batches: Sequence[Batch], states: Sequence[Start | None]
) -> list[Start | None]:
    """Run one block from stored states and return the states behind it."""
    return [
        Start(one.blocks[0], encoder.run(one, batch, state))
        for batch, state in zip(batches, states, strict=True)
    ]


def add_rows(
    batch: Batch, inputs: Tensor, current: Tensor, goal: Tensor, kind: BlockKind, fit: Ridge
) -> None:
    """Add the real tokens of a batch to a fit."""
    mask = batch.mask.clone()
    if kind.skips_first_token:
        mask[:, 0] = False
    held = torch.as_tensor(batch.rows % HELD_OUT == 0, device=mask.device)
    held_out = held[:, None].expand_as(mask)[mask]
    # a block may see the tokens of all texts in one row
    flat = [one.reshape(*mask.shape, -1)[mask].float() for one in (inputs, current, goal)]
    problem = kind.problem(flat[1], flat[2])
    fit.add(flat[0], problem.scale, problem.residual, held_out)


def sizes(kind: BlockKind, block: nn.Module) -> tuple[int, int, bool]:
    """Return how many inputs and outputs the fitted layer has, and whether it has a bias."""
    linear: Any = kind.linear(block)
    weight: Tensor = linear.weight
    is_linear = isinstance(linear, nn.Linear)
    inputs, outputs = (weight.shape[1], weight.shape[0]) if is_linear else weight.shape
    return int(inputs), int(outputs), linear.bias is not None


def _tapping(kind: BlockKind, block: nn.Module, into: list[Tensor]) -> Callable[[], Any]:
    place = kind.sum_module(block)
    assert place is not None
    return lambda: tap(place, into)
