"""Names of the places where states are read, and what each means.

`embed` is layer 0 (the input of the first block), `block.k` is layer k + 1 (the output of block k, counted from 0). Inside
a block: `block.k.norm1`, `attn`, `mid`, `norm2`, `mlp`. A `*` stands for every block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from layerscope.capture.anatomy import Anatomy
from layerscope.errors import LayerscopeError, UnknownNameError

PARTS = ("norm1", "attn", "mid", "norm2", "mlp")
DEFAULT_SITES = ("embed", "block.*")
_PATTERN = re.compile(r"block\.(\*|\d+)(?:\.(\*|[a-z0-9]+))?$")


@dataclass(frozen=True)
class Site:
    """One place in one model. `layer` is the number of blocks up to and including this one; `depth` runs from 0 to 1."""

    name: str
    layer: int
    depth: float
    block: int | None = None
    part: str | None = None

    @property
    def in_stream(self) -> bool:
        """Whether this is a state of the residual stream, to which a final norm can apply (not a branch or a norm)."""
        return self.part in (None, "mid")


def expand_sites(patterns: Iterable[str] | None, anatomy: Anatomy) -> list[Site]:
    """Sites from names and patterns, in the order in which a forward pass meets them.

    >>> from torch import nn
    >>> model = Anatomy("toy", [nn.Identity(), nn.Identity()], None)
    >>> [site.name for site in expand_sites(["embed", "block.*"], model)]
    ['embed', 'block.0', 'block.1']
    """
    count = anatomy.n_blocks
    found: dict[str, Site] = {}
    for pattern in patterns if patterns is not None else DEFAULT_SITES:
        for site in _expand(pattern.strip(), anatomy, count):
            found[site.name] = site
    if not found:
        raise LayerscopeError("no sites were chosen. Valid: embed, block.K or block.* (every block), block.*.attn and so on.")
    return sorted(found.values(), key=_pass_order)


def _pass_order(site: Site) -> tuple[int, int]:
    if site.block is None:
        return -1, 0
    return site.block, PARTS.index(site.part) if site.part else len(PARTS)


def _expand(pattern: str, anatomy: Anatomy, count: int) -> list[Site]:
    if pattern == "embed":
        return [Site("embed", 0, 0.0)]
    match = _PATTERN.match(pattern)
    if match is None:
        valid = ["embed", "block.*", *(f"block.*.{part}" for part in PARTS)]
        raise UnknownNameError("site", pattern, valid, hint="A number in place of * means that block, counted from 0.")
    which, part = match.groups()
    if which != "*" and int(which) >= count:
        raise LayerscopeError(f"site {pattern!r}: this model has {count} blocks, block.0 to block.{count - 1}.")
    blocks = range(count) if which == "*" else [int(which)]
    if part is None:
        return [Site(f"block.{k}", k + 1, (k + 1) / count, block=k) for k in blocks]
    known = _parts(anatomy)
    if part != "*" and part not in known:
        if part in PARTS:
            why = {
                "parallel": "its attention and MLP read the same input in parallel",
                "single": "its blocks have a single branch, read as `attn`",
            }.get(anatomy.residual, f"the {anatomy.family} family does not say where it is")
            raise LayerscopeError(f"site {pattern!r}: this model has no {part!r} state: {why}. Valid here: {', '.join(known)}.")
        raise UnknownNameError("part of a block", part, known or PARTS)
    parts = known if part == "*" else [part]
    return [
        Site(f"block.{k}.{p}", k + 1, (k + 0.5) / count, block=k, part=p) for k in blocks for p in parts if p in anatomy.taps[k]
    ]


def _parts(anatomy: Anatomy) -> list[str]:
    return [part for part in PARTS if any(part in taps for taps in anatomy.taps)]
