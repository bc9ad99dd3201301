"""DiME of several sites together: the entropies of all permutations, in float32 where it gives the
same result as float64, and the errors over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics import Estimate, Options, SiteVectors, spectrum_entropy
from layerscope.metrics.dime import (
    error_orders,
    errors_of_effects,
    permutations_of,
    products,
    uses_features,
)
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.spectral import FEWEST, entropies_without_each, entropy_of_sums
from layerscope_gpu.eigenvalues import eigvalsh
from layerscope_gpu.metrics import Finish
from layerscope_gpu.metrics.rounding import fast_doubles, moved_by_rounding
from layerscope_gpu.metrics.sums import FINE, sums_without
from layerscope_gpu.metrics.views import view_of_sites
from layerscope_gpu.transfers import Sent

# Float32 is used where it changes the paired entropy by less than this share of the value: it may
# change the others a few times as much.
_CLOSE = 2.5e-4
_MOST_NUMBERS = 64_000_000  # entries of matrices that are solved at once: 512 MB


def prepare(sites: Sequence[SiteVectors], options: Options) -> Finish:
    """Start computing the terms and the errors of sites of the same prompts."""
    if options.alpha < 1:
        return dict
    n = min(len(sites[0]), options.dime_samples)
    a, b = (view_of_sites(sites, index, options)[:, :n] for index in (0, 1))
    on_features = uses_features(sites[0], options)
    keep_errors = dict if on_features else _prepare_errors(sites, a, b, options)
    if on_features:
        a = a.mT
        b = b.mT
    orders = permutations_of(a.shape[1], options.permutations, options.seed)
    paired = next(products(a, b, []))
    entropy = partial(spectrum_entropy, alpha=options.alpha)
    near = eigvalsh(_all_products(a, b, orders, torch.float32).flatten(0, 1), overwrite=True)
    near = near.double().clamp(min=0).view(len(sites), -1, near.shape[-1])
    rough = entropy(near)
    # The bound on the rounding error is nearly always above the allowed error. Where float64 is
    # quick, the error itself is computed at once.
    is_quick = _is_quick(paired, options.alpha)
    if is_quick:
        moved = (rough[:, 0] - _entropies(paired, options.alpha)).abs()
    else:
        moved = moved_by_rounding(entropy, near[:, 0])
    sent = Sent(rough), Sent(moved)

    def finish() -> dict[str, list[Estimate]]:
        keep_errors()
        rough, moved = (sent_values.get().numpy() for sent_values in sent)
        _keep_terms(sites, rough, moved, None if is_quick else paired, options)
        return {}

    return finish


def _keep_terms(
    sites: Sequence[SiteVectors],
    rough: np.ndarray,
    moved: np.ndarray,
    paired: Tensor | None,
    options: Options,
) -> None:
    """Store the terms of the sites at which float32 and float64 agree.

    With `paired`, sites with a larger bound on the error are checked in float64.
    """
    terms = rough[:, 1:] - rough[:, :1]  # a rounding error that all share cancels
    allowed = _CLOSE * np.abs(terms.mean(1))
    moved = moved.copy()
    if paired is not None:
        unsure = np.flatnonzero(~(moved <= allowed)).tolist()
        if unsure:  # the error may be less than its bound
            exact = _entropies(paired[unsure], options.alpha).cpu().numpy()
            moved[unsure] = np.abs(exact - rough[unsure, 0])
    for site, values, is_close in zip(sites, terms, moved <= allowed, strict=True):
        if is_close:
            site.shared["dime", options] = values


def _prepare_errors(
    sites: Sequence[SiteVectors], a: Tensor, b: Tensor, options: Options
) -> Callable[[], object]:
    """Start computing the standard errors over prompts."""
    n = a.shape[1]
    if n < 3:
        return dict
    orders = error_orders(n, options.permutations, options.seed)
    used = len(orders[0])
    at_once = max(1, _MOST_NUMBERS // used**2)
    matrices = _all_products(a[:, :used], b[:, :used], orders, a.dtype).flatten(0, 1)
    without = [
        Sent(_entropies_without_each(batch, options.alpha)) for batch in matrices.split(at_once)
    ]

    def finish() -> None:
        effects = -torch.cat([batch.get() for batch in without]).numpy()
        effects = effects.reshape(len(sites), 1 + len(orders), used)
        for site, error in zip(sites, errors_of_effects(effects, orders, n), strict=True):
            site.shared["dime error", options] = error

    return finish


def _all_products(a: Tensor, b: Tensor, orders: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
    """Return products of several pairs of views (B, n, D) as (B, 1 + orders, n, n)."""
    out = a.new_empty(len(a), 1 + len(orders), a.shape[1], a.shape[1], dtype=dtype)
    for i, product in enumerate(products(a, b, orders)):
        out[:, i] = product
    return out


def _entropies(matrices: Tensor, alpha: float) -> Tensor:
    """Return S_α of float64 matrices, exact enough for differences between entropies."""
    if _is_quick(matrices, alpha):
        return entropy_of_sums(sums_without(matrices, [], FINE)[0])
    return gram_entropy(matrices, alpha)


def _entropies_without_each(matrices: Tensor, alpha: float) -> Tensor:
    if _is_quick(matrices, alpha):
        single = torch.arange(matrices.shape[-1], device=matrices.device).unsqueeze(-1)
        return entropy_of_sums(sums_without(matrices, [single])[1])
    if not fast_doubles(matrices.device):
        return entropies_without_each(matrices.cpu(), alpha)
    return entropies_without_each(matrices, alpha)


def _is_quick(matrices: Tensor, alpha: float) -> bool:
    """Return True if the entropies come from products of matrices, at which this GPU is fast."""
    return alpha == 1 and matrices.shape[-1] >= FEWEST and fast_doubles(matrices.device)
