"""What a kind of block has to say so that its blocks can be refitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from layerscope.blocks.encoder import Encoder, Variant, copy_sharing

_SHIFT = 1.0


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
    def sum_module(self, block: nn.Module) -> tuple[nn.Module, bool] | None:
        """Return the module at which the block's sum is read, and whether at its input.

        The sum is what the last linear layer's output is added to. None if the block is of another
        kind.
        """

    @abstractmethod
    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """Return the problem whose solution takes sums (tokens, D) to the target's."""

    @abstractmethod
    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over what belongs to the state of `last`, the last block that `block` stands for."""

    def linear(self, block: nn.Module) -> nn.Module | None:
        """Return the last linear layer that writes to the residual stream."""
        found = [part for part in block.modules() if isinstance(part, nn.Linear | Conv1D)]
        return found[-1] if found else None

    def fits(self, encoder: Encoder) -> bool:
        """Return whether all blocks are of this kind: a shift of the linear layer's output shifts
        the sum by as much."""
        return all(self._carries(encoder, block) for block in range(encoder.n_blocks))

    def _carries(self, encoder: Encoder, number: int) -> bool:
        block = encoder.whole.modules[number]
        linear, place = self.linear(block), self.sum_module(block)
        if linear is None or place is None:
            return False
        batch = encoder.batches(["A short text that is read once."])[0]
        part = Variant(tuple(range(number + 1)), encoder.whole.modules[: number + 1])
        sums = []
        for shift in (0.0, _SHIFT):
            taps: list[Tensor] = []

            def moved(_m: nn.Module, _a: Any, out: Tensor, shift: float = shift) -> Tensor:
                return out + shift

            hooks = [lambda: linear.register_forward_hook(moved), lambda: tap(place, taps)]  # noqa: B023
            encoder.run(part, batch, hooks=hooks)
            sums.append(taps[0].double())
        expected = torch.full_like(sums[0], _SHIFT)
        return bool(torch.allclose(sums[1] - sums[0], expected, atol=1e-3))

    def changed(self, block: nn.Module, weight: Tensor, bias: Tensor, last: nn.Module) -> nn.Module:
        """Return a copy of a block whose last linear layer has `weight` and `bias` added."""
        linear: Any = self.linear(block)
        place = self.sum_module(block)
        assert place is not None
        own = [linear.weight, *([] if linear.bias is None else [linear.bias])]
        result = copy_sharing(block, [*own, *place[0].parameters()])
        part: Any = self.linear(result)
        with torch.no_grad():
            delta = weight if isinstance(part, Conv1D) else weight.T
            part.weight = nn.Parameter((part.weight.double() + delta).to(part.weight.dtype), False)
            if part.bias is not None:
                part.bias = nn.Parameter((part.bias.double() + bias).to(part.bias.dtype), False)
        self.finish(result, last)
        return result


def tap(place: tuple[nn.Module, bool], into: list[Tensor]) -> Any:
    """Register a hook that stores what a module is given, or what it gives."""
    module, at_input = place
    if at_input:
        return module.register_forward_pre_hook(lambda _m, args: into.append(args[0]))

    def store(_module: nn.Module, _args: Any, output: Any) -> None:
        into.append(output[0] if isinstance(output, tuple) else output)

    return module.register_forward_hook(store)
