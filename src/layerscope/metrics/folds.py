"""Spectra of pooled vectors, whole and with each fold of prompts left out: where standard errors
come from.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block, so memory is O(D²)
for any N. Rows are prepared once, with the mean of all: what a fold leaves behind is a part of the
same matrix (docs/decisions/intervals.md).

Leaving a fold out of an N×N Gram matrix removes its rows. Where sums over a spectrum suffice,
spectra/resolvents.py gives those of what remains from one decomposition: solving 20 more matrices
would take ten times as long. On a GPU all spectra are solved in float32 first. Where its rounding
could show in a value, the whole data's spectrum is solved in float64; where it shows in the
standard error, the folds are too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.entropy import (
    gram_entropy,
    moved_by_rounding,
    rounding_floor,
    spectrum_entropy,
)
from layerscope.metrics.options import RowPreparation, prepare_rows
from layerscope.metrics.samples import n_folds, stacked
from layerscope.spectra import Sent, eigvalsh, joined
from layerscope.spectra.resolvents import fast_doubles, sums_without

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows, ViewRows


Vectors = TypeVar("Vectors", "PooledRows", "ViewRows")


def in_groups(
    data: Vectors, rows: RowPreparation, group: int | None
) -> tuple[Vectors, RowPreparation]:
    """Return the data and the preparation of its rows; with `group`, data whose rows were centered
    inside consecutive groups, in order of arrival, as the released code does."""
    if group is None or not rows.startswith("centered"):
        return data, rows
    key = ("in groups", rows, group)
    if key not in data._memo:
        whole = torch.cat(list(data.blocks())).movedim(0, -2)
        parts = [prepare_rows(part, rows) for part in whole.split(group, dim=-2)]
        data._memo[key] = data.with_vectors(torch.cat(parts, dim=-2).movedim(-2, 0))
    return data._memo[key], "raw"


def prepared_view(data: ViewRows, index: int, rows: RowPreparation) -> Tensor:
    """One view's vectors, prepared, in canonical order. On a GPU they are remembered."""
    key = ("view", index, rows)
    if key in data._memo:
        return data._memo[key]
    prepared = prepare_rows(data.view(index), rows)
    if data.on_gpu:
        data._memo[key] = prepared
    return prepared


def prepare_views(many: Sequence[ViewRows], rows: RowPreparation) -> None:
    """The first two views of several data of as many prompts each, together: a GPU waits longer for
    many small steps."""
    left = [data for data in many if ("view", 0, rows) not in data._memo]
    if not left:
        return
    for index in (0, 1):
        for data, prepared in zip(left, prepare_rows(stacked(left, index), rows), strict=True):
            data._memo["view", index, rows] = prepared


