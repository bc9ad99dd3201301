"""Model families: a declaration of where a model keeps its parts, which becomes an `Anatomy`; and
the generic family, which looks for the blocks of any other architecture and checks them with a tiny
forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from layerscope.capture.anatomy import Anatomy, Residual, Tap
from layerscope.errors import ModelError
from layerscope.models import modules
from layerscope.models.loaded import LoadedModel
from layerscope.models.pretrained import read_text_model

if TYPE_CHECKING:
    from layerscope.models.source import Source


@dataclass(frozen=True)
class Family:
    """A declaration of where one family of architectures keeps its parts.

    `taps` maps a sub-site to a path inside a block: `"self_attn"` reads that module's output, and
    `"post_attention_layernorm.input"` what goes into it; `"attention * lambda_1"` the output times
    a parameter of the block. Paths may name alternatives, `"layers|encoder.layer"`, where versions
    of transformers differ. `residual` may depend on the config. `bidirectional` says whether tokens
    see later tokens as the model is published.

    `containers` are the model types that hold such a model as a part. `attentions` are the values
    of `attention=` that a user may choose from. `notes` is what a reader must know, in words.

    A family whose models read other items than texts overrides `kind` and the methods after
    `resolve`.
    """

    kind: ClassVar[str] = "texts"

    name: str
    model_types: tuple[str, ...]
    blocks: str
    final_norm: str | Callable[[Any], str | None] | None
    taps: Mapping[str, str] = field(default_factory=dict)
    residual: Residual | Callable[[Any], Residual] = "unknown"
    bidirectional: bool = False
    containers: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    notes: str = ""

    @property
    def has_own_classes(self) -> bool:
        """Return whether the classes of the models come with the family, not with transformers."""
        return False

    def declares(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config.json is that of a model of this family."""
        return config.get("model_type") in (*self.model_types, *self.containers)

    def fits(self, model_type: str | None, module: nn.Module | None = None) -> bool:
        """Return whether the family describes a model whose type no family declares.

        `module` is the model, where it has been loaded.
        """
        return False

    def resolve(self, module: nn.Module) -> Anatomy:
        """Find the declared parts in `module`."""
        block_list = self._find(module, self.blocks)
        if not isinstance(block_list, nn.ModuleList) or len(block_list) == 0:
            raise self._misfit(module, f"{self.blocks!r} is not a list of blocks")
        config = getattr(module, "config", None)
        # Some models run only the first `num_hidden_layers` of the blocks they hold.
        count = getattr(config, "num_hidden_layers", None) or len(block_list)
        blocks = list(block_list)[:count]
        residual = self.residual(config) if callable(self.residual) else self.residual
        sites = dict(self.taps)
        if residual in ("parallel", "single"):
            sites.pop("mid", None)  # no such state exists there
        path = self.final_norm(config) if callable(self.final_norm) else self.final_norm
        norm = self._find(module, path) if path else None
        taps = [{site: self._tap(block, path) for site, path in sites.items()} for block in blocks]
        return Anatomy(self.name, blocks, norm, taps, residual)

    def read(self, source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
        """Read a model of this family from files, and what prepares its input: a tokenizer."""
        return read_text_model(source, options)

    def choose_attention(self, module: nn.Module, attention: str) -> None:
        """Set which tokens see which, for families that name `attentions`."""

    def make_model(
        self, module: nn.Module, preparation: Any, anatomy: Anatomy, name: str
    ) -> LoadedModel:
        """Return the model with what prepares its input (None: as usual for such a model)."""
        return LoadedModel(module, preparation, anatomy, name)

    def is_bidirectional(self, module: nn.Module) -> bool:
        """Return whether the tokens of a model see later tokens."""
        config = getattr(module, "config", None)
        return self.bidirectional or getattr(config, "is_causal", None) is False

    def sees_ahead(self, module: nn.Module) -> bool:
        """Run the model on small inputs to find out whether its first token sees the last one."""
        return modules.sees_ahead(module)

    def _tap(self, block: nn.Module, path: str) -> Tap:
        path, _, factor = (piece.strip() for piece in path.partition("*"))
        if factor:  # a plain number where the block has no such parameter
            return Tap(self._find(block, path), "output", getattr(block, factor, None))
        if path.endswith(".input"):
            return Tap(self._find(block, path.removesuffix(".input")), "input")
        return Tap(self._find(block, path), "output")

    def _find(self, module: nn.Module, path: str) -> nn.Module:
        for choice in path.split("|"):
            try:
                return module.get_submodule(choice)
            except AttributeError:
                continue
        children = ", ".join(name for name, _ in module.named_children()) or "no children"
        raise self._misfit(module, f"it has no {path!r} (it has: {children})")

    def _misfit(self, module: nn.Module, reason: str) -> ModelError:
        return ModelError(
            f"{type(module).__name__} does not have the structure of family {self.name!r}: "
            f'{reason}. Leave `family` out, or pass family="generic" to have the blocks looked for.'
        )


def pre_norm_taps(norm1: str, attn: str, norm2: str, mlp: str) -> dict[str, str]:
    """Return the taps of a block that norms, attends, adds, norms, applies its MLP and adds."""
    return {"norm1": norm1, "attn": attn, "mid": f"{norm2}.input", "norm2": norm2, "mlp": mlp}


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
