"""LiDAR: how many directions tell prompts apart once the scatter within a prompt's views is
whitened away."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, gram_entropy
from layerscope.metrics.vectors import (
    FOLDS,
    Options,
    RowPreparation,
    SiteVectors,
    doubles,
    n_folds,
    prepare_rows,
    zero_row_floor,
)

__all__ = ["PIVOT_UNITS", "lidar_estimate", "prepared_views", "seen_from"]

# A pivot of Σ_w's factor below so many units of rounding of its largest entry is rounding itself.
PIVOT_UNITS = 1024
# What a fold leaves of Σ_w along its own directions: below this share too few digits would be left,
# and Σ_w is factored anew.
_LEAST_LEFT = 1e-5


class Scatter:
    """Scatter of the prompts' centers (Σ_b) and of views around them (Σ_w), from which folds of
    prompts can be taken away."""

    def __init__(self, views: Tensor, rows: RowPreparation, delta: float) -> None:
        self.delta = delta
        self.n, self.q, self.d = views.shape
        # prepared rows need all of a view's rows, so they are kept; raw ones are read in blocks
        self.views = views if rows == "raw" else prepared_views(views, rows)
        if self.n >= FOLDS and 2 * self.n * self.q <= self.d:
            rotated = _rotated(self.views.double())
            if rotated is not None:
                self.views = rotated
                self.d = rotated.shape[-1]
        size = self.n * self.q
        self.mean = torch.stack([z.sum((0, 1)) for z in doubles(self.views)]).sum(0) / size
        self.within = torch.zeros(self.d, self.d, dtype=torch.float64, device=views.device)
        for z in doubles(self.views):
            inner = _inner(z)
            self.within.addmm_(inner.T, inner)
        # Σ_b of fewer prompts than dimensions has their rank: N×N is enough, from the centers
        # themselves
        self.by_prompts = self.n <= self.d
        if self.by_prompts:
            self.centers = self._off(self.views.double())
        else:
            self.between = torch.zeros_like(self.within)
            for z in doubles(self.views):
                off = self._off(z)
                self.between.addmm_(off.T, off)

    def whitened_without_folds(self) -> Iterator[Tensor | None]:
        """Yield what `whitened` gives without each fold of prompts."""
        folds = n_folds(self.n)
        factors: dict[int, _Factored | None] = {}
        for fold in range(folds):
            remaining = self.n - len(range(fold, self.n, folds))
            if not self.by_prompts:
                yield self.whitened(fold)
                continue
            if remaining not in factors:
                factors[remaining] = self._factored(remaining)
            downdated = self._downdated(fold, remaining, factors[remaining])
            yield self.whitened(fold) if downdated is None else downdated

    def _factored(self, n: int) -> _Factored | None:
        """Return of all prompts' Σ_w, scaled as that of n: its factor L, Z = L⁻¹ times the centers
        (D, N), and Zᵀ Z; None where the factor is not sound."""
        factor, failed = torch.linalg.cholesky_ex(self._noise(self.within, n))
        if int(failed) or not _is_sound(factor.diagonal().square()):
            return None
        centers = torch.linalg.solve_triangular(factor, self.centers.mT, upper=False)
        return factor, centers, centers.mT @ centers

    def _downdated(self, fold: int, n: int, factored: _Factored | None) -> Tensor | None:
        """Return what `whitened` gives without a fold, which leaves n prompts, from the factor of
        all; None where digits would be lost.

        With F the fold's rows and Y = L⁻¹ Fᵀ, (L Lᵀ − Fᵀ F)⁻¹ = L⁻ᵀ (1 + Y (1 − Yᵀ Y)⁻¹ Yᵀ) L⁻¹: a
        matrix of few rows is factored instead of Σ_w.
        """
        if factored is None:
            return None
        factor, centers, gram = factored
        inner = _inner(self._fold(fold)) / math.sqrt(n * self.q)
        fold_half = torch.linalg.solve_triangular(factor, inner.mT, upper=False)
        unit = torch.eye(len(inner), dtype=fold_half.dtype, device=fold_half.device)
        root, failed = torch.linalg.cholesky_ex(unit - fold_half.mT @ fold_half)
        if int(failed) or not bool(root.diagonal().square().min() > _LEAST_LEFT):
            return None
        across = torch.linalg.solve_triangular(root, fold_half.mT @ centers, upper=False)
        whole = torch.addmm(gram, across.mT, across)
        away = self._is_in(fold)
        # the others' mean is −1/n times the sum of those left out: seen from there
        shift = whole[:, away].sum(1) / n
        moved = shift[~away]
        remaining = whole[~away][:, ~away] + moved + moved.unsqueeze(1) + shift[away].sum() / n
        spread = float(remaining.diagonal().max())
        before = float(whole.diagonal().max())
        sound = _LEAST_LEFT * before < spread < math.inf and bool(remaining.isfinite().all())
        return remaining / n if sound else None

    def whitened(self, without: int | None = None) -> Tensor | None:
        """Return Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, or a matrix with the same eigenvalues, of all prompts
        (None) or without a fold.

        Whitening is through a Cholesky factor: the eigenvalues are the same as through Σ_w^{-1/2}.
        Where states are so large that δ is lost in the rounding of Σ_w, the factor is taken from
        the rows themselves, whose squares are not formed. None where even that has no room for δ.
        """
        noise, half_between = self._parts(without)
        factor, failed = torch.linalg.cholesky_ex(noise)
        if int(failed) or not _is_sound(factor.diagonal().square()):
            factor = self._factor_of_rows(without)
        if not _is_sound(factor.diagonal()):
            return None
        half = torch.linalg.solve_triangular(factor, half_between.mT, upper=False)
        if self.by_prompts:
            whitened = half.mT @ half
        else:
            whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
            whitened = (whitened + whitened.mT) / 2
        return whitened if bool(whitened.isfinite().all()) else None

    def _factor_of_rows(self, without: int | None) -> Tensor:
        """Return the Cholesky factor of Σ_w with δ on its diagonal, through a QR decomposition of
        what its square would be."""
        views = self.views if without is None else self.views[~self._is_in(without)]
        upper = torch.zeros(0, self.d, dtype=torch.float64, device=views.device)
        for z in doubles(views):
            upper = torch.linalg.qr(torch.cat([upper, _inner(z)]), mode="r").R
        scaled = upper / math.sqrt(max(1, len(views) * self.q))
        unit = torch.eye(self.d, dtype=torch.float64, device=views.device)
        upper = torch.linalg.qr(torch.cat([scaled, math.sqrt(self.delta) * unit]), mode="r").R
        return (upper * upper.diagonal().sign().unsqueeze(1)).mT

    def _parts(self, without: int | None) -> tuple[Tensor, Tensor]:
        """Return Σ_w with δ on its diagonal, and what Σ_b follows from: the centers over √n, or Σ_b
        itself."""
        if without is None:
            noise = self._noise(self.within, self.n)
            if self.by_prompts:
                return noise, self.centers / math.sqrt(self.n)
            return noise, self.between / self.n
        fold = self._fold(without)
        n = self.n - len(fold)
        inner = _inner(fold)
        off = self._off(fold)
        noise = self._noise(torch.addmm(self.within, inner.T, inner, alpha=-1.0), n)
        shift = -off.sum(0) / n  # the centers' mean without this fold, seen from the mean of all
        if self.by_prompts:
            return noise, (self.centers[~self._is_in(without)] - shift) / math.sqrt(n)
        between = torch.addmm(self.between, off.T, off, alpha=-1.0) / n
        return noise, between - torch.outer(shift, shift)

    def _noise(self, within: Tensor, n: int) -> Tensor:
        """Return Σ_w of n prompts, with δ on its diagonal."""
        noise = within / (n * self.q)
        noise.diagonal().add_(self.delta)
        return noise

    def _fold(self, index: int) -> Tensor:
        return self.views[index :: n_folds(self.n)].double()

    def _is_in(self, fold: int) -> Tensor:
        return torch.arange(self.n, device=self.views.device) % n_folds(self.n) == fold

    def _off(self, z: Tensor) -> Tensor:
        return seen_from(z.mean(1), self.mean)


_Factored = tuple[Tensor, Tensor, Tensor]


def _is_sound(pivots: Tensor) -> bool:
    """Return True if the smallest pivot of a factor is more than rounding of the largest."""
    return bool(pivots.min() > PIVOT_UNITS * torch.finfo(pivots.dtype).eps * pivots.max())


def seen_from(centers: Tensor, mean: Tensor) -> Tensor:
    """Return centers of prompts seen from the mean; equal prompts differ from it by rounding, which
    is not a direction."""
    off = centers - mean
    size = torch.linalg.vector_norm(centers, dim=-1, keepdim=True)
    real = torch.linalg.vector_norm(off, dim=-1, keepdim=True) > zero_row_floor(size, off.dtype)
    return torch.where(real, off, 0.0)


def prepared_views(views: Tensor, rows: RowPreparation) -> Tensor:
    """Return all views (n, q, D), float64, each prepared by itself."""
    return prepare_rows(views.double().transpose(0, 1), rows).transpose(0, 1)


def _rotated(z: Tensor) -> Tensor | None:
    """Return few vectors (n, q, D), seen from their mean, in as many dimensions as there are
    vectors: angles and lengths stay.

    δ is the same in all directions, so that those in which no vector lies do not matter. None where
    a prompt's center equals the mean, which rounding would hide.
    """
    mean = z.mean((0, 1))
    if not bool(seen_from(z.mean(1), mean).any(1).all()):
        return None
    upper = torch.linalg.qr((z - mean).flatten(0, 1).mT, mode="r").R
    return upper.mT.reshape(*z.shape[:2], -1)


def _inner(z: Tensor) -> Tensor:
    """Return each prompt's views around their mean, one below the other."""
    return (z - z.mean(1, keepdim=True)).flatten(0, 1)


