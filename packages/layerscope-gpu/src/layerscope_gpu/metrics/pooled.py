"""Functions of the spectrum of pooled vectors, at several sites together.

All spectra are solved in float32 first. Where its rounding could show in a value, the whole data's
spectrum is solved in float64; where it shows in the standard error, the folds are too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics import Estimate, Metric, Options, SiteVectors, prepare_rows
from layerscope.metrics.entropy import rounding_floor
from layerscope.metrics.vectors import RowPreparation
from layerscope.metrics.spectral import (
    FoldSums,
    OfSpectrum,
    can_use_sums,
    fold_members,
    fold_scatters,
    spectral_estimate,
)
from layerscope_gpu.eigenvalues import eigvalsh
from layerscope_gpu.metrics import rounding
from layerscope_gpu.metrics.sums import sums_without
from layerscope_gpu.transfers import Sent
from layerscope_gpu.whitening import others

_GRAM_BYTES = 2**30  # of matrices that go to the solver together

Function = Callable[[Tensor], Tensor]


def is_spectral(metric: Metric) -> bool:
    """Return True for a metric that is a function of the spectrum."""
    return isinstance(metric.estimate, OfSpectrum)


def prepare(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> Callable[[], Mapping[str, Sequence[Estimate]]]:
    """Start solving the spectra that metrics need; those of sums are left in each site."""
    sums: dict[RowPreparation, Callable[[], None]] = {}  # by what the metrics ask for
    spectra: dict[RowPreparation, list[RoughSpectrum]] = {}
    solved: list[tuple[Metric, OfSpectrum, RowPreparation]] = []
    for metric in reversed(metrics):
        own = metric.estimate
        assert isinstance(own, OfSpectrum)
        preparation = own.rows or options.pooled_rows
        grouped, rows = sites_in_groups(sites, preparation, options)
        quick = rounding.fast_doubles(sites[0].rows.device) and can_use_sums(sites[0], options)
        if own.sums(options) is not None and quick:
            if preparation not in sums:
                sums[preparation] = _start_sums(grouped, rows)
            continue
        if preparation not in spectra:
            spectra[preparation] = rough_spectra(grouped, rows, options.clamp_gram)
        solved.append((metric, own, preparation))

    def finish() -> Mapping[str, Sequence[Estimate]]:
        for keep in sums.values():
            keep()
        return {
            metric.info.name: _estimates(spectra[preparation], own, metric, sites, options)
            for metric, own, preparation in solved
        }

    return finish


def sites_in_groups(
    sites: Sequence[SiteVectors], rows: RowPreparation, options: Options
) -> tuple[list[SiteVectors], RowPreparation]:
    """Return the sites and the preparation of their rows, see `SiteVectors.in_groups`."""
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
    """Eigenvalues from float32, on the host: of all rows (n,), and without each fold, stacked by
    size.

    `exactly` solves the whole data's spectrum in float64, and `again` the folds. What is solved
    again takes the place of what it corrects; `rough` is then the spectrum before.
    """

    whole: Tensor
    without: list[Tensor]
    exactly: Callable[[], Tensor]
    again: Callable[[], list[Tensor]]
    rough: Tensor | None = None
    is_settled: bool = False

    def sharpen(self, exact: Tensor) -> None:
        """Take over the whole data's spectrum from float64; what that shows to be empty is empty in
        the others as well.

        A Gram matrix without k rows has k empty dimensions fewer.
        """
        self.rough = self.whole
        self.whole = exact
        empty = int((exact <= rounding_floor(exact)).sum())
        for values in (self.rough.unsqueeze(0), *self.without):
            values[:, : max(0, empty - (len(exact) - values.shape[1]))] = 0.0

    def settles(self, function: Function, nats: bool) -> bool:
        """Return True if float32's rounding cannot show in the value or the standard error."""
        if self.rough is not None or self.is_settled:
            return True
        moved = float(rounding.moved_by_rounding(function, self.whole))
        allowed = rounding.NATS if nats else rounding.SHARE * abs(float(function(self.whole)))
        return moved <= allowed and rounding.will_do(moved, self._left_out(function))

    def evaluate(self, function: Function) -> tuple[float, float]:
        """Return the value and the standard error."""
        value = float(function(self.whole))
        left_out = self._left_out(function)
        if self.rough is not None and not self.is_settled:
            moved = abs(float(function(self.rough)) - value)
            if not rounding.will_do(moved, left_out):
                self.without = self.again()
                self.is_settled = True
                left_out = self._left_out(function)
        return value, jackknife_error(left_out)

    def _left_out(self, function: Function) -> list[float]:
        return [value for folds in self.without for value in function(folds).tolist()]


