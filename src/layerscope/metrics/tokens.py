"""Per-prompt quantities of token states, from one Gram matrix per prompt.

The entropy with and without the sink token and the curvature with and without it all follow from G = X Xᵀ, where X are one
prompt's states minus their mean: dropping a token is dropping a row and a column, re-centring is subtracting row means of G,
and inner products of differences are sums of four entries. So one product and one batched eigen-solve serve all four.
Where a prompt has more tokens than dimensions, the D×D side is cheaper and the direct formulas are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.options import Options
from layerscope.metrics.rows import RowPreparation, check_rows, zero_row_floor

# ‖v‖² under this share of ‖z_k‖² + ‖z_{k+1}‖² is a difference of equal states: it has no direction.
_EQUAL_STATES = 1e-14
# Square root of some 45 units of rounding in a Gram matrix's entries.
_PRODUCT_NOISE = 1e-7


@dataclass(frozen=True)
class TokenMeasures:
    """Per prompt (B,): values in float64, NaN where undefined; `flat` counts differences of length zero."""

    entropy: dict[str, Tensor]  # by sink: "keep", "drop"
    curvature: dict[str, Tensor]
    flat: Tensor


@dataclass(frozen=True)
class Sink:
    """The token with the largest norm of each prompt (B,): its position and its norm over the median norm."""

    position: Tensor
    ratio: Tensor


def full_mask(states: Tensor) -> Tensor:
    """A mask that says every token is real."""
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def find_sink(states: Tensor, mask: Tensor | None = None) -> Sink:
    """The largest token of each prompt in states (B, T, D); the first one if several are equal."""
    mask = full_mask(states) if mask is None else mask
    norms = _norms(states)
    position = norms.masked_fill(~mask, -1.0).argmax(-1)
    lengths = mask.sum(-1)
    ranked = norms.masked_fill(~mask, math.inf).sort(-1).values
    low = ranked.gather(-1, ((lengths - 1) // 2).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    high = ranked.gather(-1, (lengths // 2).clamp(max=ranked.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    median = torch.where(lengths % 2 == 1, low, (low + high) / 2)
    largest = norms.gather(-1, position.unsqueeze(-1)).squeeze(-1)
    return Sink(position, torch.where((median > 0) & (lengths > 0), largest / median, torch.nan))


def _norms(states: Tensor) -> Tensor:
    """Token norms (B, T), float64; half-precision states are summed in float32."""
    return torch.linalg.vector_norm(states if states.dtype == torch.float64 else states.float(), dim=-1).double()


def without_token(mask: Tensor, position: Tensor) -> Tensor:
    """The mask with one token of each prompt taken out."""
    return mask.scatter(-1, position.unsqueeze(-1), False)


def prompt_entropies(states: Tensor, mask: Tensor | None = None, options: Options | None = None) -> Tensor:
    """S_α of each prompt's token states (B, T, D) under `options.rows`, in float64; NaN where undefined."""
    options = options or Options()
    check_rows(options.rows)
    mask = full_mask(states) if mask is None else mask
    return gram_entropy(_entropy_matrix(states, mask, options), options.alpha)


def curvatures(states: Tensor, mask: Tensor | None = None, absolute: bool = False) -> tuple[Tensor, Tensor]:
    """Mean angle between successive differences of each prompt's states (B, T, D), and the terms left out.

    NaN where no angle exists (fewer than three tokens, or all differences zero). The cosine is clipped to [−1, 1].
    """
    mask = full_mask(states) if mask is None else mask
    x, mask = _packed(states.double(), mask)
    norms = x.square().sum(-1)
    v = x[:, 1:] - x[:, :-1]
    squares = v.square().sum(-1)
    dots = (v[:, 1:] * v[:, :-1]).sum(-1)
    return _mean_angle(squares, dots, norms, mask, absolute)


def measure_tokens(
    states: Tensor, mask: Tensor | None, sink: Sink | None, options: Options, *, entropy: bool = True, curvature: bool = True
) -> TokenMeasures:
    """Entropy and curvature of each prompt, with the sink token kept and (where `sink` is given) dropped.

    `mask=None` says that no token is padding, which saves a pass over the states.
    """
    check_rows(options.rows)
    real = full_mask(states) if mask is None else mask
    masks = {"keep": real}
    if sink is not None:
        masks["drop"] = without_token(real, sink.position)
    if states.shape[1] > states.shape[2]:
        return _measure_directly(states, masks, options, entropy, curvature)
    if mask is not None:
        states = torch.where(real.unsqueeze(-1), states, 0)
    lengths, norms = real.sum(-1), _norms(states)
    # Centred on the mean without the largest token: one a thousand times larger would cost the others their digits in G.
    without = without_token(real, norms.argmax(-1) if sink is None else sink.position)
    mean = torch.where(without.unsqueeze(-1), states, 0).sum(1, dtype=torch.float64)
    mean = mean / without.sum(-1, keepdim=True).clamp(min=1)
    centred = states - mean.unsqueeze(1)  # float64 by promotion
    if mask is not None:
        centred = centred * real.unsqueeze(-1)
    gram = centred @ centred.mT
    matrices, bends, flat = [], {}, torch.zeros_like(lengths)
    for name, kept in masks.items():
        index = None if name == "keep" and mask is None else _kept_first(kept)
        g, sub_mask, size = gram, kept, norms
        if index is not None:
            g = gram.gather(1, index.unsqueeze(-1).expand_as(gram)).gather(2, index.unsqueeze(1).expand_as(gram))
            sub_mask, size = kept.gather(1, index), norms.gather(1, index)
        if curvature:
            bends[name], left_out = _gram_curvature(g, sub_mask, size, options.curvature_absolute)
            flat = left_out if name == "keep" else flat
        if entropy:
            if options.rows in ("raw", "unit"):  # these need the mean put back: take the direct way
                matrices.append(_entropy_matrix(states, kept, options))
            else:
                matrices.append(_prepared_gram(g, sub_mask, size, options, states.dtype, recentre=name == "keep"))
    values = {}
    if entropy:
        solved = gram_entropy(torch.cat(matrices), options.alpha).split(len(states))
        values = dict(zip(masks, solved, strict=True))
    return TokenMeasures(values, bends, flat)


