"""LiDAR: how many directions tell prompts apart once the scatter within a prompt's views is whitened away."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, spectrum_entropy
from layerscope.metrics.options import Options
from layerscope.metrics.registry import register
from layerscope.metrics.rows import zero_row_floor
from layerscope.metrics.samples import ViewRows
from layerscope.metrics.spectrum import prepare_grouped

_CITATION = "Thilak et al. 2024"


def scatter_matrices(data: ViewRows, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """(Σ_b, Σ_w, mean): scatter of the prompts' means, of the views around them (δ not added), and the overall mean."""
    n, q, d = len(data), data.n_views, data.width
    mean = torch.zeros(d, dtype=torch.float64)
    for z in _prepared_blocks(data, options):
        mean += z.sum((0, 1))
    mean /= n * q
    between, within = torch.zeros(d, d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
    for z in _prepared_blocks(data, options):
        centres = z.mean(1)
        off = centres - mean
        size = torch.linalg.vector_norm(centres, dim=-1, keepdim=True)
        real = torch.linalg.vector_norm(off, dim=-1, keepdim=True) > zero_row_floor(size, off.dtype)
        off = torch.where(real, off, 0.0)  # equal prompts differ from their mean by rounding
        between.addmm_(off.T, off)
        inner = (z - centres.unsqueeze(1)).reshape(-1, d)
        within.addmm_(inner.T, inner)
    return between / n, within / (n * q), mean


def _prepared_blocks(data: ViewRows, o: Options) -> list[Tensor]:
    blocks = data.blocks(o.group)
    if o.lidar_rows == "raw":
        return blocks  # type: ignore[return-value]
    means = None
    if o.lidar_rows.startswith("centered") and o.group is None:
        means = [data.view(i).mean(0) for i in range(data.n_views)]
    return [
        torch.stack(
            [prepare_grouped(z[:, i], o.lidar_rows, None if means is None else means[i], o.group) for i in range(z.shape[1])],
            dim=1,
        )
        for z in blocks
    ]


@register
class LiDAR(Metric[ViewRows]):
    """Entropy of the normalised eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2} (δ on the diagonal of Σ_w), over all views."""

    info = MetricInfo(
        name="lidar",
        title="LiDAR",
        level="views",
        unit="nats",
        higher_means="more directions tell prompts apart in spite of augmentation",
        bounds=lambda n, d, o: (0.0, math.log(max(1, min(n - 1, d)))),
        bounds_text="0 to log min(N − 1, D)",
        citation=_CITATION,
        normalizations=NORMALIZATIONS,
        core=True,
    )

    def new_data(self) -> ViewRows:
        """Pooled vectors of views."""
        return ViewRows()

    def estimate(self, data: ViewRows) -> Estimate:
        """The entropy. Whitening through a Cholesky factor: the eigenvalues are the same as through Σ_w^{-1/2}."""
        data.need_views(2, self.info.name)
        key = ("lidar", self.options)
        if key not in data._memo:
            data._memo[key] = self._estimate(data)
        return data._memo[key]

    def _estimate(self, data: ViewRows) -> Estimate:
        o, n, d = self.options, len(data), data.width
        between, within, mean = scatter_matrices(data, o)
        noise = within + o.delta * torch.eye(d, dtype=torch.float64)
        factor = torch.linalg.cholesky(noise)
        half = torch.linalg.solve_triangular(factor, between, upper=False)
        whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
        mu, y = torch.linalg.eigh((whitened + whitened.T) / 2)
        mu = mu.clamp(min=0)
        if float(mu[-1]) <= 0:  # all prompts the same
            return Estimate(math.nan, n, d, undefined=n)
        lam = mu.detach().clone().requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            value = spectrum_entropy(lam, o.alpha)
            (slope,) = torch.autograd.grad(value, lam)
        slope = torch.where((mu > 1e-13 * mu[-1]) & torch.isfinite(slope), slope, torch.zeros_like(slope))
        # generalised eigenvectors x_k: dμ_k = x_kᵀ dΣ_b x_k − μ_k x_kᵀ dΣ_w x_k
        x = torch.linalg.solve_triangular(factor.T, y, upper=True)
        parts = []
        for z in _prepared_blocks(data, o):
            centres = z.mean(1)
            gain = ((centres - mean) @ x).square() @ slope
            loss = ((z - centres.unsqueeze(1)) @ x).square().mean(1) @ (slope * mu)
            parts.append(gain - loss)
        influence = torch.cat(parts).numpy() / n
        influence = data.to_canonical(influence - influence.mean())
        notes = {"within_rank": min(d, n * (data.n_views - 1))}
        return Estimate(float(value.detach()), n, d, influence, notes=notes)


@register
class LiDARRank(LiDAR):
    """exp of LiDAR's entropy: the number Thilak et al. report."""

    info = MetricInfo(
        name="lidar_rank",
        title="LiDAR rank",
        level="views",
        unit="dimensions",
        higher_means="more directions tell prompts apart in spite of augmentation",
        bounds=lambda n, d, o: (1.0, float(max(1, min(n - 1, d)))),
        bounds_text="1 to min(N − 1, D)",
        citation=_CITATION,
    )

    def estimate(self, data: ViewRows) -> Estimate:
        """exp of the entropy."""
        entropy = super().estimate(data)
        return entropy.mapped(math.exp, slope=math.exp(entropy.value))
