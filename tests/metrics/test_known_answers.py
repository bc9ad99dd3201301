"""Small cases whose answer is known without a computer."""

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, get_metric, matrix_entropy
from layerscope.metrics.dime import dime_values
from layerscope.metrics.infonce import info_nce
from tests.metrics import reference as ref
from tests.metrics.support import measure_tokens, tensor

close = pytest.approx


def value(name: str, data, options: Options | None = None) -> float:
    return get_metric(name)(options).update(tensor(data)).compute().value


def plus_minus_axes(d: int) -> np.ndarray:
    return np.concatenate([np.eye(d), -np.eye(d)])


def simplex(n: int) -> np.ndarray:
    return np.eye(n) - 1 / n


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, math.inf])
def test_plus_and_minus_axes(alpha):
    assert value("dataset_entropy", plus_minus_axes(5), Options(alpha=alpha)) == close(
        math.log(5), abs=1e-12
    )
    assert value("prompt_entropy", plus_minus_axes(5)[None], Options(alpha=alpha)) == close(
        math.log(5), abs=1e-12
    )


def test_ranks_of_plus_and_minus_axes():
    for name in ("effective_rank", "entropy_rank", "nesum"):
        assert value(name, plus_minus_axes(5)) == close(5.0, abs=1e-12)
    assert value("rankme", plus_minus_axes(5)) == close(5.0, abs=1e-4)


def test_identity_matrix_loses_one_direction_to_centring():
    assert value("dataset_entropy", np.eye(6)) == close(math.log(5), abs=1e-12)
    assert matrix_entropy(torch.eye(6)).item() == close(math.log(6), abs=1e-12)


def test_two_eigenvalues():
    """K = diag(3, 1): p = (3/4, 1/4)."""
    z = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64).sqrt())
    assert matrix_entropy(z, 1.0).item() == close(
        -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-12
    )
    assert matrix_entropy(z, 2.0).item() == close(-math.log(10 / 16), abs=1e-12)
    assert matrix_entropy(z, math.inf).item() == close(-math.log(0.75), abs=1e-12)
    assert matrix_entropy(z, 0.0).item() == close(math.log(2), abs=1e-12)


@pytest.mark.parametrize(
    ("path", "angle"),
    [
        ([[0, 0], [1, 0], [1, 1], [0, 1]], math.pi / 2),
        ([[0, 0], [1, 0], [2, 0], [5, 0]], 0.0),
        ([[0, 0], [1, 0], [0, 0], [1, 0]], math.pi),
        ([[0, 0], [1, 0], [2, 1]], math.pi / 4),
        ([[0, 0], [1, 0], [1, 0], [2, 0], [3, 0]], 0.0),  # the two terms with the halt are left out
        (
            [[0, 0], [1, 0], [1, 1], [1, 1], [5, 5], [6, 6], [6, 6]],
            math.pi / 4,
        ),  # the same: a right angle and none
    ],
)
def test_curvature_of_paths(path, angle):
    data = np.pad(np.array(path, dtype=float), ((0, 0), (0, 10)))[None]
    for states in (data, 1e3 * data + 5):
        assert value("curvature", states) == close(angle, abs=1e-6)
        through_gram = measure_tokens(tensor(states), None, None, Options(), entropy=False)
        assert through_gram.curvature["keep"].item() == close(angle, abs=1e-6)


def test_infonce_of_equal_views_of_orthogonal_prompts():
    n, tau = 8, 0.1
    same = np.eye(n)[:, None].repeat(2, 1)
    expected = math.log1p((2 * n - 2) * math.exp(-1 / tau))
    assert value("infonce", same) == close(expected, rel=1e-9)
    assert value("infonce_mi", same) == close(math.log(n) - expected, abs=1e-12)


def test_infonce_of_views_that_say_nothing():
    assert value("infonce", np.ones((8, 2, 3))) == close(math.log(15), abs=1e-12)
    losses, _ = info_nce(torch.ones(8, 3), torch.ones(8, 3), one_way=True)
    assert losses.mean().item() == close(math.log(8), abs=1e-5)


def test_infonce_at_its_upper_bound():
    """One view at +x, the other at −x: the partner is as far as can be, half of the others as near
    as can be."""
    n, tau = 6, 0.5
    views = np.stack([np.tile([1.0, 0], (n, 1)), np.tile([-1.0, 0], (n, 1))], axis=1)
    expected = math.log(n * math.exp(-1 / tau) + (n - 1) * math.exp(1 / tau)) + 1 / tau
    assert value("infonce", views, Options(temperature=tau)) == close(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "d"), [(5, 9), (9, 9), (40, 6)])
