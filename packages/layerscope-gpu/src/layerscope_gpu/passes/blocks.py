"""Blocks with parallel attention and MLP (GPT-NeoX, Pythia): their sum, and the next block's two
norms of it, in one kernel.

torch adds twice and reads the sum twice more, which is a tenth of a pass of a model like
Pythia-410M on an H200. The kernel rounds where those steps round. Blocks are recognized by their
attributes, and a pass is run both ways: unless all bits agree, the blocks' own code is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope_gpu.passes import norms
from layerscope_gpu.passes.activations import replace_forwards

_PARTS = ("attention", "mlp", "post_attention_dropout", "post_mlp_dropout")
_NORMS = ("input_layernorm", "post_attention_layernorm")

_known: WeakKeyDictionary[nn.Module, list[_Block]] = WeakKeyDictionary()


class _Block(NamedTuple):
    """A block and its successor."""

    block: nn.Module
    after: nn.Module

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        """Return the two norms of the successor."""
        return getattr(self.after, _NORMS[0]), getattr(self.after, _NORMS[1])


@contextmanager
def fast_blocks(module: nn.Module) -> Iterator[None]:
    """Make the blocks of a module that passed its trial use the kernel inside a `with` block."""
    pairs = {pair.block: pair for pair in _known.get(module, ())}
    with replace_forwards(pairs, lambda block: _Fast(pairs[block])):
        yield


def try_fast_blocks(module: nn.Module, work: Callable[[], Any]) -> None:
    """Test, once per model, if a pass (`work`) gives the same bits with the kernel."""
    if module in _known:
        return
    _known[module] = []
    blocks = _blocks(module)
    if not blocks:
        return
    try:
        expected = work()
        _known[module] = blocks
        result = work()
        if not (isinstance(result, Tensor) and torch.equal(result, expected)):
            _known[module] = []
    except (RuntimeError, TypeError, ValueError, AttributeError):
        _known[module] = []


def _blocks(module: nn.Module) -> list[_Block]:
    """Return the parallel blocks that are followed by another."""
    out = []
    for stack in module.modules():
        if not isinstance(stack, nn.ModuleList):
            continue
        for block, after in zip(stack, list(stack)[1:], strict=False):
            if _is_parallel(block) and _is_parallel(after):
                out.append(_Block(block, after))
    return out


def _is_parallel(block: nn.Module) -> bool:
    return (
        getattr(block, "use_parallel_residual", None) is True
        and all(hasattr(block, name) for name in _PARTS)
        and all(type(getattr(block, name, None)) is nn.LayerNorm for name in _NORMS)
    )


class _Fast:
    """A block's forward pass, with the kernel at its end where that is possible."""

    def __init__(self, pair: _Block) -> None:
        self.pair = pair
        self.forward: Callable[..., Any] = pair.block.forward

    def __call__(self, hidden_states: Tensor, *arguments: Any, **keywords: Any) -> Any:
        if arguments or "position_embeddings" not in keywords or not self._usable(hidden_states):
            return self.forward(hidden_states, *arguments, **keywords)
        block: Any = self.pair.block
        mixed, _ = block.attention(block.input_layernorm(hidden_states), **keywords)
        added = block.mlp(block.post_attention_layernorm(hidden_states))
        if not all(
            half.shape == hidden_states.shape and half.is_contiguous() for half in (mixed, added)
        ):
            return added + mixed + hidden_states
        return norms.sum_and_norms(added, mixed, hidden_states, self.pair.norms)

    def _usable(self, states: Tensor) -> bool:
        block, after = self.pair
        if block.training or torch.is_grad_enabled():
            return False
        if not all(norms.usable(norm, states) for norm in self.pair.norms):
            return False
        # a foreign hook could change the sum in place after its norms have been computed
        hooks = [*block._forward_hooks.values(), *after._forward_pre_hooks.values()]
        return all(getattr(hook, "only_reads", False) for hook in hooks)