def fold_members(n: int, device: torch.device) -> list[Tensor]:
    """Which of n samples in canonical order are in which fold (folds, size): at most two sizes,
    each stacked."""
    folds = n_folds(n)
    if not folds:
        return []
    larger = n % folds
    at = torch.arange(folds, device=device).unsqueeze(-1) + folds * torch.arange(
        -(-n // folds), device=device
    )
    return [part for part in (at[:larger], at[larger:, : n // folds]) if part.numel()]


def left_in(members: Tensor, n: int) -> Tensor:
    """Which of n samples are left without each fold (folds, n − size), given which are in it
    (folds, size).

    Every `folds`-th sample is in the same fold, so between two that are left out all others follow
    in order.
    """
    folds, size = members.shape
    at = torch.arange(n - size, device=members.device).expand(folds, -1)
    return at + torch.searchsorted(
        members - torch.arange(size, device=members.device), at.contiguous(), right=True
    )


def fold_matrices(data: PooledRows, rows: RowPreparation, clamp: bool) -> list[Tensor]:
    """The matrix of all rows (n, n), then those without each fold (folds, m, m): large ones on a
    CPU one by one, else by size."""
    made = _grams(data, rows) if len(data) <= data.width else _scatters(data, rows)
    return [m.clamp(min=0) for m in made] if clamp else made


def whole_matrix(data: PooledRows, rows: RowPreparation, clamp: bool) -> Tensor:
    """The matrix of all rows alone."""
    if len(data) > data.width:
        return fold_matrices(data, rows, clamp)[0]
    gram = whole_matrices([data], rows)[0]
    return gram.clamp(min=0) if clamp else gram


def whole_matrices(many: Sequence[PooledRows], rows: RowPreparation) -> Tensor:
    """The N×N matrices of several data of as many rows each (B, N, N)."""
    prepared = prepare_rows(stacked(many), rows)
    return prepared @ prepared.mT


_FEW_ROWS = 256  # the matrices without each of 20 folds take 10 MB


def _grams(data: PooledRows, rows: RowPreparation) -> list[Tensor]:
    """N×N."""
    gram = whole_matrix(data, rows, False)
    out = [gram]
    for members in fold_members(len(gram), gram.device):
        rest = left_in(members, len(gram))
        together = data.on_gpu or len(gram) <= _FEW_ROWS
        out += [
            gram[some.unsqueeze(-1), some.unsqueeze(-2)]
            for some in ([rest] if together else rest.split(1))
        ]
    return out


def _scatters(data: PooledRows, rows: RowPreparation) -> list[Tensor]:
    """D×D, in one pass: the scatter of each fold, from which the whole and what is left without a
    fold follow."""
    d = data.width
    mean = None
    if rows.startswith("centered"):
        mean = torch.zeros(d, dtype=torch.float64, device=data.device)
        for z in data.blocks():
            mean += z.sum(0)
        mean /= len(data)
    folds = torch.zeros(n_folds(len(data)), d, d, dtype=torch.float64, device=data.device)
    for z, members in data.blocks_by_fold():
        prepared = prepare_rows(z, rows, mean)
        for scatter, rows_of in zip(folds, members, strict=True):
            some = prepared[rows_of]
            scatter.addmm_(some.T, some)
    whole = folds.sum(0)
    without = folds.neg_().add_(whole)
    return [whole, *([without] if data.on_gpu else without.split(1))] if len(without) else [whole]


FEWEST = 64  # rows: spectra of smaller matrices are as fast to solve
_GRAM_BYTES = 2**30  # of matrices that go to the GPU's solver together

OfSums = Callable[[Tensor], Tensor]


def entropy_of_sums(sums: Tensor) -> Tensor:
    """S_1 from (Σ x, Σ x log x, Σ √x, Σ √x log x) along the last dimension."""
    return (sums[..., 0].log() - sums[..., 1] / sums[..., 0]).clamp(min=0)


def effective_rank_of_sums(sums: Tensor) -> Tensor:
    """exp of the entropy of q ∝ √x, from the same sums."""
    return (sums[..., 2].log() - sums[..., 3] / (2 * sums[..., 2])).clamp(min=0).exp()


def entropy_rank_of_sums(sums: Tensor) -> Tensor:
    """exp(S_1), from the same sums."""
    return entropy_of_sums(sums).exp()


class SumsOfMany:
    """The power sums of several spectra (B, 4), and of those without each fold (B, folds, 4).

    On a GPU they may still be on their way: the host waits for them only when a value is asked for.
    """

    def __init__(self, whole: Tensor, without: Tensor) -> None:
        self._sent = Sent(whole), Sent(without)
        self._values: dict[OfSums, tuple[list[float], list[list[float]]]] = {}

    @cached_property
    def _here(self) -> tuple[Tensor, Tensor]:
        whole, without = self._sent
        return whole.get(), without.get()

    def evaluate(self, index: int, function: OfSums) -> tuple[float, float]:
        """(value, standard error) of a function of one spectrum's sums; NaN where no vector has a
        direction."""
        whole, without = self._here
        if function not in self._values:  # of all at once: single numbers are slow
            self._values[function] = function(whole).tolist(), function(without).tolist()
        values, left_out = self._values[function]
        if not float(whole[index, 0]) > 0:
            return math.nan, math.nan
        return values[index], jackknife_error(left_out[index])


def can_use_sums(data: PooledRows, clamp: bool) -> bool:
    """Whether folds can be left out of the Gram matrix that way, and whether it pays."""
    if (
        clamp or not FEWEST <= len(data) <= data.width
    ):  # clamped matrices may have negative eigenvalues
        return False
    return not data.on_gpu or fast_doubles(data.device)


def prepare_fold_sums(many: Sequence[PooledRows], rows: RowPreparation) -> None:
    """The sums of several data, together where they are on a GPU. Remembered in each."""
    left = [data for data in many if ("sums", rows) not in data._memo]
    while left:
        n = len(left[0])
        most = max(1, _GRAM_BYTES // (8 * n * n)) if left[0].on_gpu else 1
        some = [data for data in left if len(data) == n and data.device == left[0].device][:most]
        grams = whole_matrices(some, rows)
        sums = SumsOfMany(*sums_without(grams, fold_members(n, grams.device)))
        for i, data in enumerate(some):
            data._memo["sums", rows] = partial(sums.evaluate, i)
        left = [data for data in left if ("sums", rows) not in data._memo]


def evaluate_sums(data: PooledRows, rows: RowPreparation, function: OfSums) -> tuple[float, float]:
    """(value, standard error) of a function of one data's sums, which are computed once per data
    and preparation."""
    prepare_fold_sums([data], rows)
    return data._memo["sums", rows](function)


# --- entropies of Gram matrices whose rows are samples, without some of them (DiME)
#   ---------------------------------------------


def equal_folds(n: int, device: torch.device) -> Tensor | None:
    """Folds of n samples in canonical order, all of one size (folds, size); None where fewer than
    three can be made.

    An entropy grows with its matrix, so that folds of different sizes would differ by that alone. A
    few samples are in none.
    """
    folds = n_folds(n)
    if folds < 3:
        return None
    size = n // folds
    return torch.arange(folds * size, device=device).view(size, folds).T.contiguous()


def equal_folds_error(values: Tensor, n: int) -> float:
    """The jackknife's standard error from the values without each fold; (folds − 1) / folds · Σ
    where they hold all n samples."""
    size = n // len(values)
    return math.sqrt((n - size) / size * float((values - values.mean()).square().mean()))


def entropies_without_each(grams: Tensor, alpha: float) -> Tensor:
    """S_α of matrices (B, n, n) without each of their rows (B, n).

    Exact for α = 1 and 2 and for few rows. For other orders of many rows the eigenvalues left are
    taken as λ_k (1 − v_ik²), to first order: solving n matrices would take n times as long.
    """
    count, n = grams.shape[:2]
    if alpha == 2:
        diagonal, squares = grams.diagonal(dim1=-2, dim2=-1), grams.square().sum(-1)
        trace = diagonal.sum(-1, keepdim=True) - diagonal
        return -torch.log(
            (squares.sum(-1, keepdim=True) - 2 * squares + diagonal.square()) / trace.square()
        )
    if n < FEWEST:
        rows = (
            torch.arange(n, device=grams.device)
            .expand(n, n)[~torch.eye(n, dtype=torch.bool, device=grams.device)]
            .view(n, n - 1)
        )
        return torch.stack(
            [gram_entropy(gram[rows.unsqueeze(-1), rows.unsqueeze(1)], alpha) for gram in grams]
        )
    if grams.is_cuda and not fast_doubles(grams.device):
        grams = grams.cpu()
    if alpha == 1:
        return entropy_of_sums(
            sums_without(grams, [torch.arange(n, device=grams.device).unsqueeze(-1)])[1]
        )
    out = torch.empty(count, n, dtype=torch.float64)
    for i, gram in enumerate(grams):
        values, vectors = torch.linalg.eigh(gram)
        out[i] = spectrum_entropy(values.clamp(min=0) * (1 - vectors.square()), alpha).cpu()
    return out


# float32 will do for the folds if it moves the whole data's value by less than this share of the
# standard error,
_SHARE_OF_ERROR = 0.25
# and for the value itself if it moves it by no more than this: nats of an entropy, a share of
# anything else.
NATS, SHARE = 2e-5, 2e-4

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Quantity:
    """A function of spectra along their last dimension, and how far rounding may move its value.

    `of_sums` is the same function of a spectrum's power sums, where there is one.
    """

    function: Function
    nats: bool = False
    of_sums: OfSums | None = None

    def allowed(self, value: float) -> float:
        """What rounding may do to this value."""
        return NATS if self.nats else SHARE * abs(value)


@dataclass
class Spectrum:
    """Eigenvalues (ascending, clamped at zero) of the prepared rows' Gram matrix, and those without
    each fold of prompts.

    `without` stacks folds of the same size (folds, n). Those solved in float32 have `exactly`,
    which solves the whole data's spectrum in float64 until `sharpen` has been given it, and
    `again`, which solves the folds in float64.
    """

    eigenvalues: Tensor
    without: list[Tensor]
    exactly: Callable[[], Tensor] | None = None
    again: Callable[[], list[Tensor]] | None = None
    rough: Tensor | None = None

    def evaluate(self, quantity: Quantity) -> tuple[float, float]:
        """(value, standard error) of a function of the eigenvalues along the last dimension."""
        function = quantity.function
        if self.exactly is not None and not self.settles(quantity):
            self.sharpen(self.exactly())
        value, error = float(function(self.eigenvalues)), self._error(function)
        if self.rough is not None and self.again is not None:
            moved = abs(float(function(self.rough)) - value) * self._folds
            if not moved <= _SHARE_OF_ERROR * error:
                self.without, self.rough = self.again(), None
                error = self._error(function)
        return value, error

    def settles(self, quantity: Quantity) -> bool:
        """Whether float32's rounding cannot show in the value or the standard error of a
        function."""
        if self.exactly is None:
            return True
        function = quantity.function
        moved = float(moved_by_rounding(function, self.eigenvalues))
        if not moved <= quantity.allowed(float(function(self.eigenvalues))):
            return False
        return moved * self._folds <= _SHARE_OF_ERROR * self._error(function)

    def sharpen(self, exact: Tensor) -> None:
        """Take over the whole data's spectrum from float64; what that shows to be empty is empty in
        the others as well.

        A Gram matrix without k rows has k empty dimensions fewer.
        """
        self.rough, self.eigenvalues, self.exactly = self.eigenvalues, exact, None
        empty = int((exact <= rounding_floor(exact)).sum())
        for values in (self.rough.unsqueeze(0), *self.without):
            values[:, : max(0, empty - (len(exact) - values.shape[1]))] = 0.0

    @property
    def _folds(self) -> float:
        """√ of their number: what rounding of a single value becomes in the standard error, at
        most."""
        return math.sqrt(sum(len(folds) for folds in self.without))

    def _error(self, function: Function) -> float:
        return jackknife_error(
            [value for folds in self.without for value in function(folds).tolist()]
        )


def pooled_spectrum(data: PooledRows, rows: RowPreparation, clamp: bool = False) -> Spectrum:
    """The spectrum of pooled vectors under a row preparation. Computed once per data and
    preparation."""
    if len(data) == 0:
        raise ValueError("no pooled vectors: add some with update() first")
    pooled_spectra([data], rows, clamp)
    return data._memo["spectrum", rows, clamp]


def pooled_spectra(
    many: Sequence[PooledRows],
    rows: RowPreparation,
    clamp: bool,
    quantity: Quantity | None = None,
) -> None:
    """The spectra of several sites' vectors, solved together where they are on a GPU. Remembered in
    each data.

    Those that must be solved in float64 for the sake of `quantity` are solved together too.
    """
    key = ("spectrum", rows, clamp)
    there = [data for data in many if key not in data._memo and data.on_gpu]
    for data in many:
        if key not in data._memo and not data.on_gpu:
            whole, *without = fold_matrices(data, rows, clamp)
            data._memo[key] = Spectrum(_solve(whole), [_solve(folds) for folds in without])
    if there:
        for data, spectrum in zip(there, _solve_on_gpu(there, rows, clamp), strict=True):
            data._memo[key] = spectrum
    if quantity is not None:
        unsure = [data for data in many if not data._memo[key].settles(quantity)]
        if unsure:
            exact = _solve(torch.stack([whole_matrix(data, rows, clamp) for data in unsure]))
            for data, values in zip(unsure, exact, strict=True):
                data._memo[key].sharpen(values)


def _solve(matrices: Tensor) -> Tensor:
    """Eigenvalues, clamped at zero, float64 on the CPU."""
    return eigvalsh(matrices.double()).clamp(min=0).cpu()


def _solve_on_gpu(many: Sequence[PooledRows], rows: RowPreparation, clamp: bool) -> list[Spectrum]:
    """Whole spectra and those without folds in float32, each size in one batch over all the
    data."""
    made = [[m.float() for m in fold_matrices(data, rows, clamp)] for data in many]
    sizes = range(1, max(len(matrices) for matrices in made))
    batches = [
        torch.stack([site[0] for site in made]),
        *(joined([site[k] for site in made]) for k in sizes),
    ]
    solved = [
        eigvalsh(batch) for batch in batches
    ]  # the GPU has all of its work before the host waits
    wholes, *stacked = [values.clamp(min=0).double().cpu() for values in solved]
    if rows.startswith("centered") and not clamp and all(len(data) <= data.width for data in many):
        wholes[:, 0] = 0.0  # rows that sum to zero, scaled or not, miss one dimension
    split = [
        iter(values.split([len(site[k]) for site in made]))
        for k, values in zip(sizes, stacked, strict=True)
    ]
    return [
        Spectrum(
            wholes[i].clone(),
            [next(values) for values in split],
            lambda data=data: _solve(whole_matrix(data, rows, clamp)),  # type: ignore[misc]
            lambda data=data: [_solve(folds) for folds in fold_matrices(data, rows, clamp)[1:]],  # type: ignore[misc]
        )
        for i, data in enumerate(many)
    ]
