"""LiDAR: how many directions tell prompts apart once the scatter within a prompt's views is
whitened away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import (
    NORMALIZATIONS,
    gram_entropy,
    moved_by_rounding,
    spectrum_entropy,
)
from layerscope.metrics.folds import NATS, fold_members, in_groups
from layerscope.metrics.options import Options, RowPreparation, prepare_rows, zero_row_floor
from layerscope.metrics.samples import FOLDS, ViewRows, n_folds, stacked
from layerscope.spectra import Sent, eigvalsh, faster
from layerscope.spectra.execution import free_memory
from layerscope.spectra.resolvents import fast_doubles

_CITATION = "Thilak et al. 2024"
# float32 will do for the folds if it moves the whole data's value by less than this share of the
# standard error.
_SHARE_OF_ERROR = 0.25
# A pivot of Σ_w's factor below so many units of rounding of its largest entry is rounding itself.
_PIVOT_UNITS = 1024
# What a fold leaves of Σ_w along its own directions: below this share too few digits would be left,
# and Σ_w is factored anew.
_LEAST_LEFT = 1e-5
# For scatter matrices of several data at once on a GPU: bytes, and the share of what is free.
_MOST_BYTES, _SHARE_OF_MEMORY = 5 * 2**29, 0.1


class LiDAR(Metric[ViewRows]):
    """Entropy of the normalized eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2} (δ on the diagonal of
    Σ_w), over all views."""

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
        order=60,
    )

    def prepare(self, many: Sequence[ViewRows]) -> Callable[[], None] | None:
        """With the extra `gpu`, all data and folds together in float32; in float64 where its
        rounding could show."""
        there = [data for data in many if data.on_gpu and len(data) >= 2 and data.n_views >= 2]
        there = [data for data in there if ("lidar queued", self.options) not in data._memo]
        gpu = faster.on(there[0].device) if there else None
        if (
            gpu is None
            or self.options.alpha < 1
            or len({(len(data), data.width) for data in there}) > 1
        ):
            return None
        for data in there:
            data._memo["lidar queued", self.options] = True  # its rank is made of the same
        at_once, o = _sites_at_once(there[0]), self.options
        parts, folds = [], list[Tensor]()
        for i in range(0, len(there), at_once):
            some_given = [in_groups(data, o.lidar_rows, o.group) for data in there[i : i + at_once]]
            (whole, *left_out), fine = whitened_together(
                gpu, [data for data, _ in some_given], some_given[0][1], o.delta
            )
            parts.append((whole, fine))
            folds = folds or [some.new_empty(len(there), *some.shape[1:]) for some in left_out]
            for every, some in zip(
                folds, left_out, strict=True
            ):  # at once: gathered at the end, they would be held twice
                every[i : i + at_once] = some
        wholes, safe = (torch.cat(some) for some in zip(*parts, strict=True))
        # what float32 loses is allowed for below; of the folds only a standard error is made
        near, *left_out = [
            eigvalsh(batch, overwrite=True)
            for batch in (wholes.float(), *(some.flatten(0, 1) for some in folds))
        ]
        moved = moved_by_rounding(self._entropy, near.double().clamp(min=0))
        without = torch.cat([self._entropy(some).view(len(there), -1) for some in left_out], dim=1)
        return partial(
            self._finish,
            there,
            wholes,
            [Sent(values) for values in (self._entropy(near), moved, safe, without)],
        )

    def _finish(self, there: Sequence[ViewRows], wholes: Tensor, found: Sequence[Sent]) -> None:
        """Keep what was found in float32 of each data, or solve it in float64."""
        rough, moved, safe, without = (values.get().tolist() for values in found)
        sure = [
            far <= NATS and self._will_do(far, left_out)
            for far, left_out in zip(moved, without, strict=True)
        ]
        unsure = [
            i for i, value in enumerate(rough) if safe[i] and not sure[i] and math.isfinite(value)
        ]
        exact = (
            dict(
                zip(unsure, gram_entropy(wholes[unsure], self.options.alpha).tolist(), strict=True)
            )
            if unsure
            else {}
        )
        for i, data in enumerate(there):
            value = exact.get(i, rough[i])
            if safe[i] and (i not in exact or self._will_do(abs(rough[i] - value), without[i])):
                data._memo["lidar", self.options] = self._result(data, value, without[i])

    def _entropy(self, eigenvalues: Tensor) -> Tensor:
        return spectrum_entropy(eigenvalues.double(), self.options.alpha)

    @staticmethod
    def _will_do(moved: float, left_out: list[float]) -> bool:
        """Whether folds that are each off by so much give the standard error."""
        return moved * math.sqrt(len(left_out)) <= _SHARE_OF_ERROR * jackknife_error(left_out)

    def estimate(self, data: ViewRows) -> Estimate:
        """The entropy, with its standard error over folds of prompts."""
        data.need_views(2, self.info.name)
        key = ("lidar", self.options)
        if key not in data._memo:
            o = self.options
            given, rows = in_groups(data, o.lidar_rows, o.group)
            scatter = _Scatter(given, o, rows)
            value = scatter.entropy()
            data._memo[key] = self._result(
                data, value, scatter.entropies_without() if math.isfinite(value) else []
            )
        return data._memo[key]

    def _result(self, data: ViewRows, value: float, left_out: list[float]) -> Estimate:
        n, d = len(data), data.width
        if not all(
            map(math.isfinite, (value, *left_out))
        ):  # all prompts the same, or states too large for δ to be seen
            return Estimate(math.nan, n, d, undefined=n)
        rank = min(d, n * (data.n_views - 1))
        return Estimate(
            value,
            n,
            d,
            se=jackknife_error(left_out),
            df=len(left_out) - 1,
            notes={"within_rank": rank},
        )


class _Scatter:
    """Scatter of the prompts' centers (Σ_b) and of views around them (Σ_w), from which folds of
    prompts can be taken away."""

    def __init__(self, data: ViewRows, options: Options, rows: RowPreparation = "raw") -> None:
        self.data, self.options = data, options
        self.n, self.q, self.d = len(data), data.n_views, data.width
        # prepared rows need all of a view's rows, so they are kept; raw ones are read fold by fold
        self._prepared = None if rows == "raw" else _prepared(data, rows)
        if self.n >= FOLDS and 2 * self.n * self.q <= self.d and not data.on_gpu:
            rotated = _rotated(data.all() if self._prepared is None else self._prepared)
            if rotated is not None:
                self._prepared, self.d = rotated, rotated.shape[-1]
        self.mean = torch.zeros(self.d, dtype=torch.float64, device=data.device)
        for z in self._blocks():
            self.mean += z.sum((0, 1))
        self.mean /= self.n * self.q
        # Σ_b of fewer prompts than dimensions has their rank: N×N is enough, from the centers
        # themselves
        self.by_prompts = self.n <= self.d
        self.centers = (
            self._off(data.all() if self._prepared is None else self._prepared)
            if self.by_prompts
            else None
        )
        empty = torch.zeros(self.d, self.d, dtype=torch.float64, device=data.device)
        self.between = torch.zeros(0) if self.by_prompts else empty.clone()
        self.within = empty
        for z in self._blocks():
            if not self.by_prompts:
                off = self._off(z)
                self.between.addmm_(off.T, off)
            inner = _inner(z)
            self.within.addmm_(inner.T, inner)

    def entropy(self, without: int | None = None) -> float:
        """S_α of the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, of all prompts or without one fold;
        NaN where none is defined."""
        whitened = self.whitened(without)
        return math.nan if whitened is None else float(gram_entropy(whitened, self.options.alpha))

    def entropies_without(self) -> list[float]:
        """`entropy` without each fold of prompts."""
        folds = n_folds(self.n)
        if not self.by_prompts:
            return [self.entropy(fold) for fold in range(folds)]
        sizes = [len(range(fold, self.n, folds)) for fold in range(folds)]
        factored = {size: self._factored(self.n - size) for size in set(sizes)}
        values = []
        for fold, size in enumerate(sizes):
            whitened = self._downdated(fold, self.n - size, factored[size])
            values.append(
                self.entropy(fold)
                if whitened is None
                else float(gram_entropy(whitened, self.options.alpha))
            )
        return values

    def _factored(self, n: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Of all prompts' Σ_w, scaled as that of n: its factor L, Z = L⁻¹ times the centers (D, N),
        and Zᵀ Z.

        None where the factor is not sound.
        """
        factor, failed = torch.linalg.cholesky_ex(self._noise(self.within, n))
        if int(failed) or not _is_sound(factor.diagonal().square()):
            return None
        assert self.centers is not None
        centers = torch.linalg.solve_triangular(factor, self.centers.mT, upper=False)
        return factor, centers, centers.mT @ centers

    def _downdated(
        self, fold: int, n: int, factored: tuple[Tensor, Tensor, Tensor] | None
    ) -> Tensor | None:
        """What `whitened` gives without a fold, which leaves n prompts, from the factor of all;
        None where digits would be lost.

        With F the fold's rows and Y = L⁻¹ Fᵀ, (L Lᵀ − Fᵀ F)⁻¹ = L⁻ᵀ (1 + Y (1 − Yᵀ Y)⁻¹ Yᵀ) L⁻¹: a
        matrix of few rows is factored instead of Σ_w.
        """
        if factored is None:
            return None
        factor, centers, gram = factored
        inner = torch.cat([_inner(z) for z in self._fold(fold)]) / math.sqrt(n * self.q)
        own = torch.linalg.solve_triangular(factor, inner.mT, upper=False)
        left, failed = torch.linalg.cholesky_ex(
            torch.eye(len(inner), dtype=own.dtype, device=own.device) - own.mT @ own
        )
        if int(failed) or not bool(left.diagonal().square().min() > _LEAST_LEFT):
            return None
        more = torch.linalg.solve_triangular(left, own.mT @ centers, upper=False)
        whole = torch.addmm(gram, more.mT, more)
        away = torch.arange(self.n, device=own.device) % n_folds(self.n) == fold
        # the others' mean is −1/n times the sum of those left out: seen from there
        shift = whole[:, away].sum(1) / n
        moved = shift[~away]
        rest = whole[~away][:, ~away] + moved + moved.unsqueeze(1) + shift[away].sum() / n
        spread, before = float(rest.diagonal().max()), float(whole.diagonal().max())
        sound = _LEAST_LEFT * before < spread < math.inf and bool(rest.isfinite().all())
        return rest / n if sound else None

    def whitened(self, without: int | None = None) -> Tensor | None:
        """Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, or a matrix with the same eigenvalues, of all prompts (None)
        or without a fold.

        Whitening is through a Cholesky factor: the eigenvalues are the same as through Σ_w^{-1/2}.
        Where states are so large that δ is lost in the rounding of Σ_w, the factor is taken from
        the rows themselves, whose squares are not formed. None where even that has no room for δ.
        """
        noise, what = self._parts(without)
        factor, failed = torch.linalg.cholesky_ex(noise)
        if int(failed) or not _is_sound(factor.diagonal().square()):
            factor = self._factor_of_rows(without)
        if not _is_sound(factor.diagonal()):
            return None
        half = torch.linalg.solve_triangular(factor, what.mT, upper=False)
        if self.centers is not None:
            whitened = half.mT @ half
        else:
            whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
            whitened = (whitened + whitened.mT) / 2
        return whitened if bool(whitened.isfinite().all()) else None

    def _factor_of_rows(self, without: int | None) -> Tensor:
        """The Cholesky factor of Σ_w with δ on its diagonal, through a QR decomposition of what its
        square would be."""
        folds = [k for k in range(n_folds(self.n)) if k != without]
        blocks = self._blocks() if without is None else (z for k in folds for z in self._fold(k))
        upper, n = torch.zeros(0, self.d, dtype=torch.float64, device=self.mean.device), 0
        for z in blocks:
            upper, n = torch.linalg.qr(torch.cat([upper, _inner(z)]), mode="r").R, n + len(z)
        delta = math.sqrt(self.options.delta) * torch.eye(
            self.d, dtype=torch.float64, device=upper.device
        )
        upper = torch.linalg.qr(
            torch.cat([upper / math.sqrt(max(1, n * self.q)), delta]), mode="r"
        ).R
        return (upper * upper.diagonal().sign().unsqueeze(1)).mT

    def _parts(self, without: int | None) -> tuple[Tensor, Tensor]:
        """Σ_w with δ on its diagonal, and what Σ_b follows from: the centers over √n, or Σ_b
        itself."""
        n, within, between, shift = self.n, self.within, self.between, torch.zeros_like(self.mean)
        if without is not None:
            within, between, moved = within.clone(), between.clone(), shift
            for z in self._fold(without):
                off, inner = self._off(z), _inner(z)
                n -= len(z)
                within.addmm_(inner.T, inner, alpha=-1.0)
                moved = moved + off.sum(0)
                if not self.by_prompts:
                    between.addmm_(off.T, off, alpha=-1.0)
            shift = -moved / n  # the centers' mean without this fold, seen from the mean of all
        noise = self._noise(within, n)
        if self.centers is None:
            return noise, between / n - torch.outer(shift, shift)
        stay = self.centers
        if without is not None:
            at = torch.arange(self.n, device=stay.device)
            stay = stay[at % n_folds(self.n) != without] - shift
        return noise, stay / math.sqrt(n)

    def _noise(self, within: Tensor, n: int) -> Tensor:
        """Σ_w of n prompts, with δ on its diagonal."""
        noise = within / (n * self.q)
        noise.diagonal().add_(self.options.delta)
        return noise

    def _blocks(self) -> Iterable[Tensor]:
        return self.data.blocks() if self._prepared is None else [self._prepared]

    def _fold(self, index: int) -> Iterable[Tensor]:
        if self._prepared is None:
            return self.data.fold_blocks(index)
        return [
            self._prepared[
                torch.arange(self.n, device=self._prepared.device) % n_folds(self.n) == index
            ]
        ]

    def _off(self, z: Tensor) -> Tensor:
        return _seen_from(z.mean(1), self.mean)


