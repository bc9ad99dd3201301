"""Where a model keeps its parts: what capture needs to know, as modules, with nothing about names or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

Residual = Literal["sequential", "parallel", "post-norm", "single", "unknown"]


@dataclass(frozen=True)
class Tap:
    """A point where states can be read: the input or the output of a module.

    `scale` multiplies what is read: a layer scale that the block applies by itself, outside any module.
    """

    module: nn.Module
    side: Literal["input", "output"] = "output"
    scale: Tensor | float | None = None


@dataclass(frozen=True)
class Anatomy:
    """The parts of one loaded model.

    `taps[k]` maps the sub-sites of block k (`attn`, `mid`, `mlp`, `norm1`, `norm2`) to where they are read. `attn` and
    `mlp` are the branches *as they are added to the residual stream* (after any post-norm or layer scale).

    `residual` says which identity the block obeys, with x its input and y its output:
    sequential: mid = x + attn, y = mid + mlp; parallel: y = x + attn + mlp (no `mid`); single: y = x + attn (Mamba's mixer
    counts as `attn`; no `mid`, no `mlp`); post-norm: `mid` and y are norms of the sums (BERT), no plain identity; unknown:
    not checked.

    Of an image model: `class_token` and `registers` say which tokens stand before the patches. `hf_norms_last` says whether
    `output_hidden_states` has the final norm in its last entry (language models do, most image models do not).
    """

    family: str
    blocks: Sequence[nn.Module]
    final_norm: nn.Module | None
    taps: Sequence[Mapping[str, Tap]] = field(default_factory=list)
    residual: Residual = "unknown"
    class_token: bool = False
    registers: int = 0
    hf_norms_last: bool = True

    @property
    def leading(self) -> int:
        """Tokens in front of the patches of an image: the class token and the registers."""
        return int(self.class_token) + self.registers

    @property
    def n_blocks(self) -> int:
        """Number of blocks L; layers run from 0 (embed) to L."""
        return len(self.blocks)
