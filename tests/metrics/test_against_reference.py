"""Every metric, as a function and as an accumulator, against the independent float64 reference.

Inputs of float32 and bfloat16 are exact in float64, and everything is computed in float64, so the
tolerance is 1e-9 for all of them; only the sink's norms are taken in float32 (1e-6).
"""

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import ROW_PREPARATIONS, Options, interval, matrix_entropy, metrics
from layerscope.metrics.dime import dime_values
from layerscope.metrics.geometry import neighbor_ratios
from layerscope.metrics.infonce import info_nce
from layerscope.metrics.options import prepare_rows
from layerscope.metrics.ranks import effective_rank, entropy_rank, nesum, power_law_exponent, rankme
from tests.metrics import reference as ref
from tests.metrics.support import REFERENCES, Samples, accumulate, make_samples, tensor

ALPHAS = (0.0, 0.1, 0.5, 1 - 1e-7, 1.0, 1 + 1e-7, 1.5, 2.0, 5.0, 200.0, math.inf)
SHAPES = {"N<D": (9, 24), "N>D": (24, 9), "N=D": (12, 12)}
close = pytest.approx


def matrix(shape: str, kind: str = "plain", seed: int = 0) -> np.ndarray:
    n, d = SHAPES[shape]
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    if kind == "anisotropic":
        z += 30 * rng.normal(size=d)
    if kind == "sink":
        z[0] *= 200
    return z


def test_every_metric_has_a_reference():
    assert set(REFERENCES) == set(metrics()), (
        "add the new metric to REFERENCES in tests/metrics/support.py"
    )


