"""Kinds of blocks that can be refitted: one file each, here or in another package (entry points of
`layerscope.block_kinds`)."""

from __future__ import annotations

from layerscope.blocks.encoder import Encoder
from layerscope.blocks.kinds.base import BlockKind
from layerscope.core.plugins import Registry

__all__ = ["BlockKind", "find_kind"]

kinds: Registry[BlockKind] = Registry(
    "kind of block",
    "layerscope.block_kinds",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, BlockKind),
    package="layerscope.blocks.kinds",
    find=lambda module: [thing for thing in vars(module).values() if isinstance(thing, BlockKind)],
)


def find_kind(encoder: Encoder) -> BlockKind | None:
    """Return the kind of an encoder's blocks, or None if no kind knows how to refit them."""
    return next((kind for kind in kinds.all().values() if kind.fits(encoder)), None)
