"""Intervals: influences are derivatives, folds are left out exactly, and the spread both imply is
the true one."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from layerscope.metrics import (
    Estimate,
    Options,
    SiteVectors,
    estimate_vectors,
    get_metric,
    interval,
    metrics,
)
from layerscope.metrics import base as intervals_module
from layerscope.metrics.dime import dime_terms, dime_views, prompt_error, two_way_effects
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.lidar import Scatter
from layerscope.metrics.spectral import entropies_without_each
from layerscope.metrics.vectors import n_folds
from tests.metrics import reference as ref
from tests.metrics.support import Samples, of_samples

Z95 = 1.959964


@cache
def estimates(name: str, n: int, d: int, datasets: int) -> list[Estimate]:
    """A metric of independent datasets."""
    return [of_samples(name, draw(n, d, seed)) for seed in range(datasets)]


def draw(n: int, d: int, seed: int, q: int = 4) -> Samples:
    """Independent datasets of one population (make_samples draws the population with the seed as
    well)."""
    population, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    scale = np.arange(1, d + 1) ** -0.5
    centers = 0.5 * population.normal(size=d) + rng.normal(size=(n, d)) * scale
    tokens = [c + rng.normal(size=(int(rng.integers(3, 10)), d)) * scale for c in centers]
    return Samples(tokens, centers, centers[:, None] + 0.4 * rng.normal(size=(n, q, d)))


def subset(s: Samples, keep: np.ndarray) -> Samples:
    out = Samples([s.tokens[i] for i in keep], s.pooled[keep], s.views[keep])
    out.keys = s.keys[keep]
    return out


# (a) influences are derivatives
# ---------------------------------------------------------------------------------------


def weighted_anisotropy(s: Samples, w: np.ndarray) -> float:
    cosines = ref.prepare(s.pooled, "unit") @ ref.prepare(s.pooled, "unit").T
    pairs = np.outer(w, w) * (1 - np.eye(len(w)))
    return float((pairs * cosines).sum() / pairs.sum())


def weighted_dimension(s: Samples, w: np.ndarray) -> float:
    """Weights on the ratios, neighbors as they are."""
    distances = np.sort(np.linalg.norm(s.pooled[:, None] - s.pooled[None], axis=-1), axis=1)
    return float((w.sum() - 1) / (w * np.log(distances[:, 2] / distances[:, 1])).sum())


def weighted_loss(s: Samples, w: np.ndarray) -> float:
    return ref.weighted_infonce(
        ref.prepare(s.views[:, 0], "unit"), ref.prepare(s.views[:, 1], "unit"), w
    )


def weighted_mean(
    function: Callable[[np.ndarray], float],
) -> Callable[[Samples, np.ndarray], float]:
    return lambda s, w: float(np.average([function(t) for t in s.tokens], weights=w))


SPECTRAL = (
    "dataset_entropy",
    "effective_rank",
    "entropy_rank",
    "rankme",
    "alpha_req",
    "nesum",
    "lidar",
    "lidar_rank",
)

WEIGHTED: dict[str, Callable[[Samples, np.ndarray], float]] = {
    "prompt_entropy": weighted_mean(ref.prompt_entropy),
    "curvature": weighted_mean(ref.curvature),
    "sink_ratio": weighted_mean(lambda t: ref.sink(t)[1]),
    "sink_first": weighted_mean(lambda t: float(ref.sink(t)[0] == 0)),
    "anisotropy": weighted_anisotropy,
    "intrinsic_dimension": weighted_dimension,
    "state_norm": weighted_mean(lambda t: float(np.linalg.norm(t, axis=1).mean())),
    "infonce": weighted_loss,
    "infonce_mi": lambda s, w: math.log(len(s)) - weighted_loss(s, w),
}


def assert_is_derivative(
    s: Samples,
    estimate: Estimate,
    function: Callable[[Samples, np.ndarray], float],
    tolerance: float,
):
    n, step = len(s), 1e-4
    assert function(s, np.ones(n)) == pytest.approx(estimate.value, rel=1e-6)
    slopes = np.empty(n)
    for i in range(n):
        up, down = np.ones(n), np.ones(n)
        up[i] += step
        down[i] -= step
        slopes[i] = (function(s, up) - function(s, down)) / (2 * step)
    slopes -= slopes.mean()
    assert np.abs(slopes).max() > 0
    assert estimate.influence is not None
    np.testing.assert_allclose(
        estimate.influence, slopes, atol=tolerance * np.abs(slopes).max(), rtol=0
    )


def test_every_metric_with_influences_is_checked():
    s = draw(12, 5, 0)
    with_influence = {name for name in metrics() if of_samples(name, s).influence is not None}
    assert with_influence == set(WEIGHTED)
    assert set(metrics()) - with_influence == {
        "dime",
        *SPECTRAL,
    }  # theirs leaves folds out


@pytest.mark.parametrize("d", [5, 24], ids=["N>D", "N<D"])
@pytest.mark.parametrize("name", sorted(WEIGHTED))
def test_influence_is_the_derivative_in_a_prompts_weight(name, d):
    s = draw(12, d, 0)
    s.keys = np.arange(12)
    # the norms of the sink are float32
    rough = name in ("sink_ratio", "state_norm")
    assert_is_derivative(s, of_samples(name, s), WEIGHTED[name], 1e-5 if rough else 1e-6)


# spectra: folds of prompts left out
# ---------------------------------------------------------------------------------


def folded_error(function: Callable[[np.ndarray], float], n: int) -> float:
    """The jackknife's standard error, straight from its definition; `function` takes the prompts
    that stay."""
    folds = min(20, n)
    left = np.array([function(np.flatnonzero(np.arange(n) % folds != g)) for g in range(folds)])
    return math.sqrt((folds - 1) / folds * ((left - left.mean()) ** 2).sum())


@pytest.mark.parametrize("rows", ["raw", "unit", "centered", "centered-unit"])
@pytest.mark.parametrize(("n", "d"), [(12, 30), (50, 60), (50, 8), (64, 90), (107, 120)])
def test_pooled_spectra_leave_folds_out(n, d, rows):
    s = draw(n, d, 1)
    s.keys = np.arange(n)
    estimate = of_samples("dataset_entropy", s, options=Options(pooled_rows=rows))
    prepared = ref.prepare(s.pooled, rows)  # once, with the mean of all prompts
    expected = folded_error(lambda stay: ref.dataset_entropy(prepared[stay], 1.0, "raw"), n)
    assert estimate.df == min(20, n) - 1
    assert estimate.se == pytest.approx(
        expected, rel=1e-4 if 64 <= n <= d else 1e-7
    )  # by quadrature


@pytest.mark.parametrize("n", [30, 75])
@pytest.mark.parametrize("name", ["effective_rank", "entropy_rank", "rankme", "nesum", "alpha_req"])
def test_other_functions_of_the_spectrum_leave_the_same_folds_out(name, n):
    s = draw(n, 90, 2)
    s.keys = np.arange(n)
    rows, function = {
        "effective_rank": ("centered-unit", lambda z: ref.effective_rank(z, "raw")),
        "entropy_rank": ("centered-unit", lambda z: ref.entropy_rank(z, "raw")),
        "rankme": ("raw", ref.rankme),
        "nesum": ("centered", lambda z: ref.nesum(z, rows="raw")),
        "alpha_req": ("centered", lambda z: ref.alpha_req(z, rows="raw")),
    }[name]
    prepared = ref.prepare(s.pooled, rows)
    expected = folded_error(lambda stay: function(prepared[stay]), n)
    assert of_samples(name, s).se == pytest.approx(expected, rel=1e-4 if n >= 64 else 1e-5)


@pytest.mark.parametrize(("n", "d"), [(12, 30), (50, 8)], ids=["N<D", "N>D"])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_lidar_leaves_folds_out(n, d, alpha):
    s = draw(n, d, 3)
    s.keys = np.arange(n)
    expected = folded_error(lambda stay: ref.lidar(s.views[stay], 1e-4, alpha), n)
    estimate = of_samples("lidar", s, options=Options(alpha=alpha))
    assert estimate.se == pytest.approx(expected, rel=1e-6)
    rank = of_samples("lidar_rank", s, options=Options(alpha=alpha))
    assert rank.se == pytest.approx(expected * math.exp(estimate.value), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 3e3, 3e5], ids=str)
@pytest.mark.parametrize(("n", "q", "d"), [(23, 3, 40), (30, 4, 200), (48, 2, 48)])
def test_lidar_without_a_fold_from_the_factor_of_all(n, q, d, scale):
    """Few digits are lost where views tell a fold's prompts apart in directions of their own; there
    Σ_w is factored anew."""
    rng = np.random.default_rng(0)
    views = rng.normal(size=(n, 1, d)) + 0.3 * rng.normal(size=(n, q, d))
    scaled = (scale * views * np.logspace(0, -2, d)).astype(np.float32)
    scatter = Scatter(torch.from_numpy(scaled), "raw", 1e-4)
    expected = [float(gram_entropy(scatter.whitened(fold))) for fold in range(n_folds(n))]
    left_out = [float(gram_entropy(whitened)) for whitened in scatter.whitened_without_folds()]
    assert left_out == pytest.approx(expected, rel=1e-9)  # the last digits are the processor's


def test_lidar_of_few_prompts_in_many_dimensions(monkeypatch):
    """Vectors that span few dimensions are turned into them, unless a prompt's center equals the
    mean."""
    views = torch.from_numpy(np.random.default_rng(0).normal(size=(24, 3, 150)) + 5).float()
    assert Scatter(views, "raw", 1e-4).d == 72
    assert Scatter(torch.ones(24, 3, 150), "raw", 1e-4).d == 150
    site = SiteVectors(views[:, 0], views)
    found = estimate_vectors(get_metric("lidar"), site, Options())
    monkeypatch.setattr("layerscope.metrics.lidar._rotated", lambda z: None)
    plain = SiteVectors(views[:, 0], views)
    expected = estimate_vectors(get_metric("lidar"), plain, Options())
    assert (found.value, found.se) == pytest.approx((expected.value, expected.se), rel=1e-10)


# (b) the implied spread is the true spread
# ----------------------------------------------------------------------------

WIDE = 60  # more dimensions than the 40 prompts


def spread_ratio(name: str, n: int, d: int, datasets: int) -> float:
    """Mean standard error of the interval over the standard deviation of the value over independent
    datasets."""
    values, errors = [], []
    for estimate in estimates(name, n, d, datasets):
        low, high = interval(estimate)
        assert low <= estimate.value <= high
        values.append(estimate.value)
        errors.append((high - low) / 2 / Z95 if estimate.se is None else estimate.se)
    return float(np.mean(errors) / np.std(values, ddof=1))


@pytest.mark.parametrize(
    ("name", "d"),
    [
        ("prompt_entropy", 8),
        ("curvature", 8),
        ("dataset_entropy", 8),
        ("dataset_entropy", WIDE),
        ("dataset_entropy", 600),
        ("effective_rank", 8),
        ("effective_rank", WIDE),
        ("effective_rank", 600),
        ("entropy_rank", WIDE),
        ("infonce", 8),
        ("infonce", WIDE),
        ("lidar", 8),
        ("lidar", 20),
        ("lidar", WIDE),
        ("anisotropy", 8),
        ("anisotropy", WIDE),
        ("intrinsic_dimension", 8),
        ("nesum", 8),
        ("nesum", WIDE),
        ("rankme", 8),
        ("rankme", 200),
        ("alpha_req", 8),
        ("dime", 8),
        ("dime", WIDE),
    ],
)
def test_spread(name, d, record_property):
    ratio = spread_ratio(
        name, 40, d, 120 if name == "dime" else 40
    )  # as many as those whose intervals are counted below
    record_property("ratio", ratio)
    print(f"spread ratio {name} N=40 D={d}: {ratio:.2f}")
    assert 0.6 <= ratio <= 1.6


def over_permutations(s: Samples, options: Options) -> float:
    """Return the part of DiME's standard error that is over permutations."""
    terms = dime_terms(*dime_views(site_of(s), options), options)
    return float(terms.std(ddof=1) / math.sqrt(len(terms)))


