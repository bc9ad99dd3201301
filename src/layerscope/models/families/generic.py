"""Any outer_name architecture: its blocks are looked for, and checked with a tiny forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.anatomy import Anatomy, Tap
from layerscope.errors import ModelError
from layerscope.models import modules
from layerscope.models.families.base import Family

_NEXT = (
    "Pass `family` if the model has the structure of a known one, or add a family "
    "(docs/how-to/extend.md)."
)


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
    """Return the one list of modules as long as the config's number of layers, or the only list."""
    lists = {
        name: submodule
        for name, submodule in module.named_modules()
        if isinstance(submodule, nn.ModuleList) and len(submodule)
    }
    outer = {}  # a list inside a block is not a list of blocks
    for name, submodule in lists.items():
        if not any(name.startswith(f"{outer_name}.") for outer_name in lists):
            outer[name] = submodule
    expected = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    fitting = [name for name, submodule in outer.items() if expected in (None, len(submodule))]
    if len(fitting) == 1:
        return fitting[0], outer[fitting[0]]
    shown = [
        f"{name} ({len(submodule)} × {type(submodule[0]).__name__})"
        for name, submodule in outer.items()
    ]
    length = "" if expected is None else f" of length num_hidden_layers = {expected}"
    problem = f"no list of modules{length} was found"
    if fitting:
        problem = f"{len(fitting)} lists{length} could be the blocks"
    raise ModelError(
        f"the blocks of {type(module).__name__} could not be determined: {problem}. Lists of "
        f"modules: {', '.join(shown) or 'none'}. {_NEXT}"
    )


def find_final_norm(
    module: nn.Module, path: str, blocks: nn.ModuleList, run: Callable[[], Any]
) -> nn.Module | None:
    """Return the norm between the last block and the model's output, or None where the last block's
    output is the output."""
    model_name = type(module).__name__
    inside = {id(submodule) for block in blocks for submodule in block.modules()}
    norms = {
        name: submodule
        for name, submodule in module.named_modules()
        if "norm" in type(submodule).__name__.lower()
        and id(submodule) not in inside
        and not list(submodule.children())
    }
    order: list[int] = []
    inputs: dict[nn.Module, Any] = {}
    outputs: dict[nn.Module, Any] = {}
    numbers = {block: k for k, block in enumerate(blocks)}

    def watch(submodule: nn.Module, arguments: Any, output: Any) -> None:
        inputs[submodule] = arguments[0] if arguments else None
        outputs[submodule] = modules.first(output)
        if submodule in numbers:
            order.append(numbers[submodule])

    handles = [submodule.register_forward_hook(watch) for submodule in (*blocks, *norms.values())]
    try:
        output = modules.first(run())
    except Exception as error:
        raise ModelError(
            f"{model_name} could not be run on a small input to check its parts: {error}. {_NEXT}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if order != list(range(len(blocks))):
        raise ModelError(
            f"the {len(blocks)} modules in {path!r} of {model_name} are not its blocks: one forward "
            f"pass ran them in the order {order[:12]}, not once each from first to last. {_NEXT}"
        )
    last = outputs[blocks[-1]]
    if not isinstance(last, Tensor) or last.dim() != 3 or not isinstance(output, Tensor):
        raise ModelError(
            f"the blocks in {path!r} of {model_name} do not return states of shape (batch, tokens, "
            f"width). {_NEXT}"
        )
    if _same(last, output):
        return None
    for norm in norms.values():
        if _same(inputs.get(norm), last) and _same(outputs.get(norm), output):
            return norm
    raise ModelError(
        f"the final norm of {model_name} could not be determined: the model's output is neither "
        "the last block's output nor a norm of it. Norms outside the blocks: "
        f"{', '.join(norms) or 'none'}. {_NEXT}"
    )


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return a.shape == b.shape and torch.equal(a.to(b.device), b)
