"""Measures of single prompts' token states: norms, the sink token, entropy and curvature.

The entropy with and without the sink token and the curvature with and without it all follow from G
= X Xᵀ, where X are one prompt's states minus their mean: dropping a token is dropping a row and a
column, re-centering is subtracting row means of G, and inner products of differences are sums of
four entries. So one product and one batched eigen-solve serve all four.

Where a prompt has more tokens than dimensions, the D×D side is cheaper and the direct formulas are
used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.vectors import Options, check_rows, zero_row_floor

__all__ = [
    "PreparedTokens",
    "Sink",
    "center_tokens",
    "find_sink",
    "full_mask",
    "largest_token",
    "measures_of_gram",
    "prepare_tokens",
    "sink_ratio",
    "token_masks",
    "token_norms",
    "token_sum",
    "without_token",
]

# ‖v‖² under this share of ‖z_k‖² + ‖z_{k+1}‖² is a difference of equal states: it has no direction.
_EQUAL_STATES = 1e-14
# Units of rounding in a Gram matrix: less is noise.
_PRODUCT_UNITS = 45

FLAT = "flat_differences"
SINK_POSITION = "sink_position"
TOKEN_FIELDS = (
    "prompt_entropy.keep",
    "prompt_entropy.drop",
    "curvature.keep",
    "curvature.drop",
    FLAT,
    "sink_ratio.keep",
    SINK_POSITION,
)
"""Numbers of each prompt that one pass over its tokens gives for the built-in metrics."""

TOGETHER = ("prompt_entropy", "curvature", "sink_ratio", "sink_first")
"""The metrics that are made of these fields."""


def field_of(name: str, sink: str) -> str:
    """Return the field of a metric's values: with the sink token (`keep`) or without it
    (`drop`)."""
    return f"{name}.{sink}"


def values_of(name: str, sink: str, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the prompts' values of a metric from their numbers by field."""
    if name == "sink_first":
        return (numbers[SINK_POSITION] == 0).astype(float)
    return numbers[field_of(name, sink)]


@dataclass(frozen=True)
class Sink:
    """The token with the largest norm of each prompt (B,): its position and its norm over the
    median norm."""

    position: Tensor
    ratio: Tensor


def full_mask(states: Tensor) -> Tensor:
    """Return a mask that says every token is real."""
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def find_sink(states: Tensor, mask: Tensor | None = None) -> Sink:
    """Return the largest token of each prompt in states (B, T, D), the first of equal ones."""
    norms = token_norms(states)
    position = largest_token(norms, mask)
    return Sink(position, sink_ratio(norms, position, mask))


def token_norms(states: Tensor) -> Tensor:
    """Return token norms (B, T), float64; half-precision states are summed in float32."""
    kind = torch.float64 if states.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(states, dim=-1, dtype=kind).double()


