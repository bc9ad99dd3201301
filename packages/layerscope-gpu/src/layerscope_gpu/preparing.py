"""Token measures before their eigenvalues, by kernels: Gram matrices and rows are prepared with the
sink token kept and dropped, in one pass over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.metrics import Options
from layerscope.metrics.tokens.measures import PreparedTokens
from layerscope.spectra import full_precision
from layerscope_gpu import precision, tokens
from layerscope_gpu.tokens.facts import TokenFacts

Space = Callable[[Tensor], Tensor]
"""Gives memory for one more batch of matrices like the given one."""


def prepare_site(
    raw: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    held: Any,
    options: Options,
    *,
    entropy: bool,
    curvature: bool,
    space: Space,
) -> tuple[Any, PreparedTokens] | None:
    """Center a site's states (B, T, D) under a norm and prepare their measures, in three kernels
    and one or two products; None where those cannot compute what is asked for."""
    _, count, width = raw.shape
    long = count > width  # the D×D side is smaller
    able = usable_for_rows(raw.device, options) if long else usable_for(raw.device, count, options)
    centered = tokens.centered_states(raw, mask, norm, held) if able else None
    if centered is None:
        return None
    facts = TokenFacts(centered.norms, mask, centered.largest, raw.dtype)
    given = centered.centered if long else centered_gram(centered.centered, raw.dtype)
    prepare = prepare_long if long else prepare_gram
    prepared = prepare(given, facts, options, entropy=entropy, curvature=curvature, space=space)
    assert prepared is not None
    return centered, prepared


def centered_gram(centered: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Return X Xᵀ of centered states (B, T, D) that were stored as `dtype`, in the memory of `out`
    if given.

    Half-precision states have fewer digits than TF32 keeps: rounding rows once more moves a mean
    entropy by 1e-5, a single prompt's by 1e-4 where few directions hold most of it.
    """
    with full_precision(dtype not in (torch.bfloat16, torch.float16)):
        return torch.bmm(centered, centered.mT, out=out)


def usable_for(device: torch.device, count: int, options: Options) -> bool:
    """Whether `prepare_gram` does what is asked of prompts of so many tokens."""
    return has_kernel(options) and tokens.measures_grams(device, count)


def has_kernel(options: Options) -> bool:
    """Whether the kernels of token measures prepare rows as the options say."""
    return options.rows.startswith("centered") and not options.clamp_gram


def prepare_gram(
    gram: Tensor,
    facts: TokenFacts,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    space: Space | None = None,
) -> PreparedTokens | None:
    """`prepare_tokens` from Gram matrices of states centered without the sink, in one kernel; None
    where it cannot do what is asked."""
    if not usable_for(gram.device, gram.shape[-1], options):
        return None
    room = space or torch.empty_like
    out = (room(gram), room(gram)) if entropy else None
    made = tokens.measure_gram(
        gram, facts, options.rows == "centered-unit", options.curvature_absolute, out
    )
    both = dict(zip(("keep", "drop"), made.curvature, strict=True)) if curvature else {}
    return PreparedTokens(
        made.matrices, both, made.flat if curvature else torch.zeros_like(made.flat)
    )


def usable_for_rows(device: torch.device, options: Options) -> bool:
    """Whether `prepare_long` does what is asked."""
    return has_kernel(options) and tokens.measures_rows(device)


def prepare_long(
    centered: Tensor,
    facts: TokenFacts,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    space: Space | None = None,
) -> PreparedTokens:
    """`prepare_tokens` from states (B, T, D), float32, centered without the sink; rows centered or
    centered-unit.

    The matrices are D×D: they have the nonzero eigenvalues of the T×T ones. Products are rounded as
    `centered_gram` says.
    """
    made_in = _rows_in(centered, facts.dtype, options) if entropy else None
    made = tokens.measure_rows(
        centered, facts, options.rows == "centered-unit", options.curvature_absolute, made_in
    )
    texts, _, width = centered.shape
    shape = centered.new_empty(1).expand(
        texts, width, width
    )  # what `space` is asked for, without its memory
    matrices = {}
    for name in tuple(made.rows):
        out = shape.new_empty(shape.shape) if space is None else space(shape)
        rows = made.rows.pop(name)
        narrow = rows.dtype == torch.float16
        matrices[name] = (
            precision.wide_product(rows, out)
            if narrow
            else centered_gram(rows.mT, facts.dtype, out)
        )
    both = dict(zip(("keep", "drop"), made.curvature, strict=True)) if curvature else {}
    return PreparedTokens(matrices, both, made.flat if curvature else torch.zeros_like(made.flat))


def _rows_in(centered: Tensor, dtype: torch.dtype, options: Options) -> torch.dtype:
    """What rows are multiplied in. float16 has as many digits as TF32 and is twice as fast; rows of
    length 1 fit its range."""
    if (
        dtype not in (torch.bfloat16, torch.float16)
        or options.rows != "centered-unit"
        or not centered.is_cuda
    ):
        return torch.float32
    return torch.float16 if precision.wide_products(centered.device.index or 0) else torch.float32
