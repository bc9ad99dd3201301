"""LiDAR of several sites together, all folds in float32; in float64 where its rounding could
show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from layerscope_gpu.metrics.rounding import NATS, fast_doubles, moved_by_rounding, will_do
from layerscope_gpu.transfers import Sent
from layerscope_gpu.whitening import whitened

# For scatter matrices of several sites at once: bytes, and the share of what is free.
_MOST_BYTES = 5 * 2**29
_SHARE_OF_MEMORY = 0.1


def prepare(
    sites: Sequence[SiteVectors], options: Options
) -> Callable[[], Mapping[str, Sequence[Estimate]]]:
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
        (whole, *left_out), is_safe = _whitened_sites(group, options)
        wholes.append(whole)
        safe.append(is_safe)
        folds = folds or [part.new_empty(len(sites), *part.shape[1:]) for part in left_out]
        for every, part in zip(folds, left_out, strict=True):
            every[start : start + at_once] = part  # gathered at the end, they would be held twice
    exact = torch.cat(wholes)
    entropy = partial(_entropy, alpha=options.alpha)
    # what float32 loses is allowed for below; of the folds only a standard error is made
    near, *left_out = [
        eigvalsh(batch, overwrite=True)
        for batch in (exact.float(), *(part.flatten(0, 1) for part in folds))
    ]
    moved = moved_by_rounding(entropy, near.double().clamp(min=0))
    without = torch.cat([entropy(part).view(len(sites), -1) for part in left_out], dim=1)
    sent = [Sent(values) for values in (entropy(near), moved, torch.cat(safe), without)]

    def finish() -> Mapping[str, Sequence[Estimate]]:
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
    """Keep in each site what was found in float32, or solve it in float64."""
    is_sure = [
        far <= NATS and will_do(far, left_out) for far, left_out in zip(moved, without, strict=True)
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
        if safe[i] and (i not in exact or will_do(abs(rough[i] - value), without[i])):
            site.shared["lidar", options] = lidar_estimate(site, value, without[i])


def _entropy(eigenvalues: Tensor, alpha: float) -> Tensor:
    return spectrum_entropy(eigenvalues.double(), alpha)


def _sites_at_once(site: SiteVectors) -> int:
    """Return of how many sites the scatter is worked out together."""
    device = site.rows.device
    if device.type != "cuda":
        return 2
    n, q, d = site.views_for("lidar").shape
    each = 4 * 8 * (n * q * d + (n_folds(n) + 1) * d * d)
    room = min(_MOST_BYTES, int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]))
    return max(1, room // each)


def _whitened_sites(sites: Sequence[SiteVectors], options: Options) -> tuple[list[Tensor], Tensor]:
    """Return what `Scatter.whitened` of layerscope gives, in few steps.

    Of all prompts (B, n, n), then without each fold, stacked by size (B, folds, m, m), float32. And
    whether that can be used (B,): not where δ could be lost in rounding, which is left to
    `Scatter`.
    """
    device = sites[0].rows.device
    members = fold_members(len(sites[0]), device)
    # fold by fold, so that the rows of each lie side by side: a copy of all views would take longer
    # than their products
    places = torch.cat([part.flatten() for part in members])
    views = []
    for site in sites:
        grouped, rows = site.in_groups(options.lidar_rows, options.group)
        own = grouped.views_for("lidar")
        views.append((own if rows == "raw" else prepared_views(own, rows))[places])
    z = torch.stack(views).double()
    centers = z.mean(2)
    off = torch.empty_like(centers)
    off[:, places] = seen_from(centers, centers.mean(1, keepdim=True))
    inner = z.sub_(centers.unsqueeze(2))
    # on the diagonal of Σ_w
    largest = torch.linalg.vector_norm(inner, dim=(1, 2)).square().amax(-1)
    n, q = inner.shape[1:3]
    is_safe = largest <= options.delta * n * q / (PIVOT_UNITS * torch.finfo(inner.dtype).eps)
    by_products = fast_doubles(device)
    return whitened(inner, off, members, options.delta, by_products=by_products), is_safe
