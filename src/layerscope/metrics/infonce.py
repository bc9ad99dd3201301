"""InfoNCE (NT-Xent) between two augmented views of every prompt, and the mutual information it
bounds."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.options import Options
from layerscope.metrics.vectors import SiteVectors, prepared_view

__all__ = ["BLOCK", "info_nce"]

BLOCK = 1024


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


def _largest_loss(n: int, d: int, options: Options) -> float:
    if not options.view_rows.endswith("unit"):
        return math.inf
    widest = 2 / options.temperature  # from cosine −1 to cosine 1
    return float(np.logaddexp(0.0, math.log(2 * n - 2) + widest)) if n > 1 else 0.0


INFONCE = Metric(
    MetricInfo(
        name="infonce",
        title="InfoNCE",
        level="views",
        unit="nats",
        higher_means=(
            "augmented views of a prompt are harder to tell from other prompts (less invariant)"
        ),
        bounds=lambda n, d, o: (0.0, _largest_loss(n, d, o)),
        bounds_text="above 0; log(2N − 1) if views say nothing",
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
        bounds=lambda n, d, o: (math.log(n) - _largest_loss(n, d, o), math.log(n)),
        bounds_text="at most log N",
        citation="Oord et al. 2018",
        main=False,
    ),
    estimate=estimate_infonce_bound,
)
