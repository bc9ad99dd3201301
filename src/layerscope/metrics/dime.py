"""DiME: how much more alike two views are with their pairing than without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import (
    NORMALIZATIONS,
    gram_entropy,
    moved_by_rounding,
    spectrum_entropy,
)
from layerscope.metrics.folds import (
    FEWEST,
    entropies_without_each,
    entropy_of_sums,
    equal_folds,
    equal_folds_error,
    in_groups,
    prepare_views,
    prepared_view,
)
from layerscope.metrics.samples import ViewRows
from layerscope.spectra import Sent, eigvalsh, to_device
from layerscope.spectra.resolvents import FINE, fast_doubles, sums_without


def _batch(n: int, device: torch.device) -> int:
    """How many matrices of n rows are solved at once: 32 MB of them, on a GPU 512 MB."""
    return max(1, (64_000_000 if device.type == "cuda" else 4_000_000) // n**2)


# Float32 is used where it moves the paired entropy by less than this share of the value: it may
# move others a few times as far.
_CLOSE = 2.5e-4


def dime_values(
    a: Tensor, b: Tensor, alpha: float, permutations: int, seed: int, feature_side: bool = False
) -> np.ndarray:
    """S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B) for each random permutation P; views (N, D), already
    prepared.

    `feature_side` uses D×D covariances, as the released code does when N > D; P then shuffles
    features, not samples.
    """
    if feature_side:
        a, b = a.mT, b.mT
    products = _products(a, b, _orders(len(a), permutations, seed, a.device))
    values = []
    while some := list(islice(products, _batch(len(a), a.device))):
        values.append(_entropies(torch.stack(some), alpha))
    entropies = torch.cat(values)
    return (entropies[1:] - entropies[0]).cpu().numpy()


def _entropies(products: Tensor, alpha: float) -> Tensor:
    """S_α of float64 matrices, to far less than the differences that are taken of them."""
    if _are_quick(products, alpha):
        return entropy_of_sums(sums_without(products, [], FINE)[0])
    return gram_entropy(products, alpha)


def _are_quick(products: Tensor, alpha: float) -> bool:
    """Whether their entropies are those of products of matrices that this GPU is fast at."""
    return alpha == 1 and products.shape[-1] >= FEWEST and fast_doubles(products.device)


def _products(a: Tensor, b: Tensor, orders: Sequence[Tensor]) -> Iterator[Tensor]:
    """K_A ∘ K_B, then K_A ∘ P K_B Pᵀ for each order of the rows; views (…, n, D)."""
    k_a, k_b = a @ a.mT, b @ b.mT
    yield k_a * k_b
    for p in orders:
        yield k_a * k_b.index_select(-2, p).index_select(-1, p)


def _all_products(a: Tensor, b: Tensor, orders: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The same of several pairs of views (B, n, D), in one tensor (B, 1 + orders, n, n)."""
    out = a.new_empty(len(a), 1 + len(orders), a.shape[1], a.shape[1], dtype=dtype)
    for i, product in enumerate(_products(a, b, orders)):
        out[:, i] = product
    return out


