"""Sites and layers: the names of the places in a network where states are read.

`embed` is layer 0 (the input of the first block), `block.k` is layer k + 1 (the output of block k,
counted from 0). Inside a block: `block.k.norm1`, `attn`, `mid`, `norm2`, `mlp`. A `*` stands for
every block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerscope.errors import InvalidValueError

if TYPE_CHECKING:  # torch and numpy are enough for those who need only the names
    import pandas as pd

__all__ = ["Site", "layer_ranges", "pick_layers", "site_of", "whole_layers"]

PARTS = ("norm1", "attn", "mid", "norm2", "mlp")
DEFAULT_SITES = ("embed", "block.*")
_LAYER = r"embed|block\.\d+"
_INSIDE = re.compile(r"block\.\d+\.(\w+)")


@dataclass(frozen=True)
class Site:
    """One place in one model. `layer` is the number of blocks up to and including this one; `depth`
    runs from 0 to 1."""

    name: str
    layer: int
    depth: float
    block: int | None = None
    part: str | None = None

    @property
    def in_stream(self) -> bool:
        """True for a state of the residual stream, to which a final norm can apply."""
        return self.part in (None, "mid")


def pick_layers(layers: Iterable[int] | None, blocks: int, model: str) -> list[int]:
    """Return layers of a model of so many blocks, in order; None: all of them, -1: the last.

    >>> pick_layers([-1, 0], 12, "gpt2")
    [0, 12]
    """
    if layers is None:
        return list(range(blocks + 1))
    numbers = list(layers)
    wrong = [layer for layer in numbers if not -blocks - 1 <= layer <= blocks]
    if wrong or not numbers:
        problem = f"layer {wrong[0]} does not exist" if wrong else "no layer is given"
        raise InvalidValueError(
            f"{problem}: {model} has layers 0 to {blocks} (or -1 for the last)."
        )
    return sorted({layer if layer >= 0 else blocks + 1 + layer for layer in numbers})


def site_of(layer: int) -> str:
    """Return the name of the site where a whole layer is read.

    >>> site_of(0), site_of(12)
    ('embed', 'block.11')
    """
    return "embed" if layer == 0 else f"block.{layer - 1}"


def part_of(site: str) -> str | None:
    """Return the part of a block in a site's name; None for a whole layer.

    >>> part_of("block.3.attn"), part_of("block.3"), part_of("embed")
    ('attn', None, None)
    """
    match = _INSIDE.fullmatch(site)
    return match[1] if match else None


def whole_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table whose `site` is a whole layer, not a part of a block."""
    return table[table["site"].str.fullmatch(_LAYER, na=False)]


def layer_ranges(layers: Iterable[int]) -> list[str]:
    """Return layers as text, runs of neighbors in short.

    >>> layer_ranges([1, 2, 3, 7])
    ['1–3', '7']
    """
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return [str(first) if first == last else f"{first}–{last}" for first, last in runs]
