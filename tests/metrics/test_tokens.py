"""Token measures: the Gram path (T ≤ D), the direct path (T > D) and the reference agree; padding
enters nothing."""

import numpy as np
import pytest
import torch

from layerscope.metrics import ROW_PREPARATIONS, Options
from layerscope.metrics.tokens import Sink, find_sink, prompt_entropies
from tests.metrics import reference as ref
from tests.metrics.support import compute, make_samples, measure_tokens, of_samples, pad, tensor

WIDTH = 16
LENGTHS = {"gram": (3, 7, 12, 16), "direct": (3, 9, 17, 40)}
KINDS = ("plain", "anisotropic", "sink", "huge sink", "two sinks", "repeats")
close = pytest.approx
both = pytest.mark.parametrize("d", [6, 40], ids=["N>D", "N<D"])


def prompts(path: str, kind: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    out = []
    for length in LENGTHS[path]:
        t = rng.normal(size=(length, WIDTH))
        if kind == "anisotropic":
            t += 50 * rng.normal(size=WIDTH)
        if "sink" in kind:
            t[0] *= 20_000 if kind == "huge sink" else 200
        if kind == "two sinks":
            t[-1] *= 150
        if kind == "repeats":
            t[0] *= 200
            t[2:] = t[2]
        out.append(t)
    return out


def exact(tokens: list[np.ndarray], dtype: torch.dtype) -> list[np.ndarray]:
    return [tensor(t).to(dtype).double().numpy() for t in tokens]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", LENGTHS)
def test_both_paths_against_the_reference(path, kind, dtype):
    tokens = exact(prompts(path, kind), dtype)
    states, mask = pad(tokens, dtype=dtype)
    assert (states.shape[1] > states.shape[2]) == (path == "direct")
    sink = find_sink(states, mask)
    where = sink.position.tolist()
    assert where == [ref.sink(t)[0] for t in tokens]
    assert sink.ratio.numpy() == close(np.array([ref.sink(t)[1] for t in tokens]), rel=1e-6)
    out = measure_tokens(states, mask, sink, Options())
    assert out.entropy["keep"].numpy() == close(
        np.array([ref.prompt_entropy(t) for t in tokens]), abs=1e-9, nan_ok=True
    )
    expected = [ref.prompt_entropy(t, drop=p) for t, p in zip(tokens, where, strict=True)]
    assert out.entropy["drop"].numpy() == close(np.array(expected), abs=1e-9, nan_ok=True)
    # acos has an infinite slope at ±1: cosines that agree to 1e-15 give angles that agree to 3e-8
    # there
    tolerance = 1e-6 if kind == "repeats" or "huge" in kind else 1e-9
    assert out.curvature["keep"].numpy() == close(
        np.array([ref.curvature(t) for t in tokens]), abs=tolerance, nan_ok=True
    )
    expected = [ref.curvature(t, drop=p) for t, p in zip(tokens, where, strict=True)]
    assert out.curvature["drop"].numpy() == close(np.array(expected), abs=tolerance, nan_ok=True)
    assert out.flat.tolist() == [ref.flat_terms(t) for t in tokens]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("rows", ROW_PREPARATIONS)
@pytest.mark.parametrize("path", LENGTHS)
def test_rows_and_alpha(path, rows, alpha):
    tokens = prompts(path, "sink")
    states, mask = pad(tokens)
    sink = find_sink(states, mask)
    options = Options(rows=rows, alpha=alpha)
    out = measure_tokens(states, mask, sink, options)
    expected = np.array([ref.prompt_entropy(t, alpha, rows) for t in tokens])
    assert out.entropy["keep"].numpy() == close(expected, abs=1e-9)
    assert prompt_entropies(states, mask, options).numpy() == close(expected, abs=1e-9)
    without = [
        ref.prompt_entropy(t, alpha, rows, drop=p)
        for t, p in zip(tokens, sink.position.tolist(), strict=True)
    ]
    assert out.entropy["drop"].numpy() == close(np.array(without), abs=1e-9)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("filling", [1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("path", LENGTHS)
def test_padding_enters_nothing(path, filling, side):
    tokens = prompts(path, "sink")
    states, mask = pad(tokens, filling, side)
    sink = find_sink(states, mask)
    out = measure_tokens(states, mask, sink, Options())
    for i, t in enumerate(tokens):
        alone = tensor(t).unsqueeze(0)
        alone_sink = find_sink(alone)
        one = measure_tokens(alone, None, alone_sink, Options())
        assert sink.ratio[i].item() == close(alone_sink.ratio.item(), rel=1e-12)
        start = int(mask[i].to(torch.uint8).argmax())
        assert sink.position[i].item() - start == alone_sink.position.item()
        for name in ("keep", "drop"):
            assert out.entropy[name][i].item() == close(one.entropy[name].item(), abs=1e-9)
            assert out.curvature[name][i].item() == close(
                one.curvature[name].item(), abs=1e-9, nan_ok=True
            )
        assert out.flat[i].item() == one.flat.item()
    values = prompt_entropies(states, mask, Options(rows="raw"))
    assert values.numpy() == close(
        np.array([ref.prompt_entropy(t, rows="raw") for t in tokens]), abs=1e-9
    )


def test_any_token_may_be_dropped():
    """The sink is found on other states than those measured, so its position may be any."""
    tokens = prompts("gram", "sink")[2]
    states = tensor(tokens).unsqueeze(0)
    for position in range(len(tokens)):
        sink = Sink(torch.tensor([position]), torch.ones(1))
        out = measure_tokens(states, None, sink, Options())
        assert out.entropy["drop"].item() == close(
            ref.prompt_entropy(tokens, drop=position), abs=1e-9
        )
        assert out.entropy["keep"].item() == close(ref.prompt_entropy(tokens), abs=1e-9)
        assert out.curvature["drop"].item() == close(ref.curvature(tokens, drop=position), abs=1e-9)


def test_a_token_that_equals_the_mean_has_no_direction():
    """Scaling its rounding to length 1 would invent a direction: log 3 instead of log 2 here."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    tokens = np.stack([axes[0], -axes[0], axes[1], -axes[1], 0 * axes[0]]) + rng.normal(size=WIDTH)
    for dtype in (torch.float64, torch.float32):
        states = tensor(tokens).to(dtype).unsqueeze(0)
        assert measure_tokens(states, None, None, Options()).entropy["keep"].item() == close(
            np.log(2), abs=1e-6
        )
        assert prompt_entropies(states).item() == close(np.log(2), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "repeats"])
@pytest.mark.parametrize("path", LENGTHS)
def test_float32_gives_what_float64_gives(path, kind, dtype):
    """What a GPU computes in: entropies to 1e-4 nats, angles to 1e-3."""
    states, mask = pad(exact(prompts(path, kind), dtype), dtype=dtype)
    sink = find_sink(states, mask)
    want = measure_tokens(states, mask, sink, Options())
    got = measure_tokens(states, mask, sink, Options(), dtype=torch.float32)
    for name in ("keep", "drop"):
        torch.testing.assert_close(
            got.entropy[name], want.entropy[name], rtol=0, atol=1e-4, equal_nan=True
        )
        torch.testing.assert_close(
            got.curvature[name], want.curvature[name], rtol=1e-3, atol=0, equal_nan=True
        )


def test_equal_tokens_have_no_direction_in_float32_either():
    states = torch.randn(2, 1, 8).expand(2, 5, 8).contiguous().to(torch.bfloat16)
    out = measure_tokens(states, None, find_sink(states), Options(), dtype=torch.float32)
    assert out.entropy["keep"].isnan().all()
    assert out.curvature["keep"].isnan().all()
    assert out.flat.tolist() == [3, 3]


# The conventions of the released code (method §4 items 4 to 7)


@both
@pytest.mark.parametrize("rows", ["raw", "centered", "centered-unit"])
def test_clamped_gram_of_prompts(rows, d):
    s = make_samples(8, d, longest=12)
    options = Options(clamp_gram=True, rows=rows)
    expected = [ref.clamped_entropy(ref.prepare(t, rows)) for t in s.tokens if len(t) <= d]
    short = [t for t in s.tokens if len(t) <= d]
    states, mask = pad(short)
    ours = compute("prompt_entropy", states, options, mask=mask).value
    assert ours == close(np.mean(expected), abs=1e-9)
    out = measure_tokens(states, mask, find_sink(states, mask), options)
    assert out.entropy["keep"].numpy() == close(np.array(expected), abs=1e-9)
    dropped = [
        ref.clamped_entropy(ref.prepare(ref.without(t, ref.sink(t)[0]), rows)) for t in short
    ]
    assert out.entropy["drop"].numpy() == close(np.array(dropped), abs=1e-9)


@both
def test_absolute_curvature(d):
    s = make_samples(10, d)
    options = Options(curvature_absolute=True)
    expected = np.array([ref.curvature(t, absolute=True) for t in s.tokens])
    ours = of_samples("curvature", s, options=options).value
    assert ours == close(expected.mean(), abs=1e-9)
    assert ours < of_samples("curvature", s).value
    states, mask = pad(s.tokens)
    out = measure_tokens(states, mask, find_sink(states, mask), options, entropy=False)
    assert out.curvature["keep"].numpy() == close(expected, abs=1e-9)
    dropped = [ref.curvature(t, absolute=True, drop=ref.sink(t)[0]) for t in s.tokens]
    assert out.curvature["drop"].numpy() == close(np.array(dropped), abs=1e-9, nan_ok=True)
