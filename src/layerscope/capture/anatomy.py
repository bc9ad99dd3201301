"""The modules of a model, and the sites that it therefore has. Nothing here knows names or files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from layerscope.core.sites import DEFAULT_SITES, PARTS, Site
from layerscope.errors import LayerscopeError, UnknownNameError

_PATTERN = re.compile(r"block\.(\*|\d+)(?:\.(\*|[a-z0-9]+))?$")

Residual = Literal["sequential", "parallel", "post-norm", "single", "unknown"]


@dataclass(frozen=True)
class Tap:
    """A point where states can be read: the input or the output of a module.

    `scale` multiplies what is read: a layer scale that the block applies by itself, outside any
    module.
    """

    module: nn.Module
    side: Literal["input", "output"] = "output"
    scale: Tensor | float | None = None


@dataclass(frozen=True)
class Anatomy:
    """The parts of one loaded model.

    `taps[k]` maps the sub-sites of block k (`attn`, `mid`, `mlp`, `norm1`, `norm2`) to where they
    are read. `attn` and `mlp` are the branches *as they are added to the residual stream* (after
    any post-norm or layer scale).

    `residual` says which identity the block obeys, with x its input and y its output: sequential:
    mid = x + attn, y = mid + mlp; parallel: y = x + attn + mlp (no `mid`); single: y = x + attn
    (Mamba's mixer counts as `attn`; no `mid`, no `mlp`); post-norm: `mid` and y are norms of the
    sums (BERT), no plain identity; unknown: not checked.

    `hf_norms_last` says whether `output_hidden_states` has the final norm in its last entry
    (language models do).
    """

    family: str
    blocks: Sequence[nn.Module]
    final_norm: nn.Module | None
    taps: Sequence[Mapping[str, Tap]] = field(default_factory=list)
    residual: Residual = "unknown"
    hf_norms_last: bool = True

    @property
    def final_norm_name(self) -> str | None:
        """The class of the final norm; None where the model has none."""
        return None if self.final_norm is None else type(self.final_norm).__name__

    @property
    def n_blocks(self) -> int:
        """Number of blocks L; layers run from 0 (embed) to L."""
        return len(self.blocks)


def expand_sites(patterns: Iterable[str] | None, anatomy: Anatomy) -> list[Site]:
    """Return sites from names and patterns, in the order in which a forward pass meets them.

    >>> from torch import nn
    >>> model = Anatomy("toy", [nn.Identity(), nn.Identity()], None)
    >>> [site.name for site in expand_sites(["embed", "block.*"], model)]
    ['embed', 'block.0', 'block.1']
    """
    count = anatomy.n_blocks
    sites_by_name: dict[str, Site] = {}
    for pattern in patterns if patterns is not None else DEFAULT_SITES:
        for site in _expand(pattern.strip(), anatomy, count):
            sites_by_name[site.name] = site
    if not sites_by_name:
        raise LayerscopeError(
            "no sites were chosen. Valid: embed, block.K or block.* (every block), block.*.attn and so on."
        )
    return sorted(sites_by_name.values(), key=_pass_order)


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
        raise UnknownNameError(
            "site", pattern, valid, hint="A number in place of * means that block, counted from 0."
        )
    number, name = match.groups()
    if number != "*" and int(number) >= count:
        raise LayerscopeError(
            f"site {pattern!r}: this model has {count} blocks, block.0 to block.{count - 1}."
        )
    blocks = range(count) if number == "*" else [int(number)]
    if name is None:
        return [Site(f"block.{k}", k + 1, (k + 1) / count, block=k) for k in blocks]
    present = [p for p in PARTS if any(p in taps for taps in anatomy.taps)]
    if name != "*" and name not in present:
        if name not in PARTS:
            raise UnknownNameError("part of a block", name, present or PARTS)
        reasons = {
            "parallel": "its attention and MLP read the same input in parallel",
            "single": "its blocks have a single branch, read as `attn`",
        }
        unknown = f"the {anatomy.family} family does not say where it is"
        raise LayerscopeError(
            f"site {pattern!r}: this model has no {name!r} state: "
            f"{reasons.get(anatomy.residual, unknown)}. Valid here: {', '.join(present)}."
        )
    names = present if name == "*" else [name]
    return [
        Site(f"block.{k}.{p}", k + 1, (k + 0.5) / count, block=k, part=p)
        for k in blocks
        for p in names
        if p in anatomy.taps[k]
    ]
