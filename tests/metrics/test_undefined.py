"""What has no value is counted, never averaged in; what cannot be asked raises a clear
ValueError."""

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import (
    Options,
    get_metric,
    interval,
    matrix_entropy,
    metrics,
    normalizer,
    spectrum_entropy,
)
from layerscope.metrics.tokens import find_sink
from tests.metrics import reference as ref
from tests.metrics.support import compute, make_samples, measure_tokens, pad, tensor

RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=(6, 8))
AWKWARD = 0.1 * np.array([1.0, 3.0, 7.0, -1.1, 0.3, 9.0, 2.7, 1 / 3])  # sums of these round


def estimate(name, tokens, options=None):
    states, mask = pad(tokens)
    return compute(name, states, options, mask=mask)


def assert_no_value(result, prompts):
    assert math.isnan(result.value)
    assert result.undefined == prompts
    assert all(math.isnan(x) for x in interval(result))


def test_short_prompts_are_counted_not_averaged():
    tokens = [GOOD, GOOD[:1], GOOD[:2], GOOD[:3]]
    bent = estimate("curvature", tokens)
    assert (bent.n, bent.undefined) == (2, 2)
    assert bent.value == pytest.approx(
        (ref.curvature(GOOD) + ref.curvature(GOOD[:3])) / 2, abs=1e-9
    )
    spread = estimate(
        "prompt_entropy", tokens
    )  # one token, centered, is nothing; two are one direction
    assert (spread.n, spread.undefined) == (3, 1)
    assert spread.value == pytest.approx(
        (ref.prompt_entropy(GOOD) + 0 + ref.prompt_entropy(GOOD[:3])) / 3, abs=1e-9
    )
    raw = estimate("prompt_entropy", tokens, Options(rows="raw"))
    assert (raw.n, raw.undefined) == (4, 0)
    for result in (bent, spread, raw):
        assert all(math.isfinite(x) for x in interval(result))


@pytest.mark.parametrize("rows", ["centered", "centered-unit"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [3, 7, 9])  # the Gram path and the direct one
def test_equal_tokens(length, dtype, alpha, rows):
    states = tensor(np.tile(AWKWARD, (2, length, 1))).to(dtype)
    result = compute("prompt_entropy", states, Options(rows=rows, alpha=alpha))
    assert_no_value(result, 2)
    assert_no_value(compute("curvature", states), 2)
    out = measure_tokens(states, None, find_sink(states), Options(rows=rows, alpha=alpha))
    for values in (out.entropy, out.curvature):
        assert torch.isnan(torch.stack(list(values.values()))).all()
    assert out.flat.tolist() == [length - 2] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [4, 8, 12])
def test_equal_tokens_beside_a_sink(length, dtype):
    """Fully repeated prompts: without the first token nothing is left that differs."""
    rng = np.random.default_rng(1)
    for factor in (2.0, 300.0, 3e4):
        tokens = np.tile(AWKWARD, (1, length, 1))
        tokens[0, 0] = factor * rng.normal(size=8)
        states = tensor(tokens).to(dtype)
        out = measure_tokens(states, None, find_sink(states), Options())
        assert out.entropy["keep"].item() == pytest.approx(0.0, abs=1e-9)
        assert math.isnan(out.entropy["drop"].item())
        assert math.isnan(out.curvature["keep"].item())
        assert math.isnan(out.curvature["drop"].item())
        assert out.flat.item() == length - 2


POOLED = sorted(n for n, m in metrics().items() if m.info.level == "pooled")


@pytest.mark.parametrize("n", [3, 7, 30])
@pytest.mark.parametrize("name", ["lidar", "lidar_rank"])
def test_prompts_with_the_same_views(name, n):
    """No scatter between prompts: rounding must not pass for some."""
    views = np.stack([AWKWARD, AWKWARD * 1.7 + 0.1, AWKWARD[::-1]])
    assert_no_value(compute(name, tensor(np.tile(views, (n, 1, 1)))), n)


