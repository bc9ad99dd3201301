"""The kinds of blocks that can be refitted: which of their weights can be fitted, and to what."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from layerscope.blocks.encoder import Encoder, Variant

_SHIFT = 1.0


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


@dataclass(frozen=True)
class Problem:
    """A weighted least-squares problem over tokens: (ΔW g + Δb) · `scale` ≈ `residual`."""

    scale: Tensor
    residual: Tensor


class BlockKind(ABC):
    """One kind of block: which of its weights can be fitted, and to what."""

    name: ClassVar[str]
    skips_first_token: ClassVar[bool] = False

    @abstractmethod
    def sum_of(self, block: nn.Module) -> Tap | None:
        """Return the place of the block's sum, to which the last linear layer's output is added.

        None if the block is of another kind.
        """

    @abstractmethod
    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """Return the problem whose solution takes sums (tokens, D) to the target's."""

    @abstractmethod
    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over what belongs to the state of `last`, the last block that `block` stands for."""

    def linear(self, block: nn.Module) -> nn.Module | None:
        """Return the last linear layer that writes to the residual stream."""
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
        variant = Variant(tuple(range(number + 1)), encoder.whole.modules[: number + 1])
        sums: list[Tensor] = []
        encoder.run(variant, batch, hooks=[lambda: place.record(sums)])
        handle = linear.register_forward_hook(lambda _module, _args, output: output + _SHIFT)
        try:
            encoder.run(variant, batch, hooks=[lambda: place.record(sums)])
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
        linear: Any = self.linear(result)
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

    name = "post-norm"

    def sum_of(self, block: nn.Module) -> Tap | None:
        """Return the last norm's input; None where other weights follow the norm."""
        modules = [m for m in block.modules() if any(True for _ in m.parameters(recurse=False))]
        if not modules or not isinstance(modules[-1], nn.LayerNorm):
            return None
        return Tap(modules[-1], at_input=True)

    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """(ΔW g + Δb)/σ ≈ z* + (μ − u)/σ, with z* the target's sum, standardized."""
        mean, deviation = _moments(current)
        target_mean, target_deviation = _moments(target)
        goal = (target - target_mean) / target_deviation
        return Problem(1 / deviation[:, 0], goal - (current - mean) / deviation)

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over the norm's gain and bias."""
        norm = self.sum_of(block)
        last_norm = self.sum_of(last)
        assert norm is not None
        assert last_norm is not None
        norm.module.weight = last_norm.module.weight
        norm.module.bias = last_norm.module.bias


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each row."""
    deviation, mean = torch.std_mean(rows, dim=-1, correction=0, keepdim=True)
    return mean, deviation.clamp_min(1e-12)


class PreNorm(BlockKind):
    """Blocks that add to the residual stream: Llama, Qwen2, GPT-NeoX, GPT-2, ModernBERT.

    The block's output is `x + W g`, with or without a bias. Tokens count by one over the length of
    their state. The first is left out: in language models it is the sink, whose state is hundreds
    of times as long.
    """

    name = "pre-norm"
    skips_first_token = True

    def sum_of(self, block: nn.Module) -> Tap:
        """Return the block's output."""
        return Tap(block)

    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """(ΔW g + Δb)/|y*| ≈ (y* − y)/|y*|, with y* the target's state."""
        scale = 1 / target.norm(dim=-1).clamp_min(1e-12)
        return Problem(scale, (target - current) * scale[:, None])

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Change nothing: nothing else of a state belongs to a block."""


KINDS: tuple[BlockKind, ...] = (PostNorm(), PreNorm())


def find_kind(encoder: Encoder) -> BlockKind | None:
    """Return the kind of an encoder's blocks, or None if no kind knows how to refit them."""
    return next((kind for kind in KINDS if kind.fits(encoder)), None)
