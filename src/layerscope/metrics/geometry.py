"""Nearness of prompts: InfoNCE between two views of every prompt, the mean cosine between prompts
(anisotropy), and the dimension that nearest neighbors tell (TwoNN)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.vectors import Options, SiteVectors, doubles, prepare_rows, prepared_view

__all__ = ["BLOCK", "info_nce"]

BLOCK = 1024  # rows that are compared with all others at a time


def info_nce(
    a: Tensor, b: Tensor, temperature: float = 0.1, one_way: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the loss of each prompt, and what each prompt adds to the others' losses as a
    negative. The views (…, N, D) are prepared.

    NT-Xent: every one of the 2N rows is told from the 2N − 2 rows of other prompts. `one_way`: rows
    of `a` against rows of `b` only. Computed in blocks of rows.
    """
    n = a.shape[-2]
    z = a if one_way else torch.cat([a, b], dim=-2)
    candidates = b if one_way else z
    losses = []
    columns = torch.zeros_like(candidates[..., 0])
    for start in range(0, z.shape[-2], BLOCK):
        block = z[..., start : start + BLOCK, :]
        partner = torch.arange(start, start + block.shape[-2], device=z.device)
        if not one_way:
            partner = (partner + n) % (2 * n)
        logits = block @ candidates.mT / temperature
        partners = partner.unsqueeze(-1).expand(*logits.shape[:-1], 1)
        if not one_way:
            logits.diagonal(start, -2, -1).fill_(-math.inf)
        positive = logits.gather(-1, partners).squeeze(-1)
        total = torch.logsumexp(logits, -1)
        losses.append(total - positive)
        share = (logits - total.unsqueeze(-1)).exp_()
        share.scatter_(-1, partners, 0.0)  # a partner does not count as a negative
        columns += share.sum(-2)
    per_row = torch.cat(losses, dim=-1)
    if one_way:
        return per_row, columns
    return per_row.unflatten(-1, (2, n)).mean(-2), columns.unflatten(-1, (2, n)).sum(-2) / 2


def estimate_infonce(site: SiteVectors, options: Options) -> Estimate:
    """Return the NT-Xent loss over the first two views, with cosine similarity by default. Lower:
    views are told apart better.

    >>> same = torch.eye(8).unsqueeze(1).repeat(1, 2, 1)  # two equal views, prompts orthogonal
    >>> estimate_infonce(SiteVectors(same[:, 0], same), Options()).value < 0.01
    True
    """
    losses, negatives = site.once(("infonce", options), lambda: _losses(site, options))
    n = len(losses)
    value = float(losses.mean())
    influence = (losses - value + negatives - negatives.mean()) / n
    return Estimate(value, n, site.width, influence.cpu().numpy())


def _losses(site: SiteVectors, options: Options) -> tuple[Tensor, Tensor]:
    site, rows = site.in_groups(options.view_rows, options.group)
    views = site.views_for("infonce")
    a, b = (prepared_view(views, i, rows) for i in (0, 1))
    return info_nce(a, b, options.temperature, options.infonce_one_way)


def estimate_infonce_bound(site: SiteVectors, options: Options) -> Estimate:
    """Return log N − InfoNCE: a lower bound, at most log N, on the mutual information between two
    views."""
    loss = estimate_infonce(site, options)
    return loss.mapped(lambda x: math.log(loss.n) - x, slope=-1.0)


INFONCE = Metric(
    MetricInfo(
        name="infonce",
        title="InfoNCE",
        level="views",
        unit="nats",
        higher_means=(
            "augmented views of a prompt are harder to tell from other prompts (less invariant)"
        ),
        bounds="above 0; log(2N − 1) if views say nothing",
        citation="Oord et al. 2018; Chen et al. 2020",
        core=True,
        heading="Info-\nNCE",
        order=50,
    ),
    estimate=estimate_infonce,
)

INFONCE_BOUND = Metric(
    MetricInfo(
        name="infonce_mi",
        title="InfoNCE bound on information",
        level="views",
        unit="nats",
        higher_means="two views of a prompt share more information",
        bounds="at most log N",
        citation="Oord et al. 2018",
        main=False,
    ),
    estimate=estimate_infonce_bound,
)


