"""Which blocks can be left out: greedy removal, and evenly spaced blocks beside it.

Blocks that look best as they are do not always refit best. So both subsets are quickly refitted,
and compared on texts that fitted neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerscope.blocks.agreement import TextSet, closeness
from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.kinds.base import BlockKind
from layerscope.blocks.refit import refit, states_behind


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
    smallest: int,
    advance: Callable[[int], None] = lambda n: None,
    queries: int = 0,
) -> list[Step]:
    """Remove one block after the other until `smallest` are left; the best removal at each step.

    Blocks are judged as they are. The first `queries` texts are queries. States in front of a
    removed block are shared: only the blocks behind it run again.
    """
    order = np.argsort(np.concatenate([batch.rows for batch in batches]))
    current = encoder.whole
    whole = _vectors(encoder, encoder.whole, batches)[order]
    removable = encoder.removable()
    steps = []
    while len(current.blocks) > smallest:
        starts = _starts(encoder, current, batches, removable)
        if not starts:
            break
        scores = {}
        for block, states in starts.items():
            rest = current.remove(block)
            part = rest if states[0] is None else rest.after(states[0].block)
            vectors = _vectors(encoder, part, batches, states)[order]
            scores[block] = closeness(whole, vectors, queries)
        removed = max(scores, key=lambda block: scores[block])
        current = current.remove(removed)
        steps.append(Step(removed, current.blocks, scores[removed], scores))
        advance(1)
    return steps


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
    spaced = np.unique(np.linspace(0, encoder.n_blocks - 1, size).round().astype(int))
    subsets = [step.blocks for step in steps if len(step.blocks) == size]
    if all(removable[k] for k in range(encoder.n_blocks) if k not in spaced):
        subsets.append(tuple(int(k) for k in spaced))
    subsets = list(dict.fromkeys(subsets))
    if len(subsets) == 1:
        return subsets[0]
    batches, compared = encoder.batches(searched.texts), encoder.batches(trial.texts)
    whole = encoder.encode(encoder.whole, compared)

    def agreement(blocks: tuple[int, ...]) -> float:
        variant = encoder.variant(blocks)
        if kind is not None:
            variant = refit(encoder, variant, batches, kind).variant
        return closeness(whole, encoder.encode(variant, compared), trial.queries)

    return max(subsets, key=agreement)


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
            one = Variant((block,), (current.modules[place],))
            states = states_behind(encoder, one, batches, states)
    return starts


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
