"""What a model family declares, and how the declaration becomes an `Anatomy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from layerscope.capture.anatomy import Anatomy, Residual, Tap
from layerscope.errors import ModelError


@dataclass(frozen=True)
class Family:
    """Where one family of architectures keeps its parts.

    `taps` maps a sub-site to a path inside a block: `"self_attn"` reads that module's output, and
    `"post_attention_layernorm.input"` what goes into it; `"attention * lambda_1"` the output times
    a parameter of the block. Paths may name alternatives, `"layers|encoder.layer"`, where versions
    of transformers differ. `residual` may depend on the config. `bidirectional` says whether tokens
    see later tokens as the model is published.

    Of an image model: `class_token` and `registers` (which may depend on the config) stand before
    the patches; `class_norm_only` says that the model itself applies the final norm to the class
    token alone, and so does `applied`; `hf_norms_last` as in `Anatomy`; `loads` names transformers'
    class of the image part, for model types that also hold a text part (`containers`), or as
    `module:class` one that transformers does not have; `notes` is what a reader must know, in
    words.
    """

    name: str
    model_types: tuple[str, ...]
    blocks: str
    final_norm: str | Callable[[Any], str | None] | None
    taps: Mapping[str, str] = field(default_factory=dict)
    residual: Residual | Callable[[Any], Residual] = "unknown"
    bidirectional: bool = False
    modality: Literal["text", "image", "sound"] = "text"
    class_token: bool = False
    registers: int | Callable[[Any], int] = 0
    class_norm_only: bool = False
    hf_norms_last: bool = True
    loads: str | None = None
    containers: tuple[str, ...] = ()
    notes: str = ""

    def resolve(self, module: nn.Module) -> Anatomy:
        """Find the declared parts in `module`."""
        found = self._find(module, self.blocks)
        if not isinstance(found, nn.ModuleList) or len(found) == 0:
            raise ModelError(
                f"{self._what(module)}: {self.blocks!r} is not a list of blocks. {_NEXT}"
            )
        config = getattr(module, "config", None)
        # Some models run only the first `num_hidden_layers` of the blocks they hold.
        count = getattr(config, "num_hidden_layers", None) or len(found)
        blocks = list(found)[:count]
        residual = self.residual(config) if callable(self.residual) else self.residual
        sites = dict(self.taps)
        if residual in ("parallel", "single"):
            sites.pop("mid", None)  # no such state exists there
        path = self.final_norm(config) if callable(self.final_norm) else self.final_norm
        norm = self._find(module, path) if path else None
        return Anatomy(
            family=self.name,
            blocks=blocks,
            final_norm=ClassTokenNorm(norm) if norm is not None and self.class_norm_only else norm,
            taps=[
                {site: self._tap(block, path) for site, path in sites.items()} for block in blocks
            ],
            residual=residual,
            class_token=self.class_token,
            registers=self.registers(config) if callable(self.registers) else self.registers,
            hf_norms_last=self.hf_norms_last,
        )

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """Run an image model on pixels, or on what stands for them; every patch is read, in its
        place."""
        return module(pixel_values=pixels)

    def _tap(self, block: nn.Module, path: str) -> Tap:
        path, _, factor = (part.strip() for part in path.partition("*"))
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
        raise ModelError(f"{self._what(module)}: it has no {path!r} (it has: {children}). {_NEXT}")

    def _what(self, module: nn.Module) -> str:
        return f"{type(module).__name__} does not have the structure of family {self.name!r}"


def pre_norm_taps(norm1: str, attn: str, norm2: str, mlp: str) -> dict[str, str]:
    """The taps of a block that norms, attends, adds, norms, applies its MLP and adds."""
    return {"norm1": norm1, "attn": attn, "mid": f"{norm2}.input", "norm2": norm2, "mlp": mlp}


class ClassTokenNorm(nn.Module):
    """A norm that a model applies to its class token alone: the other tokens stay as they are."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: Tensor) -> Tensor:
        """(B, T, D), the class token first."""
        normed = states.clone()
        normed[:, 0] = self.norm(states[:, 0])
        return normed


_NEXT = 'Leave `family` out, or pass family="generic" to have the blocks looked for.'
