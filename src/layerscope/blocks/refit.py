"""Refit the remaining blocks of an encoder, so that each also does the work of those removed behind
it.

Block by block, in order, over the tokens of unlabeled texts: the last linear layer is corrected by
ridge regression so that the cut model's state comes near the whole model's where the next remaining
block begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.kinds import BlockKind, Tap
from layerscope.blocks.regression import Ridge

HELD_OUT = 5
"""One text in so many chooses the penalty and says whether a fit helps."""


@dataclass(frozen=True)
class Refit:
    """A refitted variant, and for each block that was fitted the share of the error that is left on
    held-out tokens (1 where the block stayed as it was)."""

    variant: Variant
    remaining: dict[int, float]


def refit(
    encoder: Encoder,
    variant: Variant,
    batches: Sequence[Batch],
    kind: BlockKind,
    advance: Callable[[int], None] = lambda n: None,
) -> Refit:
    """Refit a variant on texts, the first block first; `advance` is called after each block."""
    ends = [*variant.blocks[1:], encoder.n_blocks]
    goals = [_sums_of_whole(encoder, batch, kind, [end - 1 for end in ends]) for batch in batches]
    states: list[Start | None] = [None] * len(batches)
    remaining: dict[int, float] = {}
    for place, (block, end) in enumerate(zip(variant.blocks, ends, strict=True)):
        single = Variant((block,), (variant.modules[place],))
        behind: list[Start | None] = []
        if remaining or end > block + 1 or block > place:
            fit = Ridge(*_sizes(kind, single.modules[0]), encoder.device)
            for batch, state, goal in zip(batches, states, goals, strict=True):
                target = goal.pop(end - 1)
                behind.append(_add_tokens(encoder, single, batch, state, target, kind, fit))
            solution = fit.solve()
            remaining[block] = 1.0 if solution is None else solution.remaining
            if solution is not None:
                last = encoder.whole.modules[end - 1]
                module = kind.changed(single.modules[0], solution.weight, solution.bias, last)
                variant = variant.replace(block, module)
                single = Variant((block,), (module,))
                behind = []
        if place + 1 < len(ends):
            states = behind or states_behind(encoder, single, batches, states)
        advance(1)
    return Refit(variant, remaining)


def states_behind(
    encoder: Encoder, single: Variant, batches: Sequence[Batch], states: Sequence[Start | None]
) -> list[Start | None]:
    """Run one block from stored states and return the states behind it."""
    return [
        Start(single.blocks[0], encoder.run(single, batch, state))
        for batch, state in zip(batches, states, strict=True)
    ]


def _sums_of_whole(
    encoder: Encoder, batch: Batch, kind: BlockKind, blocks: Sequence[int]
) -> dict[int, Tensor]:
    """Return the whole model's sums (texts, tokens, D) at some of its blocks."""
    sums: dict[int, list[Tensor]] = {block: [] for block in blocks}
    modules = encoder.whole.modules
    hooks = [_recorder(kind.sum_of(modules[block]), into) for block, into in sums.items()]
    encoder.run(encoder.variant(range(max(blocks) + 1)), batch, hooks=hooks)
    return {block: states[0] for block, states in sums.items()}


def _recorder(tap: Tap | None, into: list[Tensor]) -> Callable[[], Any]:
    assert tap is not None
    return lambda: tap.record(into)


def _add_tokens(
    encoder: Encoder,
    single: Variant,
    batch: Batch,
    start: Start | None,
    goal: Tensor,
    kind: BlockKind,
    fit: Ridge,
) -> Start:
    """Run one block, add its real tokens to a fit, and return the state behind it."""
    module = single.modules[0]
    linear = kind.linear(module)
    assert linear is not None
    inputs: list[Tensor] = []
    sums: list[Tensor] = []
    hooks = [_recorder(Tap(linear, at_input=True), inputs), _recorder(kind.sum_of(module), sums)]
    state = encoder.run(single, batch, start, hooks)
    mask = batch.mask.clone()
    if kind.skips_first_token:
        mask[:, 0] = False
    held_out = torch.as_tensor(batch.rows % HELD_OUT == 0, device=mask.device)
    # a block may see the tokens of all texts in one row
    features, current, target = (
        rows.reshape(*mask.shape, -1)[mask].float() for rows in (inputs[0], sums[0], goal)
    )
    problem = kind.problem(current, target)
    fit.add(features, problem.scale, problem.residual, held_out[:, None].expand_as(mask)[mask])
    return Start(single.blocks[0], state)


def _sizes(kind: BlockKind, block: nn.Module) -> tuple[int, int, bool]:
    """Return how many inputs and outputs the fitted layer has, and whether it has a bias."""
    linear: Any = kind.linear(block)
    outputs, inputs = linear.weight.shape
    if not isinstance(linear, nn.Linear):  # Conv1D stores the transposed matrix
        inputs, outputs = outputs, inputs
    return inputs, outputs, linear.bias is not None
