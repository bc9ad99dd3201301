"""Any other architecture: the blocks are looked for, and what is found is checked with a tiny
forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.anatomy import Anatomy, Tap
from layerscope.errors import ModelError
from layerscope.models import modules
from layerscope.models.families.base import Family

_NEXT = "Pass `family` if the model has the structure of a known one, or add a family (docs/how-to/extend.md)."


class GenericFamily(Family):
    """Finds the list of blocks and the final norm by structure, then by what they compute."""

    def resolve(self, module: nn.Module) -> Anatomy:
        path, blocks = find_blocks(module)
        norm = find_final_norm(module, path, blocks, lambda: self.try_model(module))
        taps: list[dict[str, Tap]] = [{} for _ in blocks]
        return Anatomy(family=self.name, blocks=list(blocks), final_norm=norm, taps=taps)

    def is_bidirectional(self, module: nn.Module) -> bool:
        return self.sees_ahead(module)

    def try_model(self, module: nn.Module) -> Any:
        """Run the model on a small input."""
        return modules.run(module, modules.sample(module))


GENERIC = GenericFamily(name="generic", model_types=(), blocks="", final_norm=None)
FAMILIES = (GENERIC,)


def find_blocks(module: nn.Module) -> tuple[str, nn.ModuleList]:
    """The one list of modules as long as the config's number of layers, or the only list there
    is."""
    what = type(module).__name__
    lists = {
        name: m for name, m in module.named_modules() if isinstance(m, nn.ModuleList) and len(m)
    }
    # A list inside a block is not a list of blocks.
    outer = {
        n: m for n, m in lists.items() if not any(n != o and n.startswith(f"{o}.") for o in lists)
    }
    shown = (
        ", ".join(f"{name} ({len(m)} × {type(m[0]).__name__})" for name, m in outer.items())
        or "none"
    )
    expected = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    fitting = {n: m for n, m in outer.items() if expected is None or len(m) == expected}
    if len(fitting) == 1:
        return next(iter(fitting.items()))
    wanted = "" if expected is None else f" of length num_hidden_layers = {expected}"
    why = (
        f"no list of modules{wanted} was found"
        if not fitting
        else f"{len(fitting)} lists{wanted} could be the blocks"
    )
    raise ModelError(
        f"the blocks of {what} could not be determined: {why}. Lists of modules: {shown}. {_NEXT}"
    )


def find_final_norm(
    module: nn.Module, path: str, blocks: nn.ModuleList, run: Callable[[], Any]
) -> nn.Module | None:
    """The norm between the last block and the model's output, or None where the last block's output
    is the output."""
    what = type(module).__name__
    inside = {id(m) for block in blocks for m in block.modules()}
    norms = {
        name: m
        for name, m in module.named_modules()
        if "norm" in type(m).__name__.lower() and id(m) not in inside and not list(m.children())
    }
    order: list[int] = []
    seen: dict[nn.Module, tuple[Any, Any]] = {}  # what a module was last given, and its output
    numbers = {block: k for k, block in enumerate(blocks)}

    def watch(part: nn.Module, given: Any, output: Any) -> None:
        seen[part] = (given[0] if given else None, modules.first(output))
        if part in numbers:
            order.append(numbers[part])

    handles = [part.register_forward_hook(watch) for part in (*blocks, *norms.values())]
    try:
        output = modules.first(run())
    except Exception as error:
        raise ModelError(
            f"{what} could not be run on a small input to check its parts: {error}. {_NEXT}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if order != list(range(len(blocks))):
        raise ModelError(
            f"the {len(blocks)} modules in {path!r} of {what} are not its blocks: one forward pass ran them in the "
            f"order {order[:12]}, not once each from first to last. {_NEXT}"
        )
    last = seen[blocks[-1]][1]
    if not isinstance(last, Tensor) or last.dim() != 3 or not isinstance(output, Tensor):
        raise ModelError(
            f"the blocks in {path!r} of {what} do not return states of shape (batch, tokens, width). {_NEXT}"
        )
    if _same(last, output):
        return None
    for norm in norms.values():
        given, normed = seen.get(norm, (None, None))
        if _same(given, last) and _same(normed, output):
            return norm
    raise ModelError(
        f"the final norm of {what} could not be determined: the model's output is neither the last block's output nor a norm "
        f"of it. Norms outside the blocks: {', '.join(norms) or 'none'}. {_NEXT}"
    )


def _same(a: Any, b: Any) -> bool:
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.shape == b.shape
        and torch.equal(a.to(b.device), b)
    )