def largest_token(norms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the position of the largest of each prompt's token norms (..., T)."""
    return (norms if mask is None else norms.masked_fill(~mask, -1.0)).argmax(-1)


def sink_ratio(norms: Tensor, position: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the norm at `position` over the median norm of each prompt; norms (..., T).

    NaN where the median is zero.
    """
    mask = torch.ones_like(norms, dtype=torch.bool) if mask is None else mask.expand_as(norms)
    lengths = mask.sum(-1)
    ranked = norms.masked_fill(~mask, math.inf).sort(-1).values
    low = ranked.gather(-1, ((lengths - 1) // 2).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    above = (lengths // 2).clamp(max=ranked.shape[-1] - 1)
    high = ranked.gather(-1, above.unsqueeze(-1)).squeeze(-1)
    median = torch.where(lengths % 2 == 1, low, (low + high) / 2)
    largest = norms.gather(-1, position.unsqueeze(-1)).squeeze(-1)
    return torch.where((median > 0) & (lengths > 0), largest / median, torch.nan)


def without_token(mask: Tensor, position: Tensor) -> Tensor:
    """Return the mask with one token of each prompt taken out."""
    return mask.scatter(-1, position.unsqueeze(-1), False)


def token_sum(states: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the sum of each prompt's real states (B, D), float64.

    On a CPU a product with ones is five times as fast as a sum over that dimension.
    """
    if mask is not None:
        states = torch.where(mask.unsqueeze(-1), states, 0)
    if states.device.type != "cpu":
        return states.sum(1, dtype=torch.float64)
    ones = torch.ones(1, 1, states.shape[1], dtype=torch.float64).expand(len(states), 1, -1)
    return torch.bmm(ones, states.double()).squeeze(1)


@dataclass(frozen=True)
class PreparedTokens:
    """Token measures whose entropies still wait for their eigenvalues: Gram matrices (B, n, n) by
    sink, on the states' device."""

    matrices: dict[str, Tensor]
    curvature: dict[str, Tensor]
    flat: Tensor


def prompt_entropies(
    states: Tensor, mask: Tensor | None = None, options: Options | None = None
) -> Tensor:
    """Return S_α of each prompt's token states (B, T, D), float64; NaN where undefined."""
    options = options or Options()
    check_rows(options.rows)
    mask = full_mask(states) if mask is None else mask
    return gram_entropy(_entropy_matrix(states, mask, options, torch.float64), options.alpha)


def curvatures(
    states: Tensor,
    mask: Tensor | None = None,
    absolute: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return the mean angle between successive differences of each prompt's states (B, T, D), and
    the number of terms left out.

    NaN where no angle exists (fewer than three tokens, or all differences zero).
    """
    mask = full_mask(states) if mask is None else mask
    index = _kept_first(mask)
    x = states.to(dtype).gather(1, index.unsqueeze(-1).expand_as(states))
    mask = mask.gather(1, index)
    norms = x.square().sum(-1)
    v = x[:, 1:] - x[:, :-1]
    squares = v.square().sum(-1)
    dots = (v[:, 1:] * v[:, :-1]).sum(-1)
    return _mean_angle(squares, dots, _EQUAL_STATES * norms, mask, absolute)


def prepare_tokens(
    states: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    dtype: torch.dtype = torch.float64,
    total: Tensor | None = None,
) -> PreparedTokens:
    """Return entropy and curvature of each prompt, with the sink token kept and (where its position
    `sink` is given) dropped; all but the eigenvalues.

    `mask=None` says that no token is padding, which saves a pass over the states. `dtype` is what
    Gram matrices are formed in. `total` is the states' `token_sum` without padding, for those who
    have it already.
    """
    check_rows(options.rows)
    masks = token_masks(states, mask, sink)
    direct = states.shape[1] > states.shape[2]
    matrices = {}
    if entropy and (direct or options.rows in ("raw", "unit")):
        matrices = {
            name: _entropy_matrix(states, tokens, options, dtype) for name, tokens in masks.items()
        }
    if direct:
        bends = {
            name: curvatures(states, tokens, options.curvature_absolute, dtype)
            for name, tokens in masks.items()
            if curvature
        }
        return _prepared(matrices, bends, masks["keep"])
    centered, norms = center_tokens(states, mask, sink, total, dtype)
    prepared = measures_of_gram(
        centered @ centered.mT,
        norms,
        states.dtype,
        mask,
        masks,
        options,
        entropy=entropy and not matrices,
        curvature=curvature,
    )
    return replace(prepared, matrices=matrices) if matrices else prepared


def token_masks(states: Tensor, mask: Tensor | None, sink: Tensor | None) -> dict[str, Tensor]:
    """Return the masks of the tokens with the sink kept and, if its position is given, dropped."""
    masks = {"keep": full_mask(states) if mask is None else mask}
    if sink is not None:
        masks["drop"] = without_token(masks["keep"], sink)
    return masks


def center_tokens(
    states: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    total: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the states minus the mean of all tokens but the largest, padding zero, and the norms
    of the states (B, T).

    One token a thousand times larger would cost the others their digits in the Gram matrix.
    """
    real = full_mask(states) if mask is None else mask
    if mask is not None:
        states = torch.where(real.unsqueeze(-1), states, 0)
    norms = token_norms(states)
    others = _sum_without(states, norms.argmax(-1) if sink is None else sink, total)
    mean = others / (real.sum(-1) - 1).clamp(min=1).unsqueeze(-1)
    centered = (states - mean.to(dtype).unsqueeze(1)).to(dtype)
    return (centered if mask is None else centered * real.unsqueeze(-1)), norms


def measures_of_gram(
    gram: Tensor,
    norms: Tensor,
    stored_as: torch.dtype,
    mask: Tensor | None,
    masks: Mapping[str, Tensor],
    options: Options,
    *,
    entropy: bool,
    curvature: bool,
) -> PreparedTokens:
    """Return `prepare_tokens` from the Gram matrices of centered states."""
    matrices = {}
    bends = {}
    for name, tokens in masks.items():
        is_whole = name == "keep" and mask is None
        if curvature:
            index = None if is_whole else _kept_first(tokens)
            bends[name] = _gram_curvature(gram, tokens, norms, index, options.curvature_absolute)
        if entropy:
            rows = None if is_whole else tokens
            matrices[name] = _prepared_gram(gram, rows, norms, options, stored_as, name == "keep")
    return _prepared(matrices, bends, masks["keep"])


def _prepared(
    matrices: dict[str, Tensor], bends: dict[str, tuple[Tensor, Tensor]], real: Tensor
) -> PreparedTokens:
    """Return the measures from matrices, and curvatures with the terms left out, by sink."""
    flat = bends["keep"][1] if bends else real.new_zeros(len(real), dtype=torch.long)
    return PreparedTokens(matrices, {name: bend for name, (bend, _) in bends.items()}, flat)


def token_entropies(prepared: PreparedTokens, options: Options) -> dict[str, Tensor]:
    """Return the entropies by sink, in float64; the matrices are destroyed."""
    return {
        name: gram_entropy(matrices, options.alpha, overwrite=True)
        for name, matrices in prepared.matrices.items()
    }


def _sum_without(states: Tensor, position: Tensor, total: Tensor | None) -> Tensor:
    """Return the sum of each prompt's states (B, D) but one, float64."""
    index = position[:, None, None].expand(-1, 1, states.shape[-1])
    if states.dtype == torch.float64:
        # nothing has more digits: leave it out rather than take it away again
        return states.scatter(1, index, 0.0).sum(1)
    total = token_sum(states) if total is None else total
    return total - states.gather(1, index).squeeze(1)


def _kept_first(mask: Tensor) -> Tensor:
    """Return indices that bring the kept tokens of each prompt to the front, in their order."""
    return (~mask).to(torch.uint8).sort(dim=-1, stable=True).indices


def _prepared_gram(
    gram: Tensor,
    mask: Tensor | None,
    norms: Tensor,
    options: Options,
    dtype: torch.dtype,
    recenter: bool,
) -> Tensor:
    """Return the Gram matrix of the masked rows, re-centered among themselves and, if asked, scaled
    to length 1; other rows are zero, which changes no entropy."""
    floor = zero_row_floor(norms, dtype).to(gram.dtype)
    squares = gram.diagonal(dim1=-2, dim2=-1)
    shift = None
    if recenter:
        count = gram.shape[-1] if mask is None else mask.sum(-1, keepdim=True).clamp(min=1)
        before = squares.clamp(min=0).sqrt()
        # a row that equals the mean keeps the rounding of the products it is a difference of
        noise = math.sqrt(_PRODUCT_UNITS * torch.finfo(gram.dtype).eps)
        floor = torch.maximum(floor, noise * (before + before.sum(-1, keepdim=True) / count))
        row_mean = gram.sum(-1) / count
        shift = row_mean - row_mean.sum(-1, keepdim=True) / (2 * count)
        squares = (squares - shift) - shift
    length = squares.clamp(min=0).sqrt()
    alive = length > floor if mask is None else (length > floor) & mask
    scale = alive.to(gram.dtype)
    if options.rows == "centered-unit":
        scale = torch.where(alive, 1 / length, 0.0)
    centered = gram if shift is None else (gram - shift.unsqueeze(-1)).sub_(shift.unsqueeze(-2))
    prepared = (centered * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return prepared.clamp_(min=0) if options.clamp_gram else prepared


def _entropy_matrix(states: Tensor, mask: Tensor, options: Options, dtype: torch.dtype) -> Tensor:
    """Return the smaller Gram side of each prompt's prepared rows; padding rows are zero."""
    m = mask.unsqueeze(-1)
    x = torch.where(m, states.to(dtype), 0.0)
    rows = options.rows
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    floor = torch.zeros_like(norms)
    if rows.startswith("centered"):
        count = mask.sum(-1).clamp(min=1)[:, None, None]
        mean = x.sum(1, keepdim=True, dtype=torch.float64) / count
        x = torch.where(m, x - mean.to(dtype), 0.0)
        floor = zero_row_floor(norms, states.dtype)
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    x = torch.where(norms > floor, x / norms if rows.endswith("unit") else x, 0.0)
    gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
    return gram.clamp(min=0) if options.clamp_gram else gram


def _gram_curvature(
    gram: Tensor, mask: Tensor, norms: Tensor, index: Tensor | None, absolute: bool
) -> tuple[Tensor, Tensor]:
    """Return the curvature from a Gram matrix, where any common shift of the rows cancels.

    `index` brings the kept rows to the front.
    """
    n = gram.shape[-1]
    if index is None:
        diagonals = [gram.diagonal(offset=k, dim1=-2, dim2=-1) for k in range(3)]
    else:
        places = [index[:, : max(0, n - k)] * n + index[:, k:] for k in range(3)]
        diagonals = [gram.flatten(1).gather(1, place) for place in places]
        mask = mask.gather(1, index)
        norms = norms.gather(1, index)
    diagonal, beside, after = diagonals
    squares = diagonal[:, 1:] + diagonal[:, :-1] - 2 * beside
    dots = beside[:, 1:] - diagonal[:, 1:-1] - after + beside[:, :-1]
    # differences are known no better than the states are stored, and than the products they come
    # from
    noise = torch.maximum(
        _EQUAL_STATES * norms.square(), _PRODUCT_UNITS * torch.finfo(gram.dtype).eps * diagonal
    )
    return _mean_angle(squares, dots, noise, mask, absolute)


def _mean_angle(
    squares: Tensor, dots: Tensor, noise: Tensor, mask: Tensor, absolute: bool
) -> tuple[Tensor, Tensor]:
    """Return the mean angle of packed differences, float64, and the terms left out; `noise` is each
    state's share of a zero ‖v‖²."""
    moving = squares > noise[:, 1:] + noise[:, :-1]
    present = mask[:, 1:-1] & mask[:, 2:]  # packed: the third token is there, so all three are
    usable = present & moving[:, 1:] & moving[:, :-1]
    cosine = dots.double() / (squares[:, 1:].double() * squares[:, :-1]).clamp(min=1e-300).sqrt()
    angle = torch.acos((cosine.abs() if absolute else cosine).clamp(-1.0, 1.0))
    count = usable.sum(-1)
    total = torch.where(usable, angle, 0.0).sum(-1)
    return torch.where(count > 0, total / count, torch.nan), (present & ~usable).sum(-1)
