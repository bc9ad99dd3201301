"""The search for blocks to leave out: greedy removal, and evenly spaced blocks beside it.

Blocks that look best as they are do not always refit best. So both subsets are quickly refitted,
and compared on texts that fitted neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.blocks.agreement import TextSet, closeness
from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.kinds import BlockKind
from layerscope.blocks.refit import refit, states_behind


@dataclass(frozen=True)
class Step:
    """One removal: the block, the remaining blocks, and the closeness of the rest to the whole
    model after each removal that was possible at this step."""

    removed: int
    blocks: tuple[int, ...]
    possible: dict[int, float]


def search(
    encoder: Encoder,
    batches: Sequence[Batch],
    smallest: int,
    advance: Callable[[int], None] = lambda n: None,
    queries: int = 0,
) -> list[Step]:
    """Remove one block after the other until `smallest` are left; the best removal at each step.

    Blocks are judged as they are. The first `queries` texts are queries. States in front of a
    removed block are shared: only the blocks behind it run again.
    """
    current = encoder.whole
    whole = encoder.encode(current, batches)
    removable = encoder.removable()
    steps = []
    while len(current.blocks) > smallest:
        scores = {}
        for block, starts in _starts(encoder, current, batches, removable).items():
            vectors = encoder.encode(current.remove(block), batches, starts)
            scores[block] = closeness(whole, vectors, queries)
        if not scores:
            break
        removed = max(scores, key=lambda block: scores[block])
        current = current.remove(removed)
        steps.append(Step(removed, current.blocks, scores))
        advance(1)
    return steps


def _starts(
    encoder: Encoder, current: Variant, batches: Sequence[Batch], removable: Sequence[bool]
) -> dict[int, list[Start | None]]:
    """Return for each block that may go the states in front of it."""
    states: list[Start | None] = [None] * len(batches)
    starts: dict[int, list[Start | None]] = {}
    for place, block in enumerate(current.blocks):
        if removable[block]:
            starts[block] = states
        if place + 1 < len(current.blocks):
            single = Variant((block,), (current.modules[place],))
            states = states_behind(encoder, single, batches, states)
    return starts


def choose_blocks(
    encoder: Encoder,
    steps: Sequence[Step],
    size: int,
    kind: BlockKind | None,
    searched: TextSet,
    trial: TextSet,
) -> tuple[int, ...]:
    """Return the blocks of one size that agree best with the whole encoder on trial texts.

    The greedy choice and evenly spaced blocks are compared, each quickly refitted on the searched
    texts.
    """
    removable = encoder.removable()
    spaced = tuple(np.linspace(0, encoder.n_blocks - 1, size).round().astype(int).tolist())
    subsets = [step.blocks for step in steps if len(step.blocks) == size]
    if all(removable[k] for k in range(encoder.n_blocks) if k not in spaced):
        subsets.append(spaced)
    subsets = list(dict.fromkeys(subsets))
    if len(subsets) == 1:
        return subsets[0]
    batches = encoder.batches(searched.texts)
    compared = encoder.batches(trial.texts)
    whole = encoder.encode(encoder.whole, compared)

    def agreement(blocks: tuple[int, ...]) -> float:
        variant = encoder.variant(blocks)
        if kind is not None:
            variant = refit(encoder, variant, batches, kind).variant
        return closeness(whole, encoder.encode(variant, compared), trial.queries)

    return max(subsets, key=agreement)
