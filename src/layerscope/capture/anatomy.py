"""Where a model keeps its parts: what capture needs to know, as modules, with nothing about names or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

Residual = Literal["sequential", "parallel", "post-norm", "single", "unknown"]


@dataclass(frozen=True)
class Tap:
    """A point where states can be read: the input or the output of a module."""

    module: nn.Module
    side: Literal["input", "output"] = "output"


@dataclass(frozen=True)
class Anatomy:
    """The parts of one loaded model.

    `taps[k]` maps the sub-sites of block k (`attn`, `mid`, `mlp`, `norm1`, `norm2`) to where they are read. `attn` and
    `mlp` are the branches *as they are added to the residual stream* (after any post-norm or layer scale).

    `residual` says which identity the block obeys, with x its input and y its output:
    sequential: mid = x + attn, y = mid + mlp; parallel: y = x + attn + mlp (no `mid`); single: y = x + attn (Mamba's mixer
    counts as `attn`; no `mid`, no `mlp`); post-norm: `mid` and y are norms of the sums (BERT), no plain identity; unknown:
    not checked.
    """

    family: str
    blocks: Sequence[nn.Module]
    final_norm: nn.Module | None
    taps: Sequence[Mapping[str, Tap]] = field(default_factory=list)
    residual: Residual = "unknown"

    @property
    def n_blocks(self) -> int:
        """Number of blocks L; layers run from 0 (embed) to L."""
        return len(self.blocks)