def _measure_directly(
    states: Tensor, masks: dict[str, Tensor], options: Options, entropy: bool, curvature: bool
) -> TokenMeasures:
    values = {name: prompt_entropies(states, kept, options) for name, kept in masks.items()} if entropy else {}
    flat = torch.zeros(len(states), dtype=torch.long, device=states.device)
    bends = {}
    if curvature:
        for name, kept in masks.items():
            bends[name], left_out = curvatures(states, kept, options.curvature_absolute)
            flat = left_out if name == "keep" else flat
    return TokenMeasures(values, bends, flat)


def _kept_first(mask: Tensor) -> Tensor:
    """Indices that bring the kept tokens of each prompt to the front, in their order."""
    return (~mask).to(torch.uint8).sort(dim=-1, stable=True).indices


def _packed(states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    index = _kept_first(mask)
    return states.gather(1, index.unsqueeze(-1).expand_as(states)), mask.gather(1, index)


def _prepared_gram(gram: Tensor, mask: Tensor, norms: Tensor, options: Options, dtype: torch.dtype, recentre: bool) -> Tensor:
    """Gram matrix of the masked rows, re-centred among themselves and, if asked, scaled to length 1."""
    m = mask.to(gram.dtype)
    both = m.unsqueeze(-1) * m.unsqueeze(-2)
    g = gram * both
    floor = zero_row_floor(norms, dtype)
    if recentre:
        count = m.sum(-1, keepdim=True).clamp(min=1)
        before = g.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        # a row that equals the mean keeps the rounding of the products it is a difference of
        floor = torch.maximum(floor, _PRODUCT_NOISE * (before + before.sum(-1, keepdim=True) / count))
        row_mean = g.sum(-1, keepdim=True) / count.unsqueeze(-1)
        g = (g - row_mean - row_mean.mT + row_mean.sum(-2, keepdim=True) / count.unsqueeze(-1)) * both
    length = g.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    alive = length > floor
    scale = torch.where(alive, 1 / length, 0.0) if options.rows == "centered-unit" else alive.to(g.dtype)
    g = g * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    return g.clamp(min=0) if options.clamp_gram else g


def _entropy_matrix(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """The smaller Gram side of each prompt's prepared rows; padding rows are zero and change nothing."""
    m = mask.unsqueeze(-1)
    x = torch.where(m, states.double(), 0.0)
    rows: RowPreparation = options.rows
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    floor = torch.zeros_like(norms)
    if rows.startswith("centered"):
        mean = x.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
        x = torch.where(m, x - mean, 0.0)
        floor = zero_row_floor(norms, states.dtype)
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    x = torch.where(norms > floor, x / norms if rows.endswith("unit") else x, 0.0)
    gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
    return gram.clamp(min=0) if options.clamp_gram else gram


def _gram_curvature(gram: Tensor, mask: Tensor, norms: Tensor, absolute: bool) -> tuple[Tensor, Tensor]:
    """Curvature from the Gram matrix of packed rows (any common shift of the rows cancels)."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    one = gram.diagonal(offset=1, dim1=-2, dim2=-1)
    two = gram.diagonal(offset=2, dim1=-2, dim2=-1)
    squares = diagonal[:, 1:] + diagonal[:, :-1] - 2 * one
    dots = one[:, 1:] - diagonal[:, 1:-1] - two + one[:, :-1]
    # differences are known no better than the products they come from
    return _mean_angle(squares, dots, torch.maximum(norms.square(), diagonal), mask, absolute)


def _mean_angle(squares: Tensor, dots: Tensor, norms: Tensor, mask: Tensor, absolute: bool) -> tuple[Tensor, Tensor]:
    moving = squares > _EQUAL_STATES * (norms[:, 1:] + norms[:, :-1])
    present = mask[:, 1:-1] & mask[:, 2:]  # packed: the third token is there, so all three are
    usable = present & moving[:, 1:] & moving[:, :-1]
    cosine = dots / (squares[:, 1:] * squares[:, :-1]).clamp(min=1e-300).sqrt()
    angle = torch.acos((cosine.abs() if absolute else cosine).clamp(-1.0, 1.0))
    count = usable.sum(-1)
    total = torch.where(usable, angle, 0.0).sum(-1)
    return torch.where(count > 0, total / count, torch.nan), (present & ~usable).sum(-1)