def test_lidar_of_well_separated_clusters(n, d):
    """Centers spread evenly over all the directions they can have: log min(N − 1, D)."""
    rng = np.random.default_rng(0)
    centers = np.zeros((n, d))
    if n <= d:
        centers[:, :n] = simplex(n)
    else:
        centers[: 2 * (n // (2 * d)) * d] = np.tile(plus_minus_axes(d), (n // (2 * d), 1))
    half = rng.normal(size=(d, d))
    noise = 1e-3 * np.linalg.qr(half)[0]
    views = 100 * centers[:, None] + np.concatenate([noise, -noise])[None]
    assert value("lidar", views) == close(math.log(min(n - 1, d)), abs=1e-6)
    assert value("lidar_rank", views) == close(min(n - 1, d), rel=1e-6)


def test_lidar_sees_past_a_noisy_direction():
    """Whitening: a direction where views differ as much as prompts no longer counts like the
    others."""
    rng = np.random.default_rng(0)
    centers = np.tile(plus_minus_axes(3), (4, 1))
    quiet = centers[:, None] + 0.01 * rng.normal(size=(24, 6, 3))
    noisy = quiet.copy()
    noisy[..., 2] += 5 * rng.normal(size=(24, 6))
    assert value("lidar_rank", quiet) == close(3, abs=0.05)
    assert value("lidar_rank", noisy) == close(2, abs=0.1)


def test_dime_of_two_clusters():
    """Shuffled, the product of two block matrices keeps its blocks only if the permutation does:
    log 4 − log 2 or 0."""
    a = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    seen = set()
    for term, perm in zip(dime_values(a, a, 1.0, 30, 0), ref.permutations(4, 30, 0), strict=True):
        kept = {perm[0], perm[1]} in ({0, 1}, {2, 3})
        assert term == close(0.0 if kept else math.log(2), abs=1e-9)
        seen.add(kept)
    assert seen == {True, False}


def test_dime_without_structure_is_zero():
    assert value("dime", np.eye(8)[:, None].repeat(2, 1)) == close(0.0, abs=1e-9)  # all orthogonal
    assert value("dime", np.ones((8, 2, 3))) == close(0.0, abs=1e-9)  # all the same
    rng = np.random.default_rng(0)
    estimate = (
        get_metric("dime")(Options(permutations=40))
        .update(tensor(rng.normal(size=(40, 2, 3))))
        .compute()
    )
    spread = estimate.se * math.sqrt(40)  # the pairing is one permutation like the others
    assert abs(estimate.value) < 4 * spread


def test_dime_of_related_views_is_positive():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(40, 1, 3))
    assert value("dime", np.concatenate([a, a + 0.1 * rng.normal(size=a.shape)], axis=1)) > 0.1


def test_anisotropy():
    assert value("anisotropy", np.tile([3.0, 4.0], (5, 1))) == close(1.0, abs=1e-12)
    assert value("anisotropy", np.arange(1, 6)[:, None] * np.array([[3.0, 4.0]])) == close(
        1.0, abs=1e-12
    )
    assert value("anisotropy", np.eye(5)) == close(0.0, abs=1e-12)
    assert value("anisotropy", simplex(5)) == close(-1 / 4, abs=1e-12)
    assert value("anisotropy", [[1.0, 0], [-2, 0]]) == close(-1.0, abs=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_intrinsic_dimension_of_a_flat_piece(dimension):
    rng = np.random.default_rng(0)
    rows = rng.uniform(size=(1500, dimension)) @ rng.normal(size=(dimension, 20)) + 7
    assert value("intrinsic_dimension", rows) == close(dimension, rel=0.12)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.3])
def test_power_law_exponent(exponent):
    lam = np.arange(1, 13) ** -exponent
    rows = np.concatenate([np.diag(lam**0.5), -np.diag(lam**0.5)]) + 3
    assert value("alpha_req", rows) == close(exponent, abs=1e-9)
    assert value("nesum", rows) == close(lam.sum(), rel=1e-9)


def test_sink():
    tokens = np.ones((2, 5, 3))
    tokens[0, 0] *= 100
    tokens[1, 3] *= 50
    assert value("sink_ratio", tokens) == close(75, rel=1e-6)
    assert value("sink_first", tokens) == 0.5


def _exact_lidar(views: np.ndarray, delta: float) -> float:
    """LiDAR with sixty digits."""
    mp = pytest.importorskip("mpmath")
    n, q, d = views.shape
    with mp.workdps(60):
        rows = [[[mp.mpf(float(x)) for x in view] for view in prompt] for prompt in views]
        centers = [[mp.fsum(view[k] for view in prompt) / q for k in range(d)] for prompt in rows]
        mean = [mp.fsum(center[k] for center in centers) / n for k in range(d)]
        within, between = mp.matrix(d, d), mp.matrix(d, d)
        for i in range(d):
            for j in range(d):
                inner = (
                    (view[i] - c[i]) * (view[j] - c[j])
                    for prompt, c in zip(rows, centers, strict=True)
                    for view in prompt
                )
                within[i, j] = mp.fsum(inner) / (n * q) + (mp.mpf(delta) if i == j else 0)
                between[i, j] = mp.fsum((c[i] - mean[i]) * (c[j] - mean[j]) for c in centers) / n
        inverse = mp.inverse(mp.cholesky(within))
        values = [
            max(mp.mpf(0), value)
            for value in mp.eigsy(inverse * between * inverse.T, eigvals_only=True)
        ]
        total = mp.fsum(values)
        return float(
            -mp.fsum(v / total * mp.log(v / total) for v in values if v > total * mp.mpf(10) ** -40)
        )


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e5, 1e6, 1e8, 1e10])
@pytest.mark.parametrize(("n", "q", "d"), [(5, 2, 8), (12, 2, 6), (4, 2, 12)])
def test_lidar_of_large_states(n: int, q: int, d: int, scale: float) -> None:
    """δ is far below the rounding of Σ_w there, and still decides the directions in which views do
    not differ."""
    views = scale * np.random.default_rng(n).normal(size=(n, q, d))
    metric = get_metric("lidar")().update(torch.from_numpy(views))
    result = metric.compute()
    assert result.value == close(_exact_lidar(views, 1e-4), abs=2e-5)
    assert result.undefined == 0
    assert math.isfinite(result.se)


def test_lidar_of_states_beyond_all_measure_is_undefined() -> None:
    views = 1e30 * np.random.default_rng(0).normal(size=(5, 2, 8))
    result = get_metric("lidar")().update(torch.from_numpy(views)).compute()
    assert math.isnan(result.value)
    assert result.undefined == 5
