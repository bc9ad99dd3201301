"""Token measures of many sites: Gram matrices by kernels where those can compute what is asked, and
the entropies of several sites together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from layerscope.metrics import Options
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.tokens import measures
from layerscope.metrics.tokens.measures import PreparedTokens, center_tokens, measures_of_gram
from layerscope.spectra import full_precision
from layerscope_gpu import chebyshev
from layerscope_gpu.eigenvalues import entropy_source, exact_entropy, kernel_source
from layerscope_gpu.entropy import approximate_entropy
from layerscope_gpu.preparing import Space, centered_gram, prepare_gram
from layerscope_gpu.tokens.facts import TokenFacts

# The approximate entropy is for long prompts: shorter ones are solved as fast.
_FEWEST_APPROXIMATED = 256


def prepare_tokens(
    states: Tensor,
    mask: Tensor | None,
    sink: Tensor,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    dtype: torch.dtype = torch.float32,
    total: Tensor | None = None,
    space: Space | None = None,
) -> PreparedTokens:
    """Return what layerscope's `prepare_tokens` gives, in one kernel where that can be used.
    `space` gives the memory for matrices."""
    what = {"entropy": entropy, "curvature": curvature}
    count, width = states.shape[1:]
    with full_precision():
        if count > width or options.rows in ("raw", "unit") or dtype != torch.float32:
            return measures.prepare_tokens(
                states, mask, sink, options, **what, dtype=dtype, total=total
            )
        centered, norms = center_tokens(states, mask, sink, total, dtype)
        gram = centered_gram(centered, states.dtype)
        facts = TokenFacts(norms, mask, sink, states.dtype)
        made = prepare_gram(gram, facts, options, **what, space=space)
        if made is not None:
            return made
        masks = measures.token_masks(states, mask, sink)
        return measures_of_gram(gram, norms, states.dtype, mask, masks, options, **what)


def solve_tokens(prepared: Sequence[PreparedTokens], options: Options) -> list[dict[str, Tensor]]:
    """Return the entropies by sink of several sites' tokens, all of whose matrices go to the solver
    together."""
    every = [matrices for site in prepared for matrices in site.matrices.values()]
    if not every:
        return [{} for _ in prepared]
    values = iter(token_entropy(joined(every), options).split([len(m) for m in every]))
    return [{name: next(values) for name in site.matrices} for site in prepared]


def token_entropy(matrices: Tensor, options: Options) -> Tensor:
    """Return S_α of prompts' Gram matrices (B, n, n), which may be overwritten; exact, or
    approximate where the options say so."""
    if _is_approximated(matrices.shape[-1], options):
        return approximate_entropy(matrices)
    found = exact_entropy(matrices, overwrite=True) if _needs_no_spectrum(options) else None
    return gram_entropy(matrices, options.alpha, overwrite=True) if found is None else found


def _needs_no_spectrum(options: Options) -> bool:
    """Return True where determinants give the entropy: at α = 1, where no eigenvalue is
    negative."""
    return options.alpha == 1 and not options.clamp_gram


def _is_approximated(n: int, options: Options) -> bool:
    return options.entropy == "approximate" and options.alpha == 1 and n >= _FEWEST_APPROXIMATED


def entropy_kernel(n: int, options: Options, device: torch.device) -> str | None:
    """Return the source of the kernel that `token_entropy` uses for float32 matrices of n rows on a
    device, if it uses one."""
    if _is_approximated(n, options):
        return chebyshev.SOURCE
    if options.alpha == 2:
        return None
    source: Callable[[int, int], str | None] = (
        entropy_source if _needs_no_spectrum(options) else kernel_source
    )
    return source(n, device.index or 0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return `torch.cat` along the first dimension; parts that lie in memory one after the other
    are joined as they are.

    Others go through plain copies (cat's kernel is far below memory speed).
    """
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part) for part in parts]
    if all(_follows(part, after) for part, after in pairwise(parts)):
        return parts[0].as_strided((sum(sizes), *parts[0].shape[1:]), parts[0].stride())
    out = parts[0].new_empty(sum(sizes), *parts[0].shape[1:])
    for target, part in zip(out.split(sizes), parts, strict=True):
        target.copy_(part)
    return out


def _follows(part: Tensor, after: Tensor) -> bool:
    """Return True if one tensor begins where the other ends, in the same memory."""
    return (
        part.is_contiguous()
        and after.is_contiguous()
        and part.dtype == after.dtype
        and part.shape[1:] == after.shape[1:]
        and part.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        and part.storage_offset() + part.numel() == after.storage_offset()
    )
