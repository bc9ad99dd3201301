"""Functions of the spectrum of pooled vectors, at several sites together.

All spectra are solved in float32 first. Where its rounding could change a value, the spectrum of
all rows is solved in float64. Where it changes the standard error, the folds are as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics import Estimate, Metric, Options, SiteVectors, prepare_rows
from layerscope.metrics.entropy import rounding_floor
from layerscope.metrics.spectral import (
    FoldSums,
    OfSpectrum,
    can_use_sums,
    fold_members,
    fold_scatters,
    spectral_estimate,
)
from layerscope.metrics.vectors import RowPreparation
from layerscope_gpu.eigenvalues import eigvalsh
from layerscope_gpu.metrics import Finish, rounding
from layerscope_gpu.metrics.sums import sums_without
from layerscope_gpu.transfers import Sent
from layerscope_gpu.whitening import complements

_GRAM_BYTES = 2**30  # of matrices that are solved together

Function = Callable[[Tensor], Tensor]


def is_spectral(metric: Metric) -> bool:
    """Return True for a metric that is a function of the spectrum."""
    return isinstance(metric.estimate, OfSpectrum)


def prepare(metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options) -> Finish:
    """Start solving the spectra that metrics need; power sums are stored in each site."""
    sums: dict[RowPreparation, Callable[[], None]] = {}
    spectra: dict[RowPreparation, list[RoughSpectrum]] = {}
    solved: list[tuple[Metric, OfSpectrum, RowPreparation]] = []
    for metric in reversed(metrics):
        estimator = metric.estimate
        assert isinstance(estimator, OfSpectrum)
        preparation = estimator.rows or options.pooled_rows
        grouped, rows = sites_in_groups(sites, preparation, options)
        quick = rounding.fast_doubles(sites[0].rows.device) and can_use_sums(sites[0], options)
        if estimator.sums(options) is not None and quick:
            if preparation not in sums:
                sums[preparation] = _start_sums(grouped, rows)
            continue
        if preparation not in spectra:
            spectra[preparation] = rough_spectra(grouped, rows, options.clamp_gram)
        solved.append((metric, estimator, preparation))

    def finish() -> dict[str, list[Estimate]]:
        for keep in sums.values():
            keep()
        return {
            metric.info.name: _estimates(spectra[preparation], estimator, metric, sites, options)
            for metric, estimator, preparation in solved
        }

    return finish


def sites_in_groups(
    sites: Sequence[SiteVectors], rows: RowPreparation, options: Options
) -> tuple[list[SiteVectors], RowPreparation]:
    """Apply `SiteVectors.in_groups` to each site; return the sites and their preparation."""
    grouped = [site.in_groups(rows, options.group) for site in sites]
    return [site for site, _ in grouped], grouped[0][1]


def _start_sums(sites: Sequence[SiteVectors], rows: RowPreparation) -> Callable[[], None]:
    n = len(sites[0])
    at_once = max(1, _GRAM_BYTES // (8 * n * n))
    members = fold_members(n, sites[0].rows.device)
    sent = []
    for start in range(0, len(sites), at_once):
        whole, without = sums_without(gram_matrices(sites[start : start + at_once], rows), members)
        sent.append((Sent(whole), Sent(without)))

    def keep() -> None:
        wholes = torch.cat([whole.get() for whole, _ in sent])
        withouts = torch.cat([without.get() for _, without in sent])
        for site, whole, without in zip(sites, wholes, withouts, strict=True):
            site.shared["sums", rows] = FoldSums(whole, without)

    return keep


def gram_matrices(sites: Sequence[SiteVectors], rows: RowPreparation) -> Tensor:
    """Return the N×N matrices of sites of the same prompts (B, N, N), float64."""
    prepared = prepare_rows(torch.stack([site.rows for site in sites]).double(), rows)
    return prepared @ prepared.mT


@dataclass
class RoughSpectrum:
    """Eigenvalues of one site from float32, on the host: of all rows (n,), and without each fold,
    stacked by size.

    `rough` is the float32 spectrum of all rows after `replace_whole`.
    """

    site: SiteVectors
    rows: RowPreparation
    clamp: bool
    whole: Tensor
    without: list[Tensor]
    rough: Tensor | None = None
    is_settled: bool = False

    def replace_whole(self) -> None:
        """Solve the spectrum of all rows in float64, and set dimensions that are empty in it to
        zero in the other spectra.

        A Gram matrix without k rows has k empty dimensions fewer.
        """
        exact = _solve(fold_matrices(self.site, self.rows, self.clamp)[0])[0]
        self.rough = self.whole
        self.whole = exact
        empty = int((exact <= rounding_floor(exact)).sum())
        for values in (self.rough.unsqueeze(0), *self.without):
            values[:, : max(0, empty - (len(exact) - values.shape[1]))] = 0.0

    def settles(self, function: Function, nats: bool) -> bool:
        """Return True if rounding to float32 cannot change the value or the standard error."""
        if self.rough is not None or self.is_settled:
            return True
        moved = float(rounding.moved_by_rounding(function, self.whole))
        allowed = rounding.NATS if nats else rounding.SHARE * abs(float(function(self.whole)))
        return moved <= allowed and rounding.is_negligible(moved, self._left_out(function))

    def evaluate(self, function: Function) -> tuple[float, float]:
        """Return the value and the standard error."""
        value = float(function(self.whole))
        left_out = self._left_out(function)
        if self.rough is not None and not self.is_settled:
            moved = abs(float(function(self.rough)) - value)
            if not rounding.is_negligible(moved, left_out):
                folds = fold_matrices(self.site, self.rows, self.clamp)[1:]
                self.without = [_solve(matrices) for matrices in folds]
                self.is_settled = True
                left_out = self._left_out(function)
        return value, jackknife_error(left_out)

    def _left_out(self, function: Function) -> list[float]:
        return [value for folds in self.without for value in function(folds).tolist()]


def _estimates(
    spectra: Sequence[RoughSpectrum],
    estimator: OfSpectrum,
    metric: Metric,
    sites: Sequence[SiteVectors],
    options: Options,
) -> list[Estimate]:
    def function(eigenvalues: Tensor) -> Tensor:
        return estimator.function(eigenvalues, options)

    estimates = []
    for spectrum, site in zip(spectra, sites, strict=True):
        if not spectrum.settles(function, metric.info.unit == "nats"):
            spectrum.replace_whole()
        value = error = math.nan
        if float(spectrum.whole[-1]) > 0:
            value, error = spectrum.evaluate(function)
        estimates.append(spectral_estimate(site, value, error))
    return estimates


def rough_spectra(
    sites: Sequence[SiteVectors], rows: RowPreparation, clamp: bool
) -> list[RoughSpectrum]:
    """Solve the spectra of sites in float32, all matrices of one size in one batch."""
    matrices_by_site = [
        [matrices.float() for matrices in fold_matrices(site, rows, clamp)] for site in sites
    ]
    batches = [torch.cat(list(batch)) for batch in zip(*matrices_by_site, strict=True)]
    # all of the GPU's work is queued before the host waits
    solved = [eigvalsh(batch, overwrite=True) for batch in batches]
    whole, *stacked = [values.clamp(min=0).double().cpu() for values in solved]
    if rows.startswith("centered") and not clamp and len(sites[0]) <= sites[0].width:
        whole[:, 0] = 0.0  # rows that sum to zero, scaled or not, have one empty dimension
    by_site = [values.unflatten(0, (len(sites), -1)) for values in stacked]
    return [
        RoughSpectrum(
            site, rows, clamp, whole[i].clone(), [values[i].clone() for values in by_site]
        )
        for i, site in enumerate(sites)
    ]


def fold_matrices(site: SiteVectors, rows: RowPreparation, clamp: bool) -> list[Tensor]:
    """Return the matrix of all rows (1, n, n), then those without each fold, stacked by size."""
    n = len(site)
    members = fold_members(n, site.rows.device)
    if n <= site.width:
        gram = gram_matrices([site], rows)
        remaining_rows = [complements(fold, n) for fold in members]
        matrices = [
            gram,
            *(
                gram[0, remaining.unsqueeze(-1), remaining.unsqueeze(-2)]
                for remaining in remaining_rows
            ),
        ]
    else:
        whole, *without = fold_scatters(site.rows, rows)
        matrices = [whole.unsqueeze(0), torch.stack(without)]
    return [batch.clamp(min=0) for batch in matrices] if clamp else matrices


def _solve(matrices: Tensor) -> Tensor:
    """Return eigenvalues, clamped at zero, float64 on the host."""
    return eigvalsh(matrices.double()).clamp(min=0).cpu()
