"""The example of two metrics with a Gaussian kernel: known answers, invariances, and a profile that
measures them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbf_entropy import DATASET_ENTROPY_RBF, PROMPT_ENTROPY_RBF, rbf_gram

import layerscope
from layerscope.metrics import Options
from layerscope.metrics.registry import REGISTRY
from tests.metrics import reference as ref
from tests.metrics.support import compute, make_samples, of_samples, tensor
from tests.tiny import tiny_model


@pytest.fixture(autouse=True, scope="module")
def with_the_metrics() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        own = {metric.info.name: metric for metric in (DATASET_ENTROPY_RBF, PROMPT_ENTROPY_RBF)}
        patch.setattr(REGISTRY, "_things", {**REGISTRY.all(), **own})
        yield


def value(name: str, data: np.ndarray, options: Options | None = None) -> float:
    return compute(name, tensor(data), options).value


def reference_entropy(z: np.ndarray, alpha: float = 1.0, rows: str = "centered-unit") -> float:
    """S_α of exp(−d² / 2 m²), with m the median distance, distances one by one."""
    z = ref.prepare(z, rows)
    n = len(z)
    d = np.array([[math.sqrt(((z[i] - z[j]) ** 2).sum()) for j in range(n)] for i in range(n)])
    middle = float(np.median([d[i, j] ** 2 for i in range(n) for j in range(i)])) if n > 1 else 0.0
    return ref._psd_entropy(
        np.exp(-(d**2) / (2 * middle)) if middle > 0 else np.ones((n, n)), alpha
    )


def test_a_profile_takes_them(texts: list[str]) -> None:
    run = layerscope.profile(
        tiny_model("llama"),
        texts,
        metrics=[PROMPT_ENTROPY_RBF, DATASET_ENTROPY_RBF],
        progress=False,
    )
    assert set(run.table["metric"]) == {"prompt_entropy_rbf", "dataset_entropy_rbf"}
    assert run.table["value"].notna().all()


def test_equal_distances_have_a_closed_form() -> None:
    """All rows of a simplex are as far apart: K has 1 + (n − 1) c once and 1 − c otherwise, c =
    e^(−1/2)."""
    n, c = 6, math.exp(-0.5)
    p = np.array([1 + (n - 1) * c, *[1 - c] * (n - 1)]) / n
    expected = float(-(p * np.log(p)).sum())
    assert value("dataset_entropy_rbf", np.eye(n)) == pytest.approx(expected, abs=1e-12)
    assert value("prompt_entropy_rbf", np.eye(n)[None]) == pytest.approx(expected, abs=1e-12)
    assert value("dataset_entropy_rbf", np.eye(n), Options(alpha=2)) == pytest.approx(
        -math.log((p**2).sum()), abs=1e-12
    )


def test_it_sees_distances_where_the_linear_one_sees_directions() -> None:
    line = np.arange(12.0)[:, None] * np.ones((1, 3))
    assert value("dataset_entropy", line, Options(pooled_rows="centered")) == pytest.approx(
        0, abs=1e-9
    )
    assert value("dataset_entropy_rbf", line, Options(pooled_rows="centered")) > 0.5
    assert value(
        "dataset_entropy_rbf", np.ones((5, 3)), Options(pooled_rows="raw")
    ) == pytest.approx(0, abs=1e-12)
    assert math.isnan(
        value("dataset_entropy_rbf", np.ones((5, 3)))
    )  # centered, no row has a direction
    # most rows equal: the median distance is 0, the smallest of the others is taken
    few = np.concatenate([np.zeros((9, 2)), np.ones((1, 2))])
    assert math.isfinite(value("dataset_entropy_rbf", few, Options(pooled_rows="raw")))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 10), st.integers(1, 8), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_invariances_and_bounds(n: int, d: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    gram = rbf_gram(tensor(z))
    assert torch.allclose(
        gram, rbf_gram(tensor(scale * z + 4)), atol=1e-6
    )  # the width follows the data
    assert torch.linalg.eigvalsh(gram).min() > -1e-9
    assert bool((gram.diagonal() == 1).all())
    found = value("dataset_entropy_rbf", z, Options(pooled_rows="raw"))
    assert -1e-9 <= found <= math.log(n) + 1e-9


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("rows", ["raw", "unit", "centered-unit"])
def test_against_the_reference(alpha: float, rows: str) -> None:
    s = make_samples(15, 7)
    options = Options(alpha=alpha, pooled_rows=rows, rows=rows)  # type: ignore[arg-type]
    found = of_samples("dataset_entropy_rbf", s, options).value
    assert found == pytest.approx(reference_entropy(s.pooled, alpha, rows), abs=1e-9)
    expected = np.mean([reference_entropy(t, alpha, rows) for t in s.tokens])
    assert of_samples("prompt_entropy_rbf", s, options).value == pytest.approx(expected, abs=1e-9)


def test_its_error_leaves_folds_out() -> None:
    for n in (40, 83):  # solved, and by quadrature; a few prompts are in no fold
        s = make_samples(n, 10)
        s.keys = np.arange(n)
        size = n // 20
        z = ref.prepare(s.pooled, "centered-unit")
        d = ((z[:, None] - z[None]) ** 2).sum(-1)
        gram = np.exp(-d / (2 * np.median(d[np.triu_indices(n, 1)])))
        left = []
        for g in range(20):
            stay = np.array([i for i in range(n) if not (i % 20 == g and i < 20 * size)])
            left.append(ref._psd_entropy(gram[np.ix_(stay, stay)], 1.0))
        expected = math.sqrt((n - size) / size * np.square(np.array(left) - np.mean(left)).mean())
        assert of_samples("dataset_entropy_rbf", s).se == pytest.approx(expected, rel=1e-3)