def over_prompts(s: Samples, options: Options) -> float:
    """Return the part of DiME's standard error that is over prompts."""
    return prompt_error(*dime_views(site_of(s), options), options)


def site_of(s: Samples) -> SiteVectors:
    views = torch.from_numpy(s.views)
    return SiteVectors.of(views[:, 0], views, s.keys)


def test_one_part_of_dimes_error_is_over_permutations():
    s = draw(30, 6, 0)
    few, many = Options(permutations=5), Options(permutations=80)
    assert over_permutations(s, many) < over_permutations(s, few)
    seeds = [Options(permutations=10, seed=k) for k in range(30)]
    means = [of_samples("dime", s, options=options).value for options in seeds]
    mean_error = np.mean([over_permutations(s, options) for options in seeds])
    assert mean_error == pytest.approx(np.std(means, ddof=1), rel=0.5)
    estimate = of_samples("dime", s, options=few)
    parts = over_permutations(s, few), over_prompts(s, few)
    assert estimate.se == pytest.approx(math.hypot(*parts))
    assert estimate.df == 29


@pytest.mark.parametrize(
    ("n", "d", "alpha"), [(40, 8, 1.0), (40, 60, 1.0), (40, 8, 2.0), (40, 8, 3.0), (80, 30, 1.0)]
)
def test_the_other_part_of_dimes_error_is_over_prompts(n, d, alpha):
    """Prompts left out of both views, each permutation kept but for them, everything solved anew:
    numpy only."""
    s = draw(n, d, 5)
    s.keys = np.arange(n)
    found = over_prompts(s, Options(alpha=alpha))
    a, b = (ref.prepare(s.views[:, i], "unit") for i in (0, 1))
    perms = ref.permutations(n, 10, 0)
    left = [ref.dime_without(a, b, np.arange(n) % 20 == g, perms, alpha) for g in range(20)]
    expected = math.sqrt(19 / 20 * np.square(np.array(left) - np.mean(left)).sum())
    assert found == pytest.approx(expected, rel=0.35)  # each is an estimate from few prompts


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
def test_entropies_without_each_row(alpha):
    rows = draw(70, 40, 6).pooled
    unit = ref.prepare(rows, "unit")
    gram = torch.tensor((unit @ unit.T) ** 2)
    found = entropies_without_each(gram.unsqueeze(0), alpha)[0].numpy()
    stay = [np.delete(np.arange(70), i) for i in range(70)]
    exact = np.array([ref._psd_entropy(gram.numpy()[np.ix_(s, s)], alpha) for s in stay])
    if alpha == 3.0:  # to first order
        assert np.corrcoef(found, exact)[0, 1] > 0.99
    np.testing.assert_allclose(found, exact, atol=3e-2 if alpha == 3.0 else 1e-5)


