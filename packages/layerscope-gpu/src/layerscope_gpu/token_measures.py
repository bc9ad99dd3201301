"""Token measures: Gram matrices by kernels where those support the options, and the entropies of
several sites together.

One pass prepares Gram matrices or rows both with the sink token and without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from layerscope.metrics import Options
from layerscope.metrics import tokens as measures
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.tokens import PreparedTokens, center_tokens, measures_of_gram
from layerscope.spectra import full_precision
from layerscope_gpu import precision, tokens
from layerscope_gpu.eigenvalues import entropy_source, exact_entropy, kernel_source
from layerscope_gpu.tokens.facts import TokenFacts
from layerscope_gpu.tokens.gram import GramMeasures
from layerscope_gpu.tokens.normed import CenteredStates, NormCache
from layerscope_gpu.tokens.rows import RowMeasures

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Request:
    """The requested measures, and a function `space(like)` that returns memory for one more batch
    of matrices like the given one."""

    options: Options
    entropy: bool = True
    curvature: bool = True
    space: Callable[[Tensor], Tensor] = torch.empty_like

    @property
    def has_kernel(self) -> bool:
        """Return True if the kernels support the options."""
        return self.options.rows.startswith("centered") and not self.options.clamp_gram

    @property
    def is_unit(self) -> bool:
        """Return True if rows are scaled to length 1."""
        return self.options.rows == "centered-unit"


def can_prepare_gram(device: torch.device, count: int, request: Request) -> bool:
    """Return True if `prepare_gram` supports prompts of this many tokens."""
    return request.has_kernel and tokens.measures_grams(device, count)


def can_prepare_rows(device: torch.device, request: Request) -> bool:
    """Return True if `prepare_rows` supports the request."""
    return request.has_kernel and tokens.measures_rows(device)


def prepare_site(
    raw: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    norm_cache: NormCache,
    request: Request,
) -> tuple[CenteredStates, PreparedTokens] | None:
    """Center a site's states (B, T, D) under a norm and prepare their measures, in three kernels
    and one or two products; return None where those do not support the request."""
    _, count, width = raw.shape
    is_long = count > width  # the D×D side is smaller
    if is_long:
        is_usable = can_prepare_rows(raw.device, request)
    else:
        is_usable = can_prepare_gram(raw.device, count, request)
    states = tokens.centered_states(raw, mask, norm, norm_cache) if is_usable else None
    if states is None:
        return None
    facts = TokenFacts(states.norms, mask, states.largest, raw.dtype)
    if is_long:
        return states, prepare_rows(states.centered, facts, request)
    return states, prepare_gram(centered_gram(states.centered, raw.dtype), facts, request)


def prepare_tokens(
    states: Tensor,
    mask: Tensor | None,
    sink: Tensor,
    request: Request,
    *,
    dtype: torch.dtype = torch.float32,
    total: Tensor | None = None,
) -> PreparedTokens:
    """Return the result of layerscope's `prepare_tokens`, from one kernel where that is
    possible."""
    count, width = states.shape[1:]
    options = request.options
    flags = {"entropy": request.entropy, "curvature": request.curvature}
    with full_precision():
        if count > width or options.rows in ("raw", "unit") or dtype != torch.float32:
            return measures.prepare_tokens(
                states, mask, sink, options, **flags, dtype=dtype, total=total
            )
        centered, norms = center_tokens(states, mask, sink, total, dtype)
        gram = centered_gram(centered, states.dtype)
        if can_prepare_gram(gram.device, count, request):
            return prepare_gram(gram, TokenFacts(norms, mask, sink, states.dtype), request)
        masks = measures.token_masks(states, mask, sink)
        return measures_of_gram(gram, norms, states.dtype, mask, masks, options, **flags)


def centered_gram(centered: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Return X Xᵀ of centered states (B, T, D) of a `dtype`, in the memory of `out` if given.

    Half-precision states have fewer digits than TF32, which is used for them. This changes a mean
    entropy by 1e-5, and a single prompt's with few large directions by 1e-4.
    """
    with full_precision(dtype not in _HALF):
        return torch.bmm(centered, centered.mT, out=out)


def prepare_gram(gram: Tensor, facts: TokenFacts, request: Request) -> PreparedTokens:
    """Return the measures of Gram matrices of states that are centered without the sink."""
    out = (request.space(gram), request.space(gram)) if request.entropy else None
    measured = tokens.measure_gram(
        gram, facts, request.is_unit, request.options.curvature_absolute, out
    )
    return _prepared(measured.matrices, measured, request)