def test_duplicates_among_others():
    rows = np.concatenate([RNG.normal(size=(20, 4)), GOOD[:1, :4], GOOD[:1, :4]])
    result = compute("intrinsic_dimension", tensor(rows))
    assert (result.n, result.undefined) == (20, 2)
    assert result.value == pytest.approx(ref.intrinsic_dimension(rows), rel=1e-9)
    for name in POOLED:
        assert math.isfinite(compute(name, tensor(rows)).value)


def test_vectors_of_length_zero_have_no_cosine():
    rows = np.concatenate([np.zeros((2, 4)), RNG.normal(size=(9, 4))])
    result = compute("anisotropy", tensor(rows))
    assert (result.n, result.undefined) == (9, 2)
    assert result.value == pytest.approx(ref.anisotropy(rows), abs=1e-12)
    assert len(result.influence) == 11
    assert result.influence[np.abs(result.influence) == 0].size >= 2
    assert all(math.isfinite(x) for x in interval(result))
    assert_no_value(compute("anisotropy", tensor(np.zeros((3, 4)))), 3)


def test_two_prompts_have_no_power_law():
    assert_no_value(compute("alpha_req", tensor(GOOD[:2])), 2)
    assert_no_value(compute("intrinsic_dimension", tensor(GOOD[:2])), 2)
    assert compute("nesum", tensor(GOOD[:2])).value == pytest.approx(1.0)


def test_a_spectrum_of_nothing_has_no_entropy():
    for alpha in (0.0, 0.5, 1.0, 2.0, math.inf):
        values = spectrum_entropy(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), alpha)
        assert math.isnan(values[0])
        assert values[1] == 0
        assert math.isnan(matrix_entropy(torch.zeros(3, 2), alpha))


def test_normalizers_that_are_zero_are_not_divided_by():
    assert math.isnan(normalizer("logN", 1, 8))
    assert math.isnan(normalizer("maxEntropy", 8, 1))
    assert normalizer("raw", 1, 1) == 1.0
    states, mask = pad([GOOD, GOOD[:1]])
    result = compute("prompt_entropy", states, Options(rows="raw"), mask=mask, normalization="logN")
    assert (result.n, result.undefined) == (1, 1)
    assert result.value == pytest.approx(
        ref.prompt_entropy(GOOD, rows="raw") / math.log(6), rel=1e-9
    )
    assert math.isnan(compute("rankme", tensor(GOOD[:1]), normalization="logN").value)


# What cannot be asked
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [-1.0, -1e-9, math.nan, -math.inf])
@pytest.mark.parametrize("name", ["prompt_entropy", "dataset_entropy", "lidar", "dime"])
def test_bad_alpha(name, alpha):
    s = make_samples(5, 4)
    data = {"tokens": pad(s.tokens), "pooled": (tensor(s.pooled),), "views": (tensor(s.views),)}[
        get_metric(name).info.level
    ]
    with pytest.raises(ValueError, match="alpha must be a number >= 0"):
        compute(name, data[0], Options(alpha=alpha), mask=data[1] if data[1:] else None)


@pytest.mark.parametrize("rows", ["centred-unit", "banana", ""])
def test_bad_rows(rows):
    s = make_samples(5, 4)
    message = "rows must be one of raw, unit, centered, centered-unit"
    for width in (1, 4):  # both paths
        with pytest.raises(ValueError, match=message):
            compute("prompt_entropy", torch.randn(2, 3, width), Options(rows=rows))
        with pytest.raises(ValueError, match=message):
            measure_tokens(torch.randn(2, 3, width), None, None, Options(rows=rows))
    with pytest.raises(ValueError, match=message):
        compute("dataset_entropy", s.pooled, Options(pooled_rows=rows))
    for name in ("infonce", "dime"):
        with pytest.raises(ValueError, match=message):
            compute(name, s.views, Options(view_rows=rows))
    with pytest.raises(ValueError, match=message):
        compute("lidar", s.views, Options(lidar_rows=rows))
