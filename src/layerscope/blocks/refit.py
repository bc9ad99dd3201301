"""Refit the remaining blocks of an encoder, so that each also does the work of those removed behind
it.

Block by block, in order, over the tokens of unlabeled texts: the last linear layer is corrected by
ridge regression so that the cut model's state comes near the whole model's where the next remaining
block begins. A *kind* of block says which state that is, and which of its weights can be fitted.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from layerscope.blocks.encoder import Batch, Encoder, Start, Variant

HELD_OUT = 5
"""One text in so many chooses the penalty and says whether a fit helps."""

LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Penalties to try, as shares of the mean squared feature."""

_SHIFT = 1.0


# Kinds of blocks
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """A place where states are read: a module's first input, or its output."""

    module: nn.Module
    at_input: bool = False

    def record(self, into: list[Tensor]) -> Any:
        """Register a hook that appends the states to a list; return its handle."""

        def store_input(_module: nn.Module, args: Any) -> None:
            into.append(args[0])

        def store_output(_module: nn.Module, _args: Any, output: Any) -> None:
            into.append(output[0] if isinstance(output, tuple) else output)

        if self.at_input:
            return self.module.register_forward_pre_hook(store_input)
        return self.module.register_forward_hook(store_output)


class BlockKind(ABC):
    """One kind of block: which of its weights can be fitted, and to what."""

    skips_first_token = False

    @abstractmethod
    def sum_of(self, block: nn.Module) -> Tap | None:
        """Return the place of the block's sum, to which the last linear layer's output is added.

        None if the block is of another kind.
        """

    @abstractmethod
    def problem(self, current: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale (tokens,) and the residual (tokens, D) of the weighted least-squares
        problem (ΔW g + Δb) · scale ≈ residual, whose solution takes sums to the target's."""

    @abstractmethod
    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over what belongs to the state of `last`, the last block that `block` stands for."""

    def linear(self, block: nn.Module) -> Any:
        """Return the last linear layer that writes to the residual stream; None without one."""
        layers = [module for module in block.modules() if isinstance(module, nn.Linear | Conv1D)]
        return layers[-1] if layers else None

    def fits(self, encoder: Encoder) -> bool:
        """Return whether all blocks are of this kind: a shift of the linear layer's output shifts
        the sum by as much."""
        return all(self._carries(encoder, block) for block in range(encoder.n_blocks))

    def _carries(self, encoder: Encoder, number: int) -> bool:
        block = encoder.whole.modules[number]
        linear = self.linear(block)
        place = self.sum_of(block)
        if linear is None or place is None:
            return False
        batch = encoder.batches(["A short text that is read once."])[0]
        variant = encoder.variant(range(number + 1))
        sums: list[Tensor] = []
        encoder.run(variant, batch, hooks=[partial(place.record, sums)])
        handle = linear.register_forward_hook(lambda _module, _args, output: output + _SHIFT)
        try:
            encoder.run(variant, batch, hooks=[partial(place.record, sums)])
        finally:
            handle.remove()
        change = sums[1].double() - sums[0].double()
        return bool(torch.allclose(change, torch.full_like(change, _SHIFT), atol=1e-3))

    def changed(self, block: nn.Module, weight: Tensor, bias: Tensor, last: nn.Module) -> nn.Module:
        """Return a copy of a block whose last linear layer has `weight` and `bias` added.

        The copy shares all other tensors.
        """
        tensors = (*block.parameters(), *block.buffers())
        result = copy.deepcopy(block, {id(tensor): tensor for tensor in tensors})
        linear = self.linear(result)
        with torch.no_grad():
            delta = weight if isinstance(linear, Conv1D) else weight.T
            linear.weight = _added(linear.weight, delta)
            if linear.bias is not None:
                linear.bias = _added(linear.bias, bias)
        self.finish(result, last)
        return result


def _added(parameter: Tensor, delta: Tensor) -> nn.Parameter:
    """Return a new parameter, summed in double precision."""
    return nn.Parameter((parameter.double() + delta).to(parameter.dtype), requires_grad=False)


class PostNorm(BlockKind):
    """Blocks that end with a norm: BERT, MPNet, RoBERTa, XLM-R, ELECTRA, DistilBERT.

    The block's output is `LayerNorm(x + W g + b)`. The fit is made before the norm, where the state
    of the whole model is known without the norm's gain: dividing by a tiny gain would ruin it.
    """

    def sum_of(self, block: nn.Module) -> Tap | None:
        """Return the last norm's input; None where other weights follow the norm."""
        modules = [m for m in block.modules() if any(True for _ in m.parameters(recurse=False))]
        if not modules or not isinstance(modules[-1], nn.LayerNorm):
            return None
        return Tap(modules[-1], at_input=True)

    def problem(self, current: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(ΔW g + Δb)/σ ≈ z* + (μ − u)/σ, with z* the target's sum, standardized."""
        deviation, mean = torch.std_mean(current, dim=-1, correction=0, keepdim=True)
        deviation = deviation.clamp_min(1e-12)
        goal_deviation, goal_mean = torch.std_mean(target, dim=-1, correction=0, keepdim=True)
        goal = (target - goal_mean) / goal_deviation.clamp_min(1e-12)
        return 1 / deviation[:, 0], goal - (current - mean) / deviation

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over the norm's gain and bias."""
        norm = self.sum_of(block)
        last_norm = self.sum_of(last)
        assert norm is not None
        assert last_norm is not None
        norm.module.weight = last_norm.module.weight
        norm.module.bias = last_norm.module.bias


class PreNorm(BlockKind):
    """Blocks that add to the residual stream: Llama, Qwen2, GPT-NeoX, GPT-2, ModernBERT.

    The block's output is `x + W g`, with or without a bias. Tokens count by one over the length of
    their state. The first is left out: in language models it is the sink, whose state is hundreds
    of times as long.
    """

    skips_first_token = True

    def sum_of(self, block: nn.Module) -> Tap:
        """Return the block's output."""
        return Tap(block)

    def problem(self, current: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(ΔW g + Δb)/|y*| ≈ (y* − y)/|y*|, with y* the target's state."""
        scale = 1 / target.norm(dim=-1).clamp_min(1e-12)
        return scale, (target - current) * scale[:, None]

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Change nothing: nothing else of a state belongs to a block."""


KINDS: tuple[BlockKind, ...] = (PostNorm(), PreNorm())


def find_kind(encoder: Encoder) -> BlockKind | None:
    """Return the kind of an encoder's blocks, or None if no kind knows how to refit them."""
    return next((kind for kind in KINDS if kind.fits(encoder)), None)


# Ridge regression
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solution:
    """A correction (features, D) and its offset (D,), the penalty, and the share of the squared
    error on held-out tokens that is left."""

    weight: Tensor
    bias: Tensor
    penalty: float
    remaining: float


class Ridge:
    """A fit of `features · scale → targets` with an offset that is not penalized.

    Tokens are added in chunks, as sums of products in float64, those of held-out texts apart;
    `solve` chooses the penalty on them and then fits on all. Without an offset (`offset=False`) the
    linear layer has no bias.
    """

    def __init__(self, features: int, outputs: int, offset: bool, device: torch.device) -> None:
        self.offset = offset
        width = features + offset
        options: Any = {"dtype": torch.float64, "device": device}
        # two of each: of the fitted and of the held-out tokens
        self.gram = torch.zeros(2, width, width, **options)
        self.cross = torch.zeros(2, width, outputs, **options)
        self.square = torch.zeros(2, **options)

    def add(self, features: Tensor, scale: Tensor, targets: Tensor, held_out: Tensor) -> None:
        """Add tokens: features (tokens, F), scale (tokens,), targets (tokens, D)."""
        rows = features.float() * scale[:, None].float()
        if self.offset:
            rows = torch.cat([rows, scale[:, None].float()], dim=1)
        for index, mask in enumerate((~held_out, held_out)):
            goal = targets[mask].float()
            self.gram[index] += rows[mask].T @ rows[mask]
            self.cross[index] += rows[mask].T @ goal
            self.square[index] += goal.double().square().sum()

    def solve(self, penalties: tuple[float, ...] = LAMBDAS) -> Solution | None:
        """Return the best correction, or None if none helps on the held-out tokens."""
        before = float(self.square[1])
        if not float(self.gram[0].diagonal().sum()) > 0:
            return None  # a block whose layer is given nothing but zeros
        errors = []
        for penalty in penalties:
            weights = self._weights(self.gram[0], self.cross[0], penalty)
            explained = (weights * (self.gram[1] @ weights - 2 * self.cross[1])).sum()
            errors.append((float(self.square[1] + explained), penalty))
        error, penalty = min(errors)
        if not error < before:
            return None
        weights = self._weights(self.gram[0] + self.gram[1], self.cross.sum(0), penalty)
        if not self.offset:
            return Solution(weights, torch.zeros_like(weights[0]), penalty, error / before)
        return Solution(weights[:-1], weights[-1], penalty, error / before)

    def _weights(self, gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
        count = len(gram) - self.offset
        diagonal = gram.diagonal()
        added = 1e-9 * diagonal
        added[:count] = penalty * diagonal[:count].mean()
        factor = torch.linalg.cholesky(gram + torch.diag(added))
        return torch.cholesky_solve(cross, factor)


# Refit
# ------------------------------------------------------------------------------------------------


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
            linear = kind.linear(single.modules[0])
            outputs, inputs = linear.weight.shape
            if isinstance(linear, Conv1D):  # it stores the transposed matrix
                inputs, outputs = outputs, inputs
            fit = Ridge(inputs, outputs, linear.bias is not None, encoder.device)
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
    return partial(tap.record, into)


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
    inputs: list[Tensor] = []
    sums: list[Tensor] = []
    linear = Tap(kind.linear(module), at_input=True)
    hooks = [_recorder(linear, inputs), _recorder(kind.sum_of(module), sums)]
    state = encoder.run(single, batch, start, hooks)
    mask = batch.mask.clone()
    if kind.skips_first_token:
        mask[:, 0] = False
    held_out = torch.as_tensor(batch.rows % HELD_OUT == 0, device=mask.device)
    # a block may see the tokens of all texts in one row
    features, current, target = (
        rows.reshape(*mask.shape, -1)[mask].float() for rows in (inputs[0], sums[0], goal)
    )
    scale, residual = kind.problem(current, target)
    fit.add(features, scale, residual, held_out[:, None].expand_as(mask)[mask])
    return Start(single.blocks[0], state)