def _estimates(
    spectra: Sequence[RoughSpectrum],
    own: OfSpectrum,
    metric: Metric,
    sites: Sequence[SiteVectors],
    options: Options,
) -> list[Estimate]:
    def function(eigenvalues: Tensor) -> Tensor:
        return own.function(eigenvalues, options)

    unsure = [one for one in spectra if not one.settles(function, metric.info.unit == "nats")]
    for spectrum in unsure:
        spectrum.sharpen(spectrum.exactly())
    estimates = []
    for spectrum, site in zip(spectra, sites, strict=True):
        value = error = math.nan
        if float(spectrum.whole[-1]) > 0:
            value, error = spectrum.evaluate(function)
        estimates.append(spectral_estimate(site, value, error))
    return estimates


def rough_spectra(
    sites: Sequence[SiteVectors], rows: RowPreparation, clamp: bool
) -> list[RoughSpectrum]:
    """Return whole spectra and those without folds in float32, each size in one batch over all
    sites."""
    made = [[matrices.float() for matrices in fold_matrices(site, rows, clamp)] for site in sites]
    batches = [torch.cat(list(same)) for same in zip(*made, strict=True)]
    # the GPU has all of its work before the host waits
    solved = [eigvalsh(batch, overwrite=True) for batch in batches]
    whole, *stacked = [values.clamp(min=0).double().cpu() for values in solved]
    if rows.startswith("centered") and not clamp and len(sites[0]) <= sites[0].width:
        whole[:, 0] = 0.0  # rows that sum to zero, scaled or not, miss one dimension
    by_site = [values.unflatten(0, (len(sites), -1)) for values in stacked]
    return [
        RoughSpectrum(
            whole[i].clone(),
            [values[i].clone() for values in by_site],
            partial(_solve_whole, site, rows, clamp),
            partial(_solve_folds, site, rows, clamp),
        )
        for i, site in enumerate(sites)
    ]


def fold_matrices(site: SiteVectors, rows: RowPreparation, clamp: bool) -> list[Tensor]:
    """Return the matrix of all rows (1, n, n), then those without each fold, stacked by size."""
    n = len(site)
    members = fold_members(n, site.rows.device)
    if n <= site.width:
        gram = gram_matrices([site], rows)
        rests = [others(part, n) for part in members]
        made = [gram, *(gram[0, rest.unsqueeze(-1), rest.unsqueeze(-2)] for rest in rests)]
    else:
        whole, *without = fold_scatters(site.rows, rows)
        made = [whole.unsqueeze(0), torch.stack(without)]
    return [matrices.clamp(min=0) for matrices in made] if clamp else made


def _solve_whole(site: SiteVectors, rows: RowPreparation, clamp: bool) -> Tensor:
    return _solve(fold_matrices(site, rows, clamp)[0])[0]


def _solve_folds(site: SiteVectors, rows: RowPreparation, clamp: bool) -> list[Tensor]:
    return [_solve(matrices) for matrices in fold_matrices(site, rows, clamp)[1:]]


def _solve(matrices: Tensor) -> Tensor:
    """Return eigenvalues, clamped at zero, float64 on the host."""
    return eigvalsh(matrices.double()).clamp(min=0).cpu()
