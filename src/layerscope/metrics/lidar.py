"""LiDAR: how many directions tell prompts apart once the scatter within a prompt's views is whitened away."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, spectrum_entropy
from layerscope.metrics.jackknife import n_folds, standard_error
from layerscope.metrics.options import Options
from layerscope.metrics.registry import register
from layerscope.metrics.rows import zero_row_floor
from layerscope.metrics.samples import ViewRows
from layerscope.metrics.spectrum import prepare_grouped
from layerscope.spectra import eigvalsh

_CITATION = "Thilak et al. 2024"


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
        """The entropy, with its standard error over folds of prompts."""
        data.need_views(2, self.info.name)
        key = ("lidar", self.options)
        if key not in data._memo:
            data._memo[key] = self._estimate(data)
        return data._memo[key]

    def _estimate(self, data: ViewRows) -> Estimate:
        scatter = _Scatter(data, self.options)
        value = scatter.entropy()
        n, d = len(data), data.width
        if not math.isfinite(value):  # all prompts the same
            return Estimate(math.nan, n, d, undefined=n)
        folds = n_folds(n)
        se = standard_error([scatter.entropy(without=fold) for fold in range(folds)])
        return Estimate(value, n, d, se=se, df=folds - 1, notes={"within_rank": min(d, n * (data.n_views - 1))})


class _Scatter:
    """Scatter of the prompts' centres (Σ_b) and of views around them (Σ_w), from which folds of prompts can be taken away."""

    def __init__(self, data: ViewRows, options: Options) -> None:
        self.data, self.options = data, options
        self.n, self.q, self.d = len(data), data.n_views, data.width
        # prepared rows need all of a view's rows, so they are kept; raw ones are read fold by fold
        self._prepared = None if options.lidar_rows == "raw" else torch.cat(list(_prepared_blocks(data, options)))[data.order()]
        self.mean = torch.zeros(self.d, dtype=torch.float64)
        for z in self._blocks():
            self.mean += z.sum((0, 1))
        self.mean /= self.n * self.q
        # Σ_b of fewer prompts than dimensions has their rank: N×N is enough, from the centres themselves
        self.by_prompts = self.n <= self.d
        self.centres = torch.cat([self._off(z) for z in self._in_order()]) if self.by_prompts else None
        self.between = torch.zeros(0) if self.by_prompts else torch.zeros(self.d, self.d, dtype=torch.float64)
        self.within = torch.zeros(self.d, self.d, dtype=torch.float64)
        for z in self._blocks():
            if not self.by_prompts:
                off = self._off(z)
                self.between.addmm_(off.T, off)
            inner = _inner(z)
            self.within.addmm_(inner.T, inner)

    def entropy(self, without: int | None = None) -> float:
        """S_α of the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, of all prompts or without one fold.

        Whitening is through a Cholesky factor: the eigenvalues are the same as through Σ_w^{-1/2}.
        """
        n, within, between, shift = self.n, self.within, self.between, torch.zeros(self.d, dtype=torch.float64)
        if without is not None:
            z = self._fold(without)
            off, inner = self._off(z), _inner(z)
            n -= len(z)
            within = within - inner.T @ inner
            shift = -off.sum(0) / n  # the centres' mean without this fold, seen from the mean of all
            between = between if self.by_prompts else between - off.T @ off
        noise = within / (n * self.q) + self.options.delta * torch.eye(self.d, dtype=torch.float64)
        factor = torch.linalg.cholesky(noise)
        if self.centres is not None:
            stay = self.centres
            if without is not None:
                stay = stay[torch.arange(self.n) % n_folds(self.n) != without] - shift
            half = torch.linalg.solve_triangular(factor, stay.T, upper=False)
            whitened = half.T @ half / n
        else:
            between = between / n - torch.outer(shift, shift)
            half = torch.linalg.solve_triangular(factor, between, upper=False)
            whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
            whitened = (whitened + whitened.T) / 2
        return float(spectrum_entropy(eigvalsh(whitened).clamp(min=0), self.options.alpha))

    def _blocks(self) -> Iterable[Tensor]:
        return self.data.blocks() if self._prepared is None else [self._prepared]

    def _in_order(self) -> Iterable[Tensor]:
        return [self.data.all()] if self._prepared is None else [self._prepared]

    def _fold(self, index: int) -> Tensor:
        if self._prepared is None:
            return self.data.fold(index)
        return self._prepared[torch.arange(self.n) % n_folds(self.n) == index]

    def _off(self, z: Tensor) -> Tensor:
        """Centres of prompts seen from the mean; equal prompts differ from it by rounding, which is no direction."""
        centres = z.mean(1)
        off = centres - self.mean
        size = torch.linalg.vector_norm(centres, dim=-1, keepdim=True)
        real = torch.linalg.vector_norm(off, dim=-1, keepdim=True) > zero_row_floor(size, off.dtype)
        return torch.where(real, off, 0.0)


def _inner(z: Tensor) -> Tensor:
    """Views seen from their prompt's centre."""
    return (z - z.mean(1, keepdim=True)).reshape(-1, z.shape[-1])


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
