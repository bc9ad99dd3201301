"""Per-prompt quantities of token states, from one Gram matrix per prompt.

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

import torch
from torch import Tensor

from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.options import Options, RowPreparation, check_rows, zero_row_floor
from layerscope.metrics.tokens.norms import full_mask, token_norms, token_sum, without_token

__all__ = [
    "PreparedTokens",
    "center_tokens",
    "measures_of_gram",
    "prepare_tokens",
    "token_masks",
]

# ‖v‖² under this share of ‖z_k‖² + ‖z_{k+1}‖² is a difference of equal states: it has no direction.
_EQUAL_STATES = 1e-14
# Units of rounding in a Gram matrix's entries: what is smaller than that many is noise.
_PRODUCT_UNITS = 45


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
    """Return S_α of each prompt's token states (B, T, D) under `options.rows`, in float64; NaN where
    undefined."""
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
    """Return the mean angle between successive differences of each prompt's states (B, T, D), and the terms
    left out.

    NaN where no angle exists (fewer than three tokens, or all differences zero). The cosine is
    clipped to [−1, 1].
    """
    mask = full_mask(states) if mask is None else mask
    x, mask = _packed(states.to(dtype), mask)
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
    gram = centered @ centered.mT
    found = measures_of_gram(
        gram,
        norms,
        states.dtype,
        mask,
        masks,
        options,
        entropy=entropy and not matrices,
        curvature=curvature,
    )
    return replace(found, matrices=matrices) if matrices else found


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
    rest = _sum_without(states, norms.argmax(-1) if sink is None else sink, total)
    mean = rest / (real.sum(-1) - 1).clamp(min=1).unsqueeze(-1)
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
            kept = None if is_whole else tokens
            matrices[name] = _prepared_gram(gram, kept, norms, options, stored_as, name == "keep")
    return _prepared(matrices, bends, masks["keep"])


def _prepared(
    matrices: dict[str, Tensor], bends: dict[str, tuple[Tensor, Tensor]], real: Tensor
) -> PreparedTokens:
    """Return the measures from matrices, and curvatures with the terms left out, by sink."""
    flat = (
        bends["keep"][1] if bends else torch.zeros(len(real), dtype=torch.long, device=real.device)
    )
    return PreparedTokens(matrices, {name: bend for name, (bend, _) in bends.items()}, flat)


def token_entropies(prepared: PreparedTokens, options: Options) -> dict[str, Tensor]:
    """Return the entropies by sink, in float64; the matrices are destroyed."""
    return {
        name: gram_entropy(matrices, options.alpha, overwrite=True)
        for name, matrices in prepared.matrices.items()
    }


def _sum_without(states: Tensor, position: Tensor, total: Tensor | None) -> Tensor:
    """Return the sum of each prompt's states (B, D) but one, float64."""
    if (
        states.dtype == torch.float64
    ):  # nothing has more digits: leave it out rather than take it away again
        return states.scatter(1, _rows_at(position, states), 0.0).sum(1)
    total = token_sum(states) if total is None else total
    return total - states.gather(1, _rows_at(position, states)).squeeze(1)


def _rows_at(position: Tensor, states: Tensor) -> Tensor:
    return position[:, None, None].expand(-1, 1, states.shape[-1])


def _kept_first(mask: Tensor) -> Tensor:
    """Return indices that bring the kept tokens of each prompt to the front, in their order."""
    return (~mask).to(torch.uint8).sort(dim=-1, stable=True).indices


def _packed(states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    index = _kept_first(mask)
    return states.gather(1, index.unsqueeze(-1).expand_as(states)), mask.gather(1, index)


def _prepared_gram(
    gram: Tensor,
    mask: Tensor | None,
    norms: Tensor,
    options: Options,
    dtype: torch.dtype,
    recenter: bool,
) -> Tensor:
    """Return the Gram matrix of the masked rows, re-centered among themselves and, if asked, scaled to length
    1; other rows are zero.

    Rows of padding are zero in `gram` already; a row of zeros adds an eigenvalue of zero and
    changes nothing.
    """
    floor = zero_row_floor(norms, dtype).to(gram.dtype)
    squares, shift = gram.diagonal(dim1=-2, dim2=-1), None
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
    scale = (
        torch.where(alive, 1 / length, 0.0)
        if options.rows == "centered-unit"
        else alive.to(gram.dtype)
    )
    centered = gram if shift is None else (gram - shift.unsqueeze(-1)).sub_(shift.unsqueeze(-2))
    prepared = (centered * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return prepared.clamp_(min=0) if options.clamp_gram else prepared


def _entropy_matrix(states: Tensor, mask: Tensor, options: Options, dtype: torch.dtype) -> Tensor:
    """Return the smaller Gram side of each prompt's prepared rows; padding rows are zero and change
    nothing."""
    m = mask.unsqueeze(-1)
    x = torch.where(m, states.to(dtype), 0.0)
    rows: RowPreparation = options.rows
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    floor = torch.zeros_like(norms)
    if rows.startswith("centered"):
        mean = (
            x.sum(1, keepdim=True, dtype=torch.float64) / mask.sum(-1).clamp(min=1)[:, None, None]
        )
        x = torch.where(m, x - mean.to(dtype), 0.0)
        floor = zero_row_floor(norms, states.dtype)
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    x = torch.where(norms > floor, x / norms if rows.endswith("unit") else x, 0.0)
    gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
    return gram.clamp(min=0) if options.clamp_gram else gram


def _gram_curvature(
    gram: Tensor, mask: Tensor, norms: Tensor, index: Tensor | None, absolute: bool
) -> tuple[Tensor, Tensor]:
    """Return the curvature from a Gram matrix (any common shift of the rows cancels); `index` brings the kept
    rows to the front."""
    n = gram.shape[-1]
    if index is None:
        diagonal, one, two = (gram.diagonal(offset=k, dim1=-2, dim2=-1) for k in range(3))
    else:
        flat = gram.flatten(1)
        diagonal, one, two = (
            flat.gather(1, index[:, : max(0, n - k)] * n + index[:, k:]) for k in range(3)
        )
        mask, norms = mask.gather(1, index), norms.gather(1, index)
    squares = diagonal[:, 1:] + diagonal[:, :-1] - 2 * one
    dots = one[:, 1:] - diagonal[:, 1:-1] - two + one[:, :-1]
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
