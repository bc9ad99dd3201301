"""Model families: a declaration of where a model keeps its parts, which becomes an `Anatomy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

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
