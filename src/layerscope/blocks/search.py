"""Which blocks can be left out: greedy removal, with the refit inside the loop.

Blocks that look best as they are do not refit best. So every removal is judged after a quick refit
of the block before the gap. States in front of the gap are shared: only the blocks behind it run
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerscope.blocks.agreement import closeness
from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.kinds.base import BlockKind
from layerscope.blocks.refit import add_tokens, sizes, states_behind, targets
from layerscope.blocks.regression import Ridge

QUICK = (0.1,)
"""The one penalty of the fits inside the search."""


@dataclass(frozen=True)
class Step:
    """One removal: the block, the closeness of the rest to the whole model, and the closeness after
    each removal that was possible at this step."""

    removed: int
    blocks: tuple[int, ...]
    closeness: float
    possible: dict[int, float]


def search(
    encoder: Encoder,
    batches: Sequence[Batch],
    kind: BlockKind | None,
    smallest: int,
    advance: Callable[[int], None] = lambda n: None,
    queries: int = 0,
) -> list[Step]:
    """Remove one block after the other until `smallest` are left; the best removal at each step.

    With `kind` None blocks are judged as they are. The first `queries` texts are queries.
    """
    order = np.argsort(np.concatenate([batch.rows for batch in batches]))
    current = encoder.whole
    whole = _vectors(encoder, encoder.whole, batches)[order]
    removable = encoder.removable()
    goals = None
    if kind is not None:
        goals = [targets(encoder, batch, kind, current.blocks) for batch in batches]
    steps = []
    while len(current.blocks) > smallest:
        trials = _trials(encoder, current, batches, kind, goals, removable)
        if not trials:
            break
        scores = {
            block: closeness(whole, _vectors(encoder, rest, batches, starts)[order], queries)
            for block, (_, rest, starts) in trials.items()
        }
        removed = max(scores, key=lambda block: scores[block])
        current = trials[removed][0]
        steps.append(Step(removed, current.blocks, scores[removed], scores))
        advance(1)
    return steps


_Trial = tuple[Variant, Variant, list[Start | None]]


def _trials(
    encoder: Encoder,
    current: Variant,
    batches: Sequence[Batch],
    kind: BlockKind | None,
    goals: list[dict[int, Tensor]] | None,
    removable: Sequence[bool],
) -> dict[int, _Trial]:
    """Return for each block that may go: the variant without it, the part of it that has to run,
    and the states it starts from."""
    ends = [*current.blocks[1:], encoder.n_blocks]
    states: list[Start | None] = [None] * len(batches)
    trials: dict[int, _Trial] = {}
    if removable[current.blocks[0]]:
        rest = current.remove(current.blocks[0])
        trials[current.blocks[0]] = (rest, rest, states)
    for place, block in enumerate(current.blocks):
        one = Variant((block,), (current.modules[place],))
        following = current.blocks[place + 1] if place + 1 < len(current.blocks) else None
        behind: list[Start | None] = []
        if following is not None and removable[following]:
            part = one
            if kind is not None and goals is not None:
                end = ends[place + 1]
                part, behind = _quickly_refitted(encoder, one, batches, states, kind, goals, end)
            without = current.replace(block, part.modules[0]).remove(following)
            rest = without.after(block)
            if rest.blocks:
                trials[following] = (without, rest, states_behind(encoder, part, batches, states))
            else:
                trials[following] = (without, part, list(states))
        states = behind or states_behind(encoder, one, batches, states)
    return trials


def _quickly_refitted(
    encoder: Encoder,
    one: Variant,
    batches: Sequence[Batch],
    states: Sequence[Start | None],
    kind: BlockKind,
    goals: list[dict[int, Tensor]],
    end: int,
) -> tuple[Variant, list[Start | None]]:
    """Refit one block to the state at the beginning of block `end`, with one penalty; returns it
    and the states behind the block as it was."""
    fit = Ridge(*sizes(kind, one.modules[0]), encoder.device)
    behind: list[Start | None] = [
        add_tokens(encoder, one, batch, state, goal[end - 1], kind, fit)
        for batch, state, goal in zip(batches, states, goals, strict=True)
    ]
    solution = fit.solve(QUICK)
    if solution is None:
        return one, behind
    last = encoder.whole.modules[end - 1]
    module = kind.changed(one.modules[0], solution.weight, solution.bias, last)
    return Variant(one.blocks, (module,)), behind


def _vectors(
    encoder: Encoder,
    variant: Variant,
    batches: Sequence[Batch],
    starts: Sequence[Start | None] | None = None,
) -> np.ndarray:
    """Return vectors of length 1, in the order of the batches."""
    given = starts or [None] * len(batches)
    rows = [encoder.vectors(variant, *pair) for pair in zip(batches, given, strict=True)]
    vectors: np.ndarray = torch.nn.functional.normalize(torch.cat(rows), dim=-1).cpu().numpy()
    return vectors