def test_two_way_effects_are_told_apart():
    rng = np.random.default_rng(0)
    of_a, of_b = rng.normal(size=(2, 30))
    orders = [rng.permutation(30) for _ in range(6)]
    seen = np.stack([of_a + of_b[p] + 0.01 * rng.normal(size=30) + 5 for p in orders])
    found_a, found_b, noise = two_way_effects(
        np.stack([seen, 3 * seen]), orders
    )  # two sets at once
    np.testing.assert_allclose(found_a, np.outer([1, 3], of_a - of_a.mean()), atol=0.15)
    np.testing.assert_allclose(found_b, np.outer([1, 3], of_b - of_b.mean()), atol=0.15)
    np.testing.assert_allclose(found_b[1], 3 * found_b[0])
    np.testing.assert_allclose(noise, [1e-4, 9e-4], rtol=0.4)


@pytest.mark.parametrize("d", [8, WIDE])
def test_dimes_interval_covers(d):
    """Of 120 datasets of 40 prompts, how many intervals hold the mean of all; over permutations
    alone it is far fewer."""
    runs = estimates("dime", 40, d, 120)
    truth = np.mean([run.value for run in runs])
    held = np.mean([low <= truth <= high for low, high in map(interval, runs)])
    errors = [over_permutations(draw(40, d, seed), Options()) for seed in range(120)]
    narrow = np.mean(
        [abs(run.value - truth) <= 2.262 * error for run, error in zip(runs, errors, strict=True)]
    )
    assert 0.92 <= held <= 1.0, held
    assert narrow < 0.75


