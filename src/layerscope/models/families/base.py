"""What a model family declares, and how the declaration becomes an `Anatomy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from layerscope.capture.anatomy import Anatomy, Residual, Tap
from layerscope.errors import ModelError


@dataclass(frozen=True)
class Family:
    """Where one family of architectures keeps its parts.

    `taps` maps a sub-site to a path inside a block: `"self_attn"` reads that module's output, and
    `"post_attention_layernorm.input"` what goes into it. `residual` may depend on the config. `bidirectional` says
    whether tokens see later tokens as the model is published.
    """

    name: str
    model_types: tuple[str, ...]
    blocks: str
    final_norm: str | None
    taps: Mapping[str, str] = field(default_factory=dict)
    residual: Residual | Callable[[Any], Residual] = "unknown"
    bidirectional: bool = False

    def resolve(self, module: nn.Module) -> Anatomy:
        """Find the declared parts in `module`."""
        found = self._find(module, self.blocks)
        if not isinstance(found, nn.ModuleList) or len(found) == 0:
            raise ModelError(f"{self._what(module)}: {self.blocks!r} is not a list of blocks. {_NEXT}")
        config = getattr(module, "config", None)
        # Some models run only the first `num_hidden_layers` of the blocks they hold.
        count = getattr(config, "num_hidden_layers", None) or len(found)
        blocks = list(found)[:count]
        residual = self.residual(config) if callable(self.residual) else self.residual
        sites = dict(self.taps)
        if residual in ("parallel", "single"):
            sites.pop("mid", None)  # no such state exists there
        return Anatomy(
            family=self.name,
            blocks=blocks,
            final_norm=self._find(module, self.final_norm) if self.final_norm else None,
            taps=[{site: self._tap(block, path) for site, path in sites.items()} for block in blocks],
            residual=residual,
        )

    def _tap(self, block: nn.Module, path: str) -> Tap:
        if path.endswith(".input"):
            return Tap(self._find(block, path.removesuffix(".input")), "input")
        return Tap(self._find(block, path), "output")

    def _find(self, module: nn.Module, path: str) -> nn.Module:
        try:
            return module.get_submodule(path)
        except AttributeError:
            children = ", ".join(name for name, _ in module.named_children()) or "no children"
            raise ModelError(f"{self._what(module)}: it has no {path!r} (it has: {children}). {_NEXT}") from None

    def _what(self, module: nn.Module) -> str:
        return f"{type(module).__name__} does not have the structure of family {self.name!r}"


_NEXT = 'Leave `family` out, or pass family="generic" to have the blocks looked for.'
