"""Blocks whose two halves run side by side (GPT-NeoX, Pythia): their sum, and the next block's two
norms of it, in one kernel.

torch adds twice and reads the sum twice more: on an H200 that is a tenth of a pass of a model like
Pythia-410M. The kernel rounds where those steps round. A model's blocks are recognized by their
parts, and a pass is tried both ways: unless all bits agree, they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope_gpu.passes import norms

_PARTS = ("attention", "mlp", "post_attention_dropout", "post_mlp_dropout")
_NORMS = ("input_layernorm", "post_attention_layernorm")

_known: WeakKeyDictionary[nn.Module, list[_Block]] = WeakKeyDictionary()


class _Block(NamedTuple):
    """A block, and the one after it."""

    block: nn.Module
    after: nn.Module

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        """The two norms of the block after it."""
        first, second = (getattr(self.after, name) for name in _NORMS)
        return first, second


@contextmanager
def fast_blocks(module: nn.Module) -> Iterator[None]:
    """While this is open, blocks of a module that was tried end with the kernel."""
    replaced = [
        one for one in _known.get(module, ()) if "forward" not in vars(one.block)
    ]  # or another thread has replaced it
    for one in replaced:
        one.block.forward = _Fast(one, one.block.forward)
    try:
        yield
    finally:
        for one in replaced:
            vars(one.block).pop("forward", None)


def try_fast_blocks(module: nn.Module, work: Callable[[], Any]) -> None:
    """Find out, once, whether a pass of a model (`work`) gives the same bits with the kernel."""
    if module in _known:
        return
    _known[module] = []
    blocks = _blocks(module)
    if not blocks:
        return
    try:
        want = work()
        _known[module] = blocks
        got = work()
        if not (isinstance(got, Tensor) and torch.equal(got, want)):
            _known[module] = []
    except (RuntimeError, TypeError, ValueError, AttributeError):
        _known[module] = []


def _blocks(module: nn.Module) -> list[_Block]:
    """Blocks that are followed by another of their kind."""
    out = []
    for stack in module.modules():
        if not isinstance(stack, nn.ModuleList):
            continue
        for block, after in zip(stack, list(stack)[1:], strict=False):
            if _is_parallel(block) and _is_parallel(after):
                out.append(_Block(block, after))
    return out


def _is_parallel(block: nn.Module) -> bool:
    if getattr(block, "use_parallel_residual", None) is not True or any(
        not hasattr(block, name) for name in _PARTS
    ):
        return False
    return all(type(getattr(block, name, None)) is nn.LayerNorm for name in _NORMS)


class _Fast:
    """A block's own forward pass, or the same with the kernel at its end."""

    def __init__(self, one: _Block, own: Callable[..., Any]) -> None:
        self.one, self.own = one, own

    def __call__(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        if given or "position_embeddings" not in named or not self._usable(hidden_states):
            return self.own(hidden_states, *given, **named)
        block: Any = self.one.block
        mixed, _ = block.attention(block.input_layernorm(hidden_states), **named)
        added = block.mlp(block.post_attention_layernorm(hidden_states))
        if not all(
            part.shape == hidden_states.shape and part.is_contiguous() for part in (mixed, added)
        ):
            return added + mixed + hidden_states
        return norms.sum_and_norms(added, mixed, hidden_states, self.one.norms)

    def _usable(self, states: Tensor) -> bool:
        block, after = self.one
        if (
            block.training
            or torch.is_grad_enabled()
            or not all(norms.usable(norm, states) for norm in self.one.norms)
        ):
            return False
        # a hook of somebody else could change the sum in place, after its norms have been computed
        hooks = [*block._forward_hooks.values(), *after._forward_pre_hooks.values()]
        return all(getattr(hook, "only_reads", False) for hook in hooks)
