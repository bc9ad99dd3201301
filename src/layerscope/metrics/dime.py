"""DiME: how much more alike two views are with their pairing than without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, gram_entropy
from layerscope.metrics.spectral import entropies_without_each, equal_folds, equal_folds_error
from layerscope.metrics.vectors import Options, SiteVectors, prepared_view

__all__ = ["error_orders", "errors_of_effects", "permutations_of", "products", "uses_features"]

_ROUNDS = 30  # of the two-way fit below; it converges in far fewer
_FEATURE_PERMUTATIONS = 3  # they shuffle features, which adds no noise to what a prompt does
# Leaving out each prompt costs far more than the value itself, so that it is done on few
# permutations of a part of many prompts.
_ERROR_PERMUTATIONS = 4
_ERROR_PROMPTS = 256


@lru_cache(maxsize=4)  # the same for all sites
def permutations_of(n: int, count: int, seed: int) -> list[np.ndarray]:
    """Return random orders of n rows."""
    rng = np.random.default_rng([seed, n])
    return [rng.permutation(n) for _ in range(count)]


def products(a: Tensor, b: Tensor, orders: Sequence[np.ndarray]) -> Iterator[Tensor]:
    """Yield K_A ∘ K_B, then K_A ∘ P K_B Pᵀ for each order of the rows; views (…, n, D)."""
    k_a = a @ a.mT
    k_b = b @ b.mT
    yield k_a * k_b
    for order in orders:
        p = torch.from_numpy(order).to(a.device)
        yield k_a * k_b.index_select(-2, p).index_select(-1, p)


def dime_terms(a: Tensor, b: Tensor, options: Options, on_features: bool = False) -> np.ndarray:
    """Return S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B) for each random permutation P; views (N, D),
    already prepared.

    With `on_features` the matrices are D×D covariances, as in the released code when N > D; P then
    shuffles features, not samples.
    """
    if on_features:
        a, b = a.mT, b.mT
    orders = permutations_of(len(a), options.permutations, options.seed)
    entropies = [gram_entropy(product, options.alpha) for product in products(a, b, orders)]
    return (torch.stack(entropies[1:]) - entropies[0]).cpu().numpy()


def prompt_error(a: Tensor, b: Tensor, options: Options, on_features: bool = False) -> float:
    """Return the standard error of DiME over prompts, by leaving out each of them; NaN for fewer
    than three prompts.

    Without prompt j, K_A and K_B both lose a row. In K_A ∘ P K_B Pᵀ position i holds prompt i of A
    and prompt p(i) of B: leaving the position out is the effect of the one plus that of the other,
    which a two-way fit over all permutations tells apart. What it leaves unexplained is noise,
    whose share in the variance is known and taken off. Of many prompts a part is used, at random,
    and the error is scaled to all of them.
    """
    n = len(a)
    if n < 3:
        return math.nan
    if on_features:
        return _error_on_features(a, b, options)
    orders = error_orders(n, options.permutations, options.seed)
    used = len(orders[0])
    matrices = torch.stack(list(products(a[:used], b[:used], orders)))
    effects = -entropies_without_each(matrices, options.alpha).cpu().numpy()
    return errors_of_effects(effects[None], orders, n)[0]


def error_orders(n: int, permutations: int, seed: int) -> list[np.ndarray]:
    """Return the orders of the prompts that are used for the error."""
    used = min(n, _ERROR_PROMPTS)
    return permutations_of(used, min(permutations, _ERROR_PERMUTATIONS), seed)


def errors_of_effects(effects: np.ndarray, orders: Sequence[np.ndarray], n: int) -> list[float]:
    """Return the standard errors over n prompts from the effects of the prompts used.

    `effects` (sets, 1 + orders, used) are what leaving out each position changes: of the paired
    product, then of the product under each order.
    """
    used = effects.shape[-1]
    of_a, of_b, noise = two_way_effects(effects[:, 1:], orders)
    paired = effects[:, 0]
    influence = of_a + of_b - (paired - paired.mean(1, keepdims=True))
    variance = np.square(influence).sum(1) - 2 * used * noise / len(orders)
    scale = math.sqrt(used / n)  # an error falls with the root of the number of prompts
    errors: list[float] = (scale * np.sqrt((used - 1) / used * np.maximum(variance, 0.0))).tolist()
    return errors


def two_way_effects(
    effects: np.ndarray, orders: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return effects (sets, permutations, n) of positions as α_i + β_p(i), by least squares, in
    every set.

    α and β (sets, n) both have the mean 0; the third array is the residual variance (sets,). With a
    single permutation the two cannot be told apart, and nothing is left over.
    """
    sets, count, n = effects.shape
    centered = effects - effects.mean(2, keepdims=True)
    order = np.stack(list(orders))
    inverse = np.argsort(order, axis=1)
    of_a = np.zeros((sets, n))
    of_b = np.zeros((sets, n))
    for _ in range(_ROUNDS):
        of_a = (centered - of_b[:, order]).mean(1)
        of_b = np.take_along_axis(centered - of_a[:, None], inverse[None], axis=2).mean(1)
    residual = centered - of_a[:, None] - of_b[:, order]
    free = count * n - 2 * n - count + 2
    return of_a, of_b, np.square(residual).sum((1, 2)) / free if free > 0 else np.zeros(sets)


