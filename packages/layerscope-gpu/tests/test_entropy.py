"""The approximate entropy: near the exact one, within its bound, blind to rows of zeros; in
float64, float32 and float16."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope_gpu import entropy
from layerscope_gpu.precision import half_products

KINDS = ["plain", "anisotropic", "sink", "decaying", "raw", "one direction", "three rows", "narrow"]
WAYS = [(torch.float64, False), (torch.float32, False), (torch.float32, True)]


def grams(kind: str, n: int = 96, width: int = 160) -> torch.Tensor:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(4, n, width)))
    if kind == "anisotropic":
        x = x + 5
    if kind in ("sink", "raw"):
        x[:, 0] *= 1000 if kind == "sink" else 30
    if kind == "decaying":
        x = x * torch.arange(1, width + 1) ** -1.0
    if kind == "one direction":
        x[..., 0] *= 100
    if kind == "three rows":
        x = x[:, torch.from_numpy(rng.integers(0, 3, n))]
    if kind == "narrow":
        x = x[..., :20]
    if kind not in ("anisotropic", "three rows"):
        x = x - x.mean(1, keepdim=True)
    if kind != "raw":
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x @ x.mT


def exact_entropy(gram: torch.Tensor) -> torch.Tensor:
    values = torch.linalg.eigvalsh(gram.double()).clamp(min=0)
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1)


def numpy_basis(t: np.ndarray) -> list[np.ndarray]:
    reduced = {k: np.cos(k * np.arccos(2 * t - 1)) - (-1) ** k for k in (1, 2, 4, 8)}
    return [
        -4 * reduced[1],
        reduced[2],
        -4 * reduced[1] * reduced[2],
        reduced[4],
        reduced[8],
        reduced[8] ** 2,
    ]


def test_the_basis_is_that_of_chebyshev():
    t = np.linspace(0, 1, 500)
    values = numpy_basis(t)
    known = np.stack(
        [values[0], *(values[i] * values[j] for i in range(6) for j in range(i, 6))], axis=-1
    )
    np.testing.assert_allclose(entropy.features(torch.from_numpy(t)).numpy(), known, atol=1e-9)
    assert len(entropy.PAIRS) + 1 == known.shape[-1]
    full = np.concatenate(
        [known, known[:, :1] * 0 + 1], axis=-1
    )  # with the constant: all polynomials up to degree 12
    for degree in range(13):
        wanted = t**degree
        assert np.abs(full @ np.linalg.lstsq(full, wanted, rcond=1e-13)[0] - wanted).max() < 1e-8


def test_fits_are_as_good_as_they_say():
    t = np.linspace(0, 1, 200_001)[1:]
    values = entropy.features(torch.from_numpy(t)).numpy()
    known = entropy.table()
    for k in range(0, len(known.shares), 7):
        error = np.abs(values @ known.weights[k].numpy() - t * np.log(t))
        assert error.max() <= 1.001 * known.largest[k]
        assert (error / (t + known.shares[k].item())).max() <= 1.001 * known.relative[k]
    shares = torch.logspace(-4, 0, 500, dtype=torch.float64)
    assert (entropy.bound(shares) * shares <= 1.2e-3).all()  # what is promised
    assert (entropy.bound(shares)[shares > 0.3] < 4e-3).all()
    assert known.weights.abs().max() < 2  # so that rounding is not magnified


@pytest.mark.parametrize("n", [96, 93])
@pytest.mark.parametrize(("dtype", "half"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_within_its_bound(kind, dtype, half, n):
    gram = grams(kind, n)
    exact, bound = exact_entropy(gram), entropy.entropy_bound(gram)
    found = entropy.approximate_entropy(gram.to(dtype), half)
    assert ((found - exact).abs() <= bound + (0 if half else 1e-5)).all()
    rounding = (found - entropy.approximate_entropy(gram)).abs()
    assert (rounding <= (1e-4 + 0.06 * bound if half else 1e-5)).all()
    if kind == "plain":
        assert (found - exact).abs().max() < 3e-4


@pytest.mark.parametrize("half", [False, True])
def test_known_answers(half):
    eye = torch.eye(64).repeat(2, 1, 1)
    blocks = torch.block_diag(torch.ones(32, 32), torch.ones(32, 32)).repeat(2, 1, 1)
    for matrices, known in (
        (eye, math.log(64)),
        (3e5 * eye, math.log(64)),
        (1e-9 * eye, math.log(64)),
        (blocks, math.log(2)),
    ):
        found = entropy.approximate_entropy(matrices, half)
        assert (found - known).abs().max() < 3e-3, known
    found = entropy.approximate_entropy(torch.ones(1, 64, 64), half)
    assert found.abs().item() < 3e-3


def test_float16_is_what_it_says():
    """The same steps in numpy, each array rounded to float16, each product of float16 factors
    exact."""
    gram = grams("decaying", 40)[0].numpy()
    h = (gram / gram.diagonal().max()).astype(np.float16)
    p = (h.astype(float) @ h).astype(np.float16)
    second, fourth = p.diagonal().astype(float).sum(), (p.astype(float) ** 2).sum()
    b = 1.002 * math.sqrt((second + math.sqrt(39 * (40 * fourth - second**2))) / 40)
    b = 8 / (
        math.floor(8 / b * 2 ** (11 - math.frexp(8 / b)[1])) / 2 ** (11 - math.frexp(8 / b)[1])
    )
    one = (-8 / b * h.astype(float)).astype(np.float16)
    two = (8 / b**2 * p.astype(float) + one).astype(np.float16)
    arrays = [one, two, (one.astype(float) @ two).astype(np.float16)]
    for _ in range(2):
        last = arrays[-1].astype(float) if len(arrays) > 3 else two.astype(float)
        arrays.append((2 * last @ last + 4 * last).astype(np.float16))
    arrays.append((arrays[-1].astype(float) @ arrays[-1]).astype(np.float16))
    sums = [(a.astype(float) * c).sum() for i, a in enumerate(arrays) for c in arrays[i:]]
    trace = np.trace(gram) / gram.diagonal().max()
    used = entropy.weights(torch.tensor([trace / (40 * b)], dtype=torch.float64))[0].numpy()
    known = math.log(trace / b) - b / trace * (used @ [-8 * trace / b, *sums])
    found = entropy.approximate_entropy(torch.from_numpy(gram)[None].float(), half=True).item()
    assert found == pytest.approx(known, abs=3e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12), st.integers(0, 3))
def test_the_largest_eigenvalue_is_bounded(values, zeros):
    diagonal = torch.tensor([*values, *[0.0] * zeros], dtype=torch.float64)
    matrix = torch.diag(diagonal)[None]
    b = entropy._largest(matrix @ matrix, diagonal[None])
    assert max(values) <= b.item() <= 1.002 * sum(v**4 for v in values) ** 0.25 * (1 + 1e-9)
    assert (entropy.entropy_bound(matrix) <= 1.2e-3 * len(values) * b / sum(values)).all()


@pytest.mark.parametrize("half", [False, True])
def test_scale_rows_of_zeros_and_chunks_do_not_matter(monkeypatch, half):
    gram = grams("plain").to(torch.float32 if half else torch.float64)
    close = 2e-5 if half else 1e-9
    plain = entropy.approximate_entropy(gram, half)
    padded = torch.zeros(4, 120, 120, dtype=gram.dtype)
    padded[:, 5:101, 5:101] = 7 * gram
    torch.testing.assert_close(entropy.approximate_entropy(padded, half), plain, rtol=0, atol=close)
    monkeypatch.setattr(entropy, "_CHUNK_BYTES", 1)
    torch.testing.assert_close(
        entropy.approximate_entropy(gram, half), plain, rtol=0, atol=close / 100
    )


@pytest.mark.parametrize("half", [False, True])
def test_nothing_has_no_entropy_and_not_a_number_stays_with_itself(half):
    assert entropy.approximate_entropy(torch.zeros(2, 300, 300), half).isnan().all()
    assert entropy.approximate_entropy(torch.zeros(0, 300, 300), half).shape == (0,)
    given = grams("plain").float()
    plain = entropy.approximate_entropy(given, half)
    given[1, 7, 3] = given[1, 3, 7] = given[2, 5, 5] = torch.nan
    found = entropy.approximate_entropy(given, half)
    assert found.isnan().tolist() == [False, True, True, False]
    torch.testing.assert_close(found[[0, 3]], plain[[0, 3]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("allowed", [True, False, (False, False)])
def test_half_products_leave_settings_as_they_were(monkeypatch, allowed):
    switch, name = torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = getattr(switch, name)
    try:
        setattr(switch, name, allowed)
        split = getattr(switch, f"{name}_split_k", True)
        with half_products():
            assert not getattr(switch, name)
        assert getattr(switch, name) is (allowed is True)
        assert getattr(switch, f"{name}_split_k", True) == split
    finally:
        setattr(switch, name, before)