# (c) the interval itself
# ----------------------------------------------------------------------------------------------


def mean_estimate(values: np.ndarray) -> Estimate:
    return Estimate(values.mean(), len(values), 1, (values - values.mean()) / len(values))


def test_of_a_mean_is_the_percentile_bootstrap():
    values = np.random.default_rng(0).exponential(size=30)
    low, high = interval(mean_estimate(values))
    rng = np.random.default_rng(9)
    means = [rng.choice(values, 30).mean() for _ in range(20_000)]
    bootstrap = np.quantile(means, [0.025, 0.975])
    # resampled N, the spread is √((N − 1)/N) of the sample's: the interval undoes that
    wanted = values.mean() + (bootstrap - values.mean()) * math.sqrt(30 / 29)
    assert [low, high] == pytest.approx(list(wanted), abs=0.1 * (high - low))
    half = Z95 * values.std(ddof=1) / math.sqrt(30)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_of_very_many_prompts_is_normal(monkeypatch):
    values = np.random.default_rng(0).normal(size=400)
    drawn = interval(mean_estimate(values))
    monkeypatch.setattr(intervals_module, "_LARGEST_DRAWN", 100)
    low, high = interval(mean_estimate(values))
    assert (high - low) / 2 == pytest.approx(Z95 * values.std(ddof=1) / 20, rel=1e-5)
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=1e-12)
    assert [low, high] == pytest.approx(list(drawn), abs=0.1 * (high - low))