def prepare_rows(centered: Tensor, facts: TokenFacts, request: Request) -> PreparedTokens:
    """Return the measures of states (B, T, D), float32, that are centered without the sink.

    The matrices are D×D and have the nonzero eigenvalues of the T×T ones. Products are rounded as
    in `centered_gram`.
    """
    dtype = row_dtype(centered, facts.dtype, request) if request.entropy else None
    measured = tokens.measure_rows(
        centered, facts, request.is_unit, request.options.curvature_absolute, dtype
    )
    texts, _, width = centered.shape
    # the shape for `space`, without its memory
    like = centered.new_empty(1).expand(texts, width, width)
    matrices = {}
    for name in tuple(measured.rows):
        out = request.space(like)
        rows = measured.rows.pop(name)
        if rows.dtype == torch.float16:
            matrices[name] = precision.wide_product(rows, out)
        else:
            matrices[name] = centered_gram(rows.mT, facts.dtype, out)
    return _prepared(matrices, measured, request)


def _prepared(
    matrices: dict[str, Tensor], measured: GramMeasures | RowMeasures, request: Request
) -> PreparedTokens:
    if not request.curvature:
        return PreparedTokens(matrices, {}, torch.zeros_like(measured.flat))
    keep, drop = measured.curvature
    return PreparedTokens(matrices, {"keep": keep, "drop": drop}, measured.flat)


def row_dtype(centered: Tensor, dtype: torch.dtype, request: Request) -> torch.dtype:
    """Return the type in which rows are multiplied.

    float16 has as many digits as TF32 and is twice as fast. Rows of length 1 fit its range.
    """
    fits = dtype in _HALF and request.is_unit and centered.is_cuda
    is_narrow = fits and precision.wide_products(centered.device.index or 0)
    return torch.float16 if is_narrow else torch.float32


def solve_tokens(prepared: Sequence[PreparedTokens], options: Options) -> list[dict[str, Tensor]]:
    """Return the entropies by sink of several sites' tokens, solving all matrices together."""
    batches = [matrices for site in prepared for matrices in site.matrices.values()]
    if not batches:
        return [{} for _ in prepared]
    entropies = token_entropy(joined(batches), options).split([len(batch) for batch in batches])
    values = iter(entropies)
    return [{name: next(values) for name in site.matrices} for site in prepared]


def token_entropy(matrices: Tensor, options: Options) -> Tensor:
    """Return S_α of prompts' Gram matrices (B, n, n), which may be overwritten."""
    entropy = exact_entropy(matrices, overwrite=True) if _needs_no_spectrum(options) else None
    return gram_entropy(matrices, options.alpha, overwrite=True) if entropy is None else entropy


def _needs_no_spectrum(options: Options) -> bool:
    """Return True where determinants give the entropy: at α = 1, if no eigenvalue is negative."""
    return options.alpha == 1 and not options.clamp_gram


def entropy_kernel(n: int, options: Options) -> str | None:
    """Return the source of `token_entropy`'s kernel for float32 matrices of n rows, None if it uses
    none."""
    if options.alpha == 2:
        return None
    return entropy_source(n) if _needs_no_spectrum(options) else kernel_source(n)


def joined(batches: Sequence[Tensor]) -> Tensor:
    """Return `torch.cat` along the first dimension, as a view if the batches are neighbors in
    memory.

    Other batches are copied one by one, since cat's kernel is far below memory speed.
    """
    leading = batches[0]
    sizes = [len(batch) for batch in batches]
    if all(_follows(batch, after) for batch, after in pairwise(batches)):
        return leading.as_strided((sum(sizes), *leading.shape[1:]), leading.stride())
    out = leading.new_empty(sum(sizes), *leading.shape[1:])
    for target, batch in zip(out.split(sizes), batches, strict=True):
        target.copy_(batch)
    return out


def _follows(batch: Tensor, after: Tensor) -> bool:
    """Return True if the second tensor begins where the first ends, in the same memory."""
    return (
        batch.is_contiguous()
        and after.is_contiguous()
        and batch.dtype == after.dtype
        and batch.shape[1:] == after.shape[1:]
        and batch.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        and batch.storage_offset() + batch.numel() == after.storage_offset()
    )