@lru_cache(maxsize=4)
def _permutations(n: int, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return [rng.permutation(n) for _ in range(count)]


@lru_cache(maxsize=4)  # the same for all sites
def _orders(n: int, permutations: int, seed: int, device: torch.device) -> list[Tensor]:
    return [
        to_device(torch.from_numpy(order), device) for order in _permutations(n, permutations, seed)
    ]


# --- how far other prompts would move it
#   ---------------------------------------------------------------------------------------

_ROUNDS = 30  # of the two-way fit below; it converges in far fewer
_FEATURE_PERMUTATIONS = 3  # they shuffle features, which adds no noise to what a prompt does
# Leaving out each prompt costs far more than the value itself, so that it is done on few
# permutations of a part of many prompts.
_ERROR_PERMUTATIONS, _ERROR_PROMPTS = 4, 256


def prompt_error(
    a: Tensor, b: Tensor, alpha: float, permutations: int, seed: int, feature_side: bool = False
) -> float:
    """The standard error of DiME over prompts, by leaving out each of them; NaN for fewer than
    three prompts.

    Without prompt j, K_A and K_B both lose a row. In K_A ∘ P K_B Pᵀ position i holds prompt i of A
    and prompt p(i) of B: leaving the position out is the effect of the one plus that of the other,
    which a two-way fit over all permutations tells apart. What it leaves unexplained is noise,
    whose share in the variance is known and taken off. Of many prompts a part is used, at random,
    and the error is scaled to all of them.
    """
    n = len(a)
    if n < 3:
        return math.nan
    if feature_side:
        members = equal_folds(n, a.device)
        assert members is not None
        count = min(permutations, _FEATURE_PERMUTATIONS)
        return equal_folds_error(_without_on_feature_side(a, b, members, alpha, count, seed), n)
    return later_errors([(a, b)], alpha, permutations, seed)()[0]


def later_errors(
    pairs: Sequence[tuple[Tensor, Tensor]], alpha: float, permutations: int, seed: int
) -> Callable[[], list[float]]:
    """`prompt_error` of several pairs of views, all of n ≥ 3 prompts. A GPU has been given the work
    for all of them together; the host waits when they are asked for."""
    n = len(pairs[0][0])
    used, permutations = min(n, _ERROR_PROMPTS), min(permutations, _ERROR_PERMUTATIONS)
    scale = math.sqrt(used / n)  # an error falls with the root of the number of prompts
    device = pairs[0][0].device
    orders = _orders(used, permutations, seed, device)
    a, b = (torch.stack([pair[i][:used] for pair in pairs]) for i in (0, 1))
    parts = _all_products(a, b, orders, a.dtype).flatten(0, 1).split(_batch(used, device))
    without = [Sent(entropies_without_each(part, alpha)) for part in parts]

    def errors() -> list[float]:
        effects = (
            -torch.cat([some.get() for some in without])
            .numpy()
            .reshape(len(pairs), 1 + permutations, used)
        )
        of_a, of_b, noise = two_way_effects(effects[:, 1:], _permutations(used, permutations, seed))
        paired = effects[:, 0]
        influence = of_a + of_b - (paired - paired.mean(1, keepdims=True))
        variance = np.square(influence).sum(1) - 2 * used * noise / permutations
        return (scale * np.sqrt((used - 1) / used * np.maximum(variance, 0.0))).tolist()

    return errors


def two_way_effects(
    effects: np.ndarray, orders: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effects (sets, permutations, n) of positions as α_i + β_p(i), by least squares, in every set.

    Returns α and β (sets, n), both of mean 0, and the residual variance (sets,). With a single
    permutation the two cannot be told apart, and nothing is left over.
    """
    sets, count, n = effects.shape
    seen = effects - effects.mean(2, keepdims=True)
    order = np.stack(list(orders))
    inverse = np.argsort(order, axis=1)
    of_a, of_b = np.zeros((sets, n)), np.zeros((sets, n))
    for _ in range(_ROUNDS):
        of_a = (seen - of_b[:, order]).mean(1)
        of_b = np.take_along_axis(seen - of_a[:, None], inverse[None], axis=2).mean(1)
    left = seen - of_a[:, None] - of_b[:, order]
    free = count * n - 2 * n - count + 2
    return of_a, of_b, np.square(left).sum((1, 2)) / free if free > 0 else np.zeros(sets)


def _without_on_feature_side(
    a: Tensor, b: Tensor, members: Tensor, alpha: float, count: int, seed: int
) -> Tensor:
    k_a, k_b = a.T @ a, b.T @ b
    values = []
    for fold in members:
        less_a, less_b = k_a - a[fold].T @ a[fold], k_b - b[fold].T @ b[fold]
        products = [less_a * less_b[p][:, p] for p in _orders(len(k_a), count, seed, a.device)]
        entropies = gram_entropy(torch.stack([less_a * less_b, *products]), alpha)
        values.append(entropies[1:].mean() - entropies[0])
    return torch.stack(values)


class DiME(Metric[ViewRows]):
    """Mean over permutations of S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B), on N×N Gram matrices with
    unit diagonal.

    Its standard error has two parts: how far other prompts would move it (each left out), and how
    far other permutations would. Near zero the smallest value over layers is noise. At most
    `dime_samples` prompts are used (the first in canonical order: a random sample where keys are
    hashes), since the cost grows with their cube.
    """

    info = MetricInfo(
        name="dime",
        title="DiME",
        level="views",
        unit="nats",
        higher_means="two views of a prompt share more structure than views of different prompts",
        bounds=lambda n, d, o: (-math.log(max(1, n)), math.log(max(1, n))),
        bounds_text="−log N to log N",
        citation="Skean et al. 2023",
        normalizations=NORMALIZATIONS,
        core=True,
        order=70,
    )

    def _views(self, data: ViewRows) -> tuple[Tensor, Tensor]:
        o = self.options
        n = min(len(data), o.dime_samples)
        data, rows = in_groups(data, o.view_rows, o.group)
        a, b = (prepared_view(data, i, rows)[:n] for i in (0, 1))
        return a, b

    def _feature_side(self, data: ViewRows) -> bool:
        return (
            self.options.dime_feature_side
            and min(len(data), self.options.dime_samples) > data.width
        )

    def prepare(self, many: Sequence[ViewRows]) -> Callable[[], None] | None:
        """On a GPU, the entropies of all data and permutations together, in float32 where it gives
        what float64 gives."""
        o = self.options
        there = [data for data in many if data.on_gpu and len(data) >= 2 and data.n_views >= 2]
        there = [data for data in there if ("dime", o) not in data._memo]
        if not there or o.alpha < 1:
            return None
        if len({len(data) for data in there}) == 1 and o.group is None:
            prepare_views(there, o.view_rows)
        errors = None
        if len({min(len(data), o.dime_samples) for data in there}) == 1:
            errors = self._prepare_errors([data for data in there if not self._feature_side(data)])
        views = [self._views(data) for data in there]
        if len({view.shape for view, _ in views}) > 1:
            return errors
        a, b = (torch.stack([pair[i] for pair in views]) for i in (0, 1))
        if self._feature_side(there[0]):
            a, b = a.mT, b.mT
        orders, paired = (
            _orders(a.shape[1], o.permutations, o.seed, a.device),
            next(_products(a, b, [])),
        )
        quick = _are_quick(paired, o.alpha)
        near = eigvalsh(_all_products(a, b, orders, torch.float32).flatten(0, 1), overwrite=True)
        near = near.double().clamp(min=0).view(len(there), -1, near.shape[-1])
        rough = self._entropy(near)
        # what rounding could do is nearly always more than it may; where that is quick, what it
        # does is found out at once
        moved = (
            (rough[:, 0] - _entropies(paired, o.alpha)).abs()
            if quick
            else moved_by_rounding(self._entropy, near[:, 0])
        )
        found = Sent(rough), Sent(moved)

        def keep() -> None:
            if errors is not None:
                errors()
            rough, moved = (values.get().numpy() for values in found)
            self._keep(there, rough, moved, None if quick else paired)

        return keep

    def _keep(
        self, there: Sequence[ViewRows], rough: np.ndarray, moved: np.ndarray, paired: Tensor | None
    ) -> None:
        """Cache values where float32 and float64 agree; with `paired`, doubtful ones are checked in
        float64."""
        terms = rough[:, 1:] - rough[:, :1]  # what rounding does to all of them alike cancels
        moved = moved.copy()
        unsure = (
            np.flatnonzero(~(moved <= _CLOSE * np.abs(terms.mean(1)))).tolist()
            if paired is not None
            else []
        )
        if paired is not None and unsure:  # it may be less than it could be
            moved[unsure] = np.abs(
                _entropies(paired[unsure], self.options.alpha).cpu().numpy() - rough[unsure, 0]
            )
        for data, values, far in zip(there, terms, moved, strict=True):
            if far <= _CLOSE * abs(values.mean()):
                data._memo["dime", self.options] = values

    def _prepare_errors(self, many: Sequence[ViewRows]) -> Callable[[], None] | None:
        """The standard errors over prompts of several data, all of as many prompts."""
        o = self.options
        if not many or min(len(many[0]), o.dime_samples) < 3:
            return None
        errors = later_errors([self._views(data) for data in many], o.alpha, o.permutations, o.seed)

        def keep() -> None:
            for data, error in zip(many, errors(), strict=True):
                data._memo["dime error", o] = error

        return keep

    def _entropy(self, eigenvalues: Tensor) -> Tensor:
        return spectrum_entropy(eigenvalues, self.options.alpha)

    def estimate(self, data: ViewRows) -> Estimate:
        """The mean over permutations with its standard error over prompts and permutations."""
        data.need_views(2, self.info.name)
        o = self.options
        n = min(len(data), o.dime_samples)
        values, over_prompts = data._memo.get(("dime", o)), data._memo.get(("dime error", o))
        feature_side = self._feature_side(data)
        if values is None:
            values = dime_values(*self._views(data), o.alpha, o.permutations, o.seed, feature_side)
        over_permutations = (
            float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
        )
        if over_prompts is None:
            over_prompts = prompt_error(
                *self._views(data), o.alpha, o.permutations, o.seed, feature_side
            )
        se = math.hypot(over_permutations, over_prompts)
        notes = {
            "permutations": len(values),
            "se_permutations": over_permutations,
            "se_prompts": over_prompts,
        }
        return Estimate(float(values.mean()), n, data.width, se=se, df=max(1, n - 1), notes=notes)