@pytest.mark.parametrize(
    "estimate",
    [
        Estimate(1.0, 1, 1, np.zeros(1)),
        Estimate(1.0, 0, 1, np.zeros(0)),
        Estimate(math.nan, 5, 1, np.ones(5)),
        Estimate(1.0, 5, 1, np.array([1.0, math.nan, 0, 0, 0])),
        Estimate(1.0, 5, 1),
        Estimate(1.0, 5, 1, se=math.nan),
    ],
)
def test_none_where_there_is_none(estimate):
    assert all(math.isnan(x) for x in interval(estimate))


def test_of_a_standard_error():
    low, high = interval(Estimate(2.0, 5, 1, se=0.5))
    assert [low, high] == pytest.approx([2 - Z95 / 2, 2 + Z95 / 2], abs=1e-6)


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.706), (9, 2.262), (19, 2.093), (30, 2.042), (200, Z95), (None, Z95)]
)
def test_few_folds_widen_it(df, quantile):
    low, high = interval(Estimate(2.0, 5, 1, se=0.5, df=df))
    assert (high - low) / 2 == pytest.approx(0.5 * quantile, rel=1e-3)


def test_scaled_and_mapped():
    estimate = Estimate(2.0, 3, 1, np.array([1.0, -1.0, 0.0]), undefined=4)
    double = estimate.scaled(-2.0)
    assert (double.value, double.influence.tolist(), double.undefined) == (
        -4.0,
        [-2.0, 2.0, 0.0],
        4,
    )
    assert Estimate(2.0, 3, 1, se=0.5).scaled(-2.0).se == 1.0
    squared = estimate.mapped(lambda x: x * x, slope=4.0)
    assert (squared.value, squared.influence.tolist()) == (4.0, [4.0, -4.0, 0.0])


# (d) why not the plain bootstrap
# --------------------------------------------------------------------------------------