def _sites_at_once(data: ViewRows) -> int:
    """Of how many data the scatter is worked out together."""
    n, q, d = len(data), data.n_views, data.width
    each = 4 * 8 * (n * q * d + (n_folds(n) + 1) * d * d)
    return (
        max(1, min(_MOST_BYTES, int(_SHARE_OF_MEMORY * free_memory(data.device))) // each)
        if data.device.type == "cuda"
        else 2
    )


def whitened_together(
    gpu: Any, many: Sequence[ViewRows], rows: RowPreparation, delta: float
) -> tuple[list[Tensor], Tensor]:
    """What `_Scatter.whitened` gives, in few steps for a GPU: of several data of one size, two
    prompts or more.

    Of all prompts (B, n, n), then without each fold, stacked by size (B, folds, m, m), float32. And
    whether that can be used (B,): not where δ could be lost in rounding, which is for `_Scatter`.
    """
    n, device = len(many[0]), many[0].device
    members = fold_members(n, device)
    # fold by fold, so that the rows of each lie side by side: a copy of all views would take longer
    # than their products
    places = torch.cat([some.flatten() for some in members])
    if rows == "raw":
        z = stacked(many, places=places)
    else:
        z = torch.stack([_prepared(data, rows) for data in many])[:, places]
    centers = z.mean(2)
    off = torch.empty_like(centers)
    off[:, places] = _seen_from(centers, centers.mean(1, keepdim=True))
    inner = z.sub_(centers.unsqueeze(2))
    largest = (
        torch.linalg.vector_norm(inner, dim=(1, 2)).square().amax(-1)
    )  # on the diagonal of Σ_w
    safe = largest <= delta * n * many[0].n_views / (_PIVOT_UNITS * torch.finfo(inner.dtype).eps)
    return gpu.whitening.whitened(
        inner, off, members, delta, by_products=fast_doubles(device)
    ), safe


def _is_sound(pivots: Tensor) -> bool:
    """Whether the smallest pivot of a factor is more than rounding of the largest."""
    return bool(pivots.min() > _PIVOT_UNITS * torch.finfo(pivots.dtype).eps * pivots.max())


def _seen_from(centers: Tensor, mean: Tensor) -> Tensor:
    """Centers of prompts seen from the mean; equal prompts differ from it by rounding, which is not
    a direction."""
    off = centers - mean
    size = torch.linalg.vector_norm(centers, dim=-1, keepdim=True)
    real = torch.linalg.vector_norm(off, dim=-1, keepdim=True) > zero_row_floor(size, off.dtype)
    return torch.where(real, off, 0.0)


def _prepared(data: ViewRows, rows: RowPreparation) -> Tensor:
    """All views in canonical order (n, q, D), each prepared by itself."""
    return prepare_rows(data.all().transpose(0, 1), rows).transpose(0, 1)


def _rotated(z: Tensor) -> Tensor | None:
    """Few vectors (n, q, D), seen from their mean, in as many dimensions as there are vectors:
    angles and lengths stay.

    δ is the same in all directions, so that those in which no vector lies do not matter. None where
    a prompt's center equals the mean, which rounding would hide.
    """
    mean = z.mean((0, 1))
    if not bool(_seen_from(z.mean(1), mean).any(1).all()):
        return None
    upper = torch.linalg.qr((z - mean).flatten(0, 1).mT, mode="r").R
    return upper.mT.reshape(*z.shape[:2], -1)


def _inner(z: Tensor) -> Tensor:
    """Views seen from their prompt's center."""
    return (z - z.mean(1, keepdim=True)).reshape(-1, z.shape[-1])


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
        main=False,
    )

    def estimate(self, data: ViewRows) -> Estimate:
        entropy = super().estimate(data)
        return entropy.mapped(math.exp, slope=math.exp(entropy.value))