@pytest.mark.parametrize("kind", ["plain", "anisotropic", "sink"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROW_PREPARATIONS)
def test_matrix_entropy(shape, kind, rows):
    z = matrix(shape, kind)
    np.testing.assert_allclose(
        prepare_rows(tensor(z), rows), ref.prepare(z, rows), atol=1e-12 * np.abs(z).max()
    )
    for alpha in ALPHAS:
        # near α = 1 the reference itself loses digits: it divides a rounded logarithm by 1 − α
        tolerance = 1e-9 if abs(alpha - 1) > 1e-6 or alpha == 1 else 2e-8
        assert matrix_entropy(tensor(z), alpha, rows).item() == close(
            ref.dataset_entropy(z, alpha, rows), abs=tolerance
        ), alpha


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrix_entropy_of_low_precision_input(dtype):
    z = tensor(matrix("N<D", "anisotropic")).to(dtype)
    for rows in ("raw", "unit"):
        assert matrix_entropy(z, 1.0, rows).item() == close(
            ref.dataset_entropy(z.double(), 1.0, rows), abs=1e-9
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["plain", "anisotropic"])
def test_functions_of_a_spectrum(shape, kind):
    z = matrix(shape, kind)
    lam = torch.linalg.eigvalsh(tensor(z @ z.T if len(z) <= z.shape[1] else z.T @ z))
    assert effective_rank(lam).item() == close(ref.effective_rank(z, "raw"), rel=1e-9)
    assert entropy_rank(lam).item() == close(ref.entropy_rank(z, "raw"), rel=1e-9)
    assert rankme(lam).item() == close(ref.rankme(z), rel=1e-9)
    c = z - z.mean(0)
    lam = torch.linalg.eigvalsh(tensor(c.T @ c))
    assert power_law_exponent(lam).item() == close(ref.alpha_req(z), rel=1e-9)
    assert nesum(lam).item() == close(ref.nesum(z), rel=1e-9)


def test_ranks_of_a_matrix_that_is_not_full_rank():
    """Rounding of the Gram matrix, 1e-16 of the largest eigenvalue, would be 1e-8 of the largest
    singular value."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 200))
    s = Samples([], z, z[:, None])
    assert accumulate(
        "effective_rank", s, options=Options(pooled_rows="raw")
    ).compute().value == close(ref.effective_rank(z, "raw"), rel=1e-9)
    assert accumulate("rankme", s).compute().value == close(ref.rankme(z), rel=1e-9)
    for alpha in (0.0, 0.05, 0.3):
        assert matrix_entropy(tensor(z), alpha).item() == close(
            ref.matrix_entropy(z, alpha), abs=1e-9
        )


def test_view_functions():
    s = make_samples(14, 6)
    a, b = (prepare_rows(tensor(s.views[:, i]), "unit") for i in (0, 1))
    losses, _ = info_nce(a, b, 0.2)
    assert losses.mean().item() == close(ref.infonce(a, b, 0.2), abs=1e-9)
    for alpha in (1.0, 2.0, 0.5):
        ours = dime_values(a, b, alpha, 5, seed=3)
        assert ours == close(
            np.array(ref.dime_terms(a, b, ref.permutations(14, 5, 3), alpha)), abs=1e-9
        )


def test_infonce_in_blocks(monkeypatch):
    s = make_samples(14, 6)
    a, b = (prepare_rows(tensor(s.views[:, i]), "unit") for i in (0, 1))
    whole = [info_nce(a, b, 0.1, one_way) for one_way in (False, True)]
    monkeypatch.setattr("layerscope.metrics.infonce._BLOCK", 5)
    for (losses, negatives), one_way in zip(whole, (False, True), strict=True):
        blocked = info_nce(a, b, 0.1, one_way)
        torch.testing.assert_close(blocked[0], losses, rtol=0, atol=1e-12)
        torch.testing.assert_close(blocked[1], negatives, rtol=0, atol=1e-12)


def test_dime_in_batches(monkeypatch):
    s = make_samples(14, 6)
    a, b = (prepare_rows(tensor(s.views[:, i]), "unit") for i in (0, 1))
    whole = dime_values(a, b, 1.0, 7, seed=0)
    monkeypatch.setattr("layerscope.metrics.dime._BATCH_ENTRIES", {"cpu": 14 * 14 * 2})
    assert dime_values(a, b, 1.0, 7, seed=0) == close(whole, abs=1e-12)


def test_neighbors_far_from_the_origin_and_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 5)) + 1e4
    expected = ref.intrinsic_dimension(z)
    for block in (1024, 7):
        monkeypatch.setattr("layerscope.metrics.geometry._BLOCK", block)
        logs = neighbor_ratios(tensor(z)).log()
        assert 39 / logs.sum().item() == close(expected, rel=1e-9)


WIDTHS = {"N<D": 40, "N>D": 6}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(metrics()))
def test_accumulator(name, width):
    s = make_samples(20, WIDTHS[width])
    expected = REFERENCES[name](s, Options())
    assert accumulate(name, s, batch=6).compute().value == close(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        Options(
            alpha=2.0,
            rows="raw",
            pooled_rows="raw",
            view_rows="centered-unit",
            temperature=0.5,
            delta=0.1,
        ),
        Options(alpha=0.5, rows="unit", pooled_rows="unit", seed=4, permutations=3),
        Options(alpha=math.inf, rows="centered", pooled_rows="centered"),
    ],
    ids=["raw", "unit", "centered"],
)
@pytest.mark.parametrize(
    "name", ["prompt_entropy", "dataset_entropy", "effective_rank", "infonce", "lidar", "dime"]
)
def test_accumulator_under_other_options(name, options):
    for d in WIDTHS.values():
        s = make_samples(20, d, seed=3)
        expected = REFERENCES[name](s, options)
        assert accumulate(name, s, batch=6, options=options).compute().value == close(
            expected, rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [n for n, m in metrics().items() if m.info.level != "tokens"])
def test_accumulator_of_low_precision_input(name, dtype):
    s = make_samples(20, 6)
    s.pooled = tensor(s.pooled).to(dtype).double().numpy()
    s.views = tensor(s.views).to(dtype).double().numpy()
    level = metrics()[name].info.level
    given = tensor(s.pooled if level == "pooled" else s.views).to(dtype)
    value = metrics()[name]().update(given, keys=s.keys).compute().value
    assert value == close(REFERENCES[name](s, Options()), rel=1e-9, abs=1e-9)


def test_lidar_with_other_rows():
    s = make_samples(20, 6)
    views = np.stack([ref.prepare(s.views[:, i], "centered-unit") for i in range(4)], axis=1)
    ours = (
        accumulate("lidar", s, batch=6, options=Options(lidar_rows="centered-unit")).compute().value
    )
    assert ours == close(ref.lidar(views), abs=1e-9)


def test_dime_of_more_prompts_than_its_limit():
    """The first prompts in canonical order, which is the order of the keys, not of arrival."""
    s = make_samples(20, 6)
    first = np.argsort(s.keys)[:8]
    a, b = (ref.prepare(s.views[first, i], "unit") for i in (0, 1))
    estimate = accumulate("dime", s, batch=6, options=Options(dime_samples=8)).compute()
    terms = ref.dime_terms(a, b, ref.permutations(8, 10, 0))
    assert estimate.n == 8
    assert estimate.value == close(np.mean(terms), abs=1e-9)
    assert estimate.notes["se_permutations"] == close(
        np.std(terms, ddof=1) / math.sqrt(10), rel=1e-6
    )
    low, high = interval(estimate)
    assert (high - low) / 2 == close(2.3646 * estimate.se, rel=1e-4)  # seven degrees of freedom


def test_normalizations():
    s = make_samples(20, 6)
    log_n, log_d = math.log(20), math.log(6)
    divide = {
        "raw": 1.0,
        "maxEntropy": log_d,
        "logN": log_n,
        "logD": log_d,
        "logNlogD": log_n * log_d,
    }
    for name in ("dataset_entropy", "lidar", "dime"):
        metric = accumulate(name, s)
        assert set(metric.info.normalizations) == set(divide)
        raw = metric.compute()
        for normalization, by in divide.items():
            scaled = metric.compute(normalization)
            assert scaled.value == close(raw.value / by, rel=1e-12)
            width = np.subtract(*interval(scaled)) * by
            assert width == close(np.subtract(*interval(raw)), rel=1e-9)


def test_prompt_entropy_is_normalized_by_each_prompts_own_length():
    s = make_samples(20, 6)
    metric = accumulate("prompt_entropy", s, batch=7)
    for normalization in ("logN", "maxEntropy", "logD", "logNlogD"):
        values = []
        for t in s.tokens:
            log_n, log_d = math.log(len(t)), math.log(6)
            by = {
                "logN": log_n,
                "maxEntropy": min(log_n, log_d),
                "logD": log_d,
                "logNlogD": log_n * log_d,
            }[normalization]
            values.append(ref.prompt_entropy(t) / by)
        assert metric.compute(normalization).value == close(np.mean(values), rel=1e-9)