def estimate_lidar(site: SiteVectors, options: Options) -> Estimate:
    """Return the entropy of the normalized eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2} (δ on the
    diagonal of Σ_w), over all views, with its standard error over folds of prompts."""
    return site.once(("lidar", options), lambda: _estimate(site, options))


def _estimate(site: SiteVectors, options: Options) -> Estimate:
    grouped, rows = site.in_groups(options.lidar_rows, options.group)
    scatter = Scatter(grouped.views_for("lidar"), rows, options.delta)
    value = _entropy(scatter.whitened(), options.alpha)
    left_out = []
    if math.isfinite(value):
        left_out = [
            _entropy(whitened, options.alpha) for whitened in scatter.whitened_without_folds()
        ]
    return lidar_estimate(site, value, left_out)


def _entropy(whitened: Tensor | None, alpha: float) -> float:
    return math.nan if whitened is None else float(gram_entropy(whitened, alpha))


def lidar_estimate(site: SiteVectors, value: float, left_out: list[float]) -> Estimate:
    """Return the estimate from the value and those without each fold.

    It is undefined where all prompts are the same, or states are too large for δ to be seen.
    """
    n, d = len(site), site.width
    if not all(map(math.isfinite, (value, *left_out))):
        return Estimate(math.nan, n, d, undefined=n)
    return Estimate(value, n, d, se=jackknife_error(left_out), df=len(left_out) - 1)


def estimate_lidar_rank(site: SiteVectors, options: Options) -> Estimate:
    """Return exp of LiDAR's entropy: the number Thilak et al. report."""
    entropy = estimate_lidar(site, options)
    return entropy.mapped(math.exp, slope=math.exp(entropy.value))


_CITATION = "Thilak et al. 2024"

LIDAR = Metric(
    MetricInfo(
        name="lidar",
        title="LiDAR",
        level="views",
        unit="nats",
        higher_means="more directions tell prompts apart in spite of augmentation",
        bounds="0 to log min(N − 1, D)",
        citation=_CITATION,
        normalizations=NORMALIZATIONS,
        core=True,
        order=60,
    ),
    estimate=estimate_lidar,
)

LIDAR_RANK = Metric(
    MetricInfo(
        name="lidar_rank",
        title="LiDAR rank",
        level="views",
        unit="dimensions",
        higher_means="more directions tell prompts apart in spite of augmentation",
        bounds="1 to min(N − 1, D)",
        citation=_CITATION,
        main=False,
    ),
    estimate=estimate_lidar_rank,
)