def estimate_anisotropy(site: SiteVectors, options: Options) -> Estimate:
    """Return the mean cosine over all pairs of different prompts: (‖Σ u‖² − N) / (N (N − 1)), with
    u the unit vectors. Vectors of length zero have no cosine and are left out.

    >>> round(estimate_anisotropy(SiteVectors(torch.ones(3, 2)), Options()).value, 6)
    1.0
    """
    total = torch.zeros(site.width, dtype=torch.float64, device=site.rows.device)
    n = 0
    for block in doubles(site.rows):
        unit = prepare_rows(block, "unit")
        total += unit.sum(0)
        n += int((unit != 0).any(-1).sum())
    if n < 2:
        return Estimate(math.nan, n, site.width, undefined=len(site))
    value = (float(total @ total) - n) / (n * (n - 1))
    cosines = torch.cat([_mean_cosines(block, total, n) for block in doubles(site.rows)])
    # each pair is shared by two prompts: a U-statistic of order two
    influence = 2 * (cosines.nan_to_num(value) - value) / n
    return Estimate(value, n, site.width, influence.cpu().numpy(), undefined=len(site) - n)


def _mean_cosines(block: Tensor, total: Tensor, n: int) -> Tensor:
    """Return the mean cosine of each vector with all the others; NaN for one of length zero."""
    unit = prepare_rows(block, "unit")
    squares = unit.square().sum(-1)
    return torch.where(squares > 0, (unit @ total - squares) / (n - 1), torch.nan)


ANISOTROPY = Metric(
    MetricInfo(
        name="anisotropy",
        title="Anisotropy",
        level="pooled",
        unit="cosine",
        higher_means="all prompts point in more similar directions",
        bounds="−1/(N − 1) to 1",
        citation="Ethayarajh 2019",
        main=False,
    ),
    estimate=estimate_anisotropy,
)


def neighbor_ratios(rows: Tensor) -> Tensor:
    """Return μ_i = r_2 / r_1 of each row (N, D); NaN where the nearest neighbor is at distance zero
    (a duplicate).

    Distances are taken directly, not through inner products: those lose half the digits for near
    neighbors.
    """
    n = len(rows)
    out = torch.full((n,), math.nan, dtype=torch.float64, device=rows.device)
    for start in range(0, n, BLOCK):
        block = rows[start : start + BLOCK]
        # inner products find candidates fast; the few nearest are then measured exactly
        squares = torch.cdist(block, rows)
        row = torch.arange(len(block), device=rows.device)
        squares[row, row + start] = math.inf
        near = squares.topk(min(4, n - 1), largest=False).indices
        exact = torch.linalg.vector_norm(block.unsqueeze(1) - rows[near], dim=-1).sort(-1).values
        out[start : start + len(block)] = torch.where(
            exact[:, 0] > 0, exact[:, 1] / exact[:, 0], math.nan
        )
    return out


def estimate_intrinsic_dimension(site: SiteVectors, options: Options) -> Estimate:
    """Return TwoNN's dimension, d = (n − 1) / Σ log μ, the unbiased maximum-likelihood form.
    Duplicates have no ratio and are left out.

    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(2, 20)
    >>> 1.8 < estimate_intrinsic_dimension(SiteVectors(plane), Options()).value < 2.2
    True
    """
    count = len(site)
    if count < 3:
        return Estimate(math.nan, count, site.width, undefined=count)
    logs = neighbor_ratios(site.rows.double()).log().cpu().numpy()
    defined = logs[np.isfinite(logs)]
    n = len(defined)
    total = float(defined.sum())
    if n < 3 or total <= 0:
        return Estimate(math.nan, n, site.width, undefined=count)
    value = (n - 1) / total
    influence = -value * (defined - total / n) / total
    return Estimate(value, n, site.width, influence, undefined=count - n)


INTRINSIC_DIMENSION = Metric(
    MetricInfo(
        name="intrinsic_dimension",
        title="Intrinsic dimension",
        level="pooled",
        unit="dimensions",
        higher_means="prompts lie on a manifold of more dimensions",
        bounds="above 0",
        citation="Facco et al. 2017 (TwoNN); Denti et al. 2022 (its estimator)",
        main=False,
    ),
    estimate=estimate_intrinsic_dimension,
)