def _error_on_features(a: Tensor, b: Tensor, options: Options) -> float:
    folds = equal_folds(len(a), a.device)
    assert folds is not None
    count = min(options.permutations, _FEATURE_PERMUTATIONS)
    orders = permutations_of(a.shape[1], count, options.seed)
    k_a = a.T @ a
    k_b = b.T @ b
    values = []
    for fold in folds:
        less_a = k_a - a[fold].T @ a[fold]
        less_b = k_b - b[fold].T @ b[fold]
        shuffled = [less_a * less_b[p][:, p] for p in orders]
        entropies = gram_entropy(torch.stack([less_a * less_b, *shuffled]), options.alpha)
        values.append(entropies[1:].mean() - entropies[0])
    return equal_folds_error(torch.stack(values), len(a))


def uses_features(site: SiteVectors, options: Options) -> bool:
    """Return True where the matrices are D×D: `dime_feature_side`, and more prompts than
    dimensions."""
    return options.dime_feature_side and min(len(site), options.dime_samples) > site.width


def dime_views(site: SiteVectors, options: Options) -> tuple[Tensor, Tensor]:
    """Return the first two views, prepared, of the prompts that are used."""
    n = min(len(site), options.dime_samples)
    site, rows = site.in_groups(options.view_rows, options.group)
    views = site.views_for("dime")
    return prepared_view(views, 0, rows)[:n], prepared_view(views, 1, rows)[:n]


def estimate_dime(site: SiteVectors, options: Options) -> Estimate:
    """Return the mean over permutations of S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B), on N×N Gram
    matrices with unit diagonal.

    Its standard error has two parts: how far other prompts would move it (each left out), and how
    far other permutations would. Near zero the smallest value over layers is noise. At most
    `dime_samples` prompts are used, the first in the order of their keys: the cost grows with their
    cube.
    """
    on_features = uses_features(site, options)
    terms = site.once(
        ("dime", options), lambda: dime_terms(*dime_views(site, options), options, on_features)
    )
    error = site.once(
        ("dime error", options),
        lambda: prompt_error(*dime_views(site, options), options, on_features),
    )
    over_permutations = math.nan
    if len(terms) > 1:
        over_permutations = float(terms.std(ddof=1) / math.sqrt(len(terms)))
    n = min(len(site), options.dime_samples)
    se = math.hypot(over_permutations, error)
    return Estimate(float(terms.mean()), n, site.width, se=se, df=max(1, n - 1))


DIME = Metric(
    MetricInfo(
        name="dime",
        title="DiME",
        level="views",
        unit="nats",
        higher_means="two views of a prompt share more structure than views of different prompts",
        bounds="−log N to log N",
        citation="Skean et al. 2023",
        normalizations=NORMALIZATIONS,
        core=True,
        order=70,
    ),
    estimate=estimate_dime,
)
