"""LiDAR of several sites together: all folds in float32, and in float64 where the rounding of
float32 could change a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from layerscope.metrics import Estimate, Options, SiteVectors, spectrum_entropy
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.lidar import (
    PIVOT_UNITS,
    lidar_estimate,
    prepared_views,
    seen_from,
)
from layerscope.metrics.spectral import fold_members
from layerscope.metrics.vectors import n_folds
from layerscope_gpu.eigenvalues import eigvalsh
from layerscope_gpu.metrics import Finish
from layerscope_gpu.metrics.rounding import NATS, fast_doubles, is_negligible, moved_by_rounding
from layerscope_gpu.transfers import Sent
from layerscope_gpu.whitening import whitened

# For scatter matrices of several sites at once: bytes, and the share of the free memory.
_MOST_BYTES = 5 * 2**29
_SHARE_OF_MEMORY = 0.1


def prepare(sites: Sequence[SiteVectors], options: Options) -> Finish:
    """Start computing the entropies of sites of the same prompts, of all prompts and without each
    fold."""
    if options.alpha < 1:
        return dict
    at_once = _sites_at_once(sites[0])
    wholes: list[Tensor] = []
    safe: list[Tensor] = []
    folds: list[Tensor] = []
    for start in range(0, len(sites), at_once):
        group = sites[start : start + at_once]
        (whole, *stacks), is_safe = _whitened_sites(group, options)
        wholes.append(whole)
        safe.append(is_safe)
        folds = folds or [stack.new_empty(len(sites), *stack.shape[1:]) for stack in stacks]
        for fold, stack in zip(folds, stacks, strict=True):
            fold[start : start + at_once] = stack  # joining them at the end needs twice the memory
    exact = torch.cat(wholes)
    entropy = partial(_entropy, alpha=options.alpha)
    # _keep checks the rounding of float32; the folds give only a standard error
    near, *stacks = [
        eigvalsh(batch, overwrite=True)
        for batch in (exact.float(), *(stack.flatten(0, 1) for stack in folds))
    ]
    moved = moved_by_rounding(entropy, near.double().clamp(min=0))
    without = torch.cat([entropy(stack).view(len(sites), -1) for stack in stacks], dim=1)
    sent = [Sent(values) for values in (entropy(near), moved, torch.cat(safe), without)]

    def finish() -> dict[str, list[Estimate]]:
        rough, moved, safe, without = (values.get().tolist() for values in sent)
        _keep(sites, exact, rough, moved, safe, without, options)
        return {}

    return finish


def _keep(
    sites: Sequence[SiteVectors],
    wholes: Tensor,
    rough: list[float],
    moved: list[float],
    safe: list[bool],
    without: list[list[float]],
    options: Options,
) -> None:
    """Store the float32 result of each site, or one from float64 where rounding is too large."""
    is_sure = [
        far <= NATS and is_negligible(far, left_out)
        for far, left_out in zip(moved, without, strict=True)
    ]
    unsure = [
        i for i, value in enumerate(rough) if safe[i] and not is_sure[i] and math.isfinite(value)
    ]
    exact: dict[int, float] = {}
    if unsure:
        solved = gram_entropy(wholes[unsure], options.alpha).tolist()
        exact = dict(zip(unsure, solved, strict=True))
    for i, site in enumerate(sites):
        value = exact.get(i, rough[i])
        if safe[i] and (i not in exact or is_negligible(abs(rough[i] - value), without[i])):
            site.shared["lidar", options] = lidar_estimate(site, value, without[i])


def _entropy(eigenvalues: Tensor, alpha: float) -> Tensor:
    return spectrum_entropy(eigenvalues.double(), alpha)


def _sites_at_once(site: SiteVectors) -> int:
    """Return the number of sites whose scatter is computed together."""
    device = site.rows.device
    if device.type != "cuda":
        return 2
    n, q, d = site.views_for("lidar").shape
    bytes_per_site = 4 * 8 * (n * q * d + (n_folds(n) + 1) * d * d)
    room = min(_MOST_BYTES, int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]))
    return max(1, room // bytes_per_site)


def _whitened_sites(sites: Sequence[SiteVectors], options: Options) -> tuple[list[Tensor], Tensor]:
    """Return the matrices of `Scatter.whitened` of layerscope for several sites, in few steps.

    The first holds all prompts (B, n, n); the others leave out each fold, stacked by size
    (B, folds, m, m), float32. The booleans (B,) are True where the matrices can be used. They are
    False where δ could be lost in rounding; `Scatter` measures those sites.
    """
    device = sites[0].rows.device
    members = fold_members(len(sites[0]), device)
    # fold by fold, so that the rows of each are neighbors: a copy of all views would take longer
    # than their products
    places = torch.cat([fold.flatten() for fold in members])
    views = []
    for site in sites:
        grouped, rows = site.in_groups(options.lidar_rows, options.group)
        site_views = grouped.views_for("lidar")
        views.append((site_views if rows == "raw" else prepared_views(site_views, rows))[places])
    z = torch.stack(views).double()
    centers = z.mean(2)
    off = torch.empty_like(centers)
    off[:, places] = seen_from(centers, centers.mean(1, keepdim=True))
    inner = z.sub_(centers.unsqueeze(2))
    # the largest entry on the diagonal of Σ_w
    largest = torch.linalg.vector_norm(inner, dim=(1, 2)).square().amax(-1)
    n, q = inner.shape[1:3]
    is_safe = largest <= options.delta * n * q / (PIVOT_UNITS * torch.finfo(inner.dtype).eps)
    by_products = fast_doubles(device)
    return whitened(inner, off, members, options.delta, by_products=by_products), is_safe
