"""Layer normalization by our kernel, run on the CPU: in the order in which torch's 128 threads
would do it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.passes import norms

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "launch", launch)


def given(width: int, dtype: torch.dtype, rows: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(width)
    states = (
        torch.randn(rows, width, generator=generator) * torch.logspace(-2, 2, rows)[:, None] + 3
    )
    weight, bias = 1 + 0.3 * torch.randn(2, width, generator=generator)
    return states.to(dtype), weight.to(dtype), bias.to(dtype)


def by_threads(states: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and 1 / deviation as 128 threads of four numbers compute them, in float32 throughout."""

    def joined(one: list[np.float32], two: list[np.float32]) -> list[np.float32]:
        count = one[2] + two[2]
        if count == 0:
            return [np.float32(0)] * 3
        delta, of_one, of_two = one[0] - two[0], one[2] / count, two[2] / count
        return [
            of_two * two[0] + of_one * one[0],
            delta * delta * two[2] * of_one + two[1] + one[1],
            count,
        ]

    means, scales = [], []
    for row in states:
        threads = []
        for thread in range(128):
            moments = [np.float32(0)] * 3
            for four in range(thread, len(row) // 4, 128):
                for value in row[4 * four : 4 * four + 4]:
                    delta, count = value - moments[0], moments[2] + np.float32(1)
                    mean = moments[0] + delta / count
                    moments = [mean, moments[1] + delta * (value - mean), count]
            threads.append(moments)
        for offset in (16, 8, 4, 2, 1):
            for first in range(0, 128, 32):
                for lane in range(first, first + offset):
                    threads[lane] = joined(threads[lane], threads[lane + offset])
        all_of = joined(joined(threads[0], threads[64]), joined(threads[32], threads[96]))
        means.append(all_of[0])
        scales.append(1 / np.sqrt(all_of[1] / np.float32(len(row)) + np.float32(epsilon)))
    return np.array(means)[:, None], np.array(scales)[:, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [4, 68, 768, 1024, 1536, 2560])
def test_as_the_threads_of_torch_compute_it(width: int, dtype: torch.dtype) -> None:
    states, weight, bias = given(width, dtype)
    got = norms.layer_norm(states, weight, bias, 1e-5)
    mean, scale = by_threads(states.float().numpy(), 1e-5)
    want = torch.from_numpy(scale * (states.float().numpy() - mean)) * weight.float() + bias.float()
    off = (got.float() - want).abs() / want.abs().clamp_min(1)
    assert off.max() < 2 * torch.finfo(dtype).eps
    assert (got == want.to(dtype)).float().mean() > 0.98  # the others are a rounding away
    torch.testing.assert_close(
        got, nn.functional.layer_norm(states, (width,), weight, bias, 1e-5), rtol=0.02, atol=0.02
    )


def test_numbers_that_are_not() -> None:
    states, weight, bias = given(1024, torch.bfloat16, rows=3)
    states[1, 700] = torch.nan
    states[2, 3] = torch.inf
    got = norms.layer_norm(states, weight, bias, 1e-5)
    assert not got[0].isnan().any()
    assert got[1:].isnan().all()


def test_what_the_kernel_cannot_take_stays_with_torch() -> None:
    norm = nn.LayerNorm(64).to(torch.bfloat16)
    states = torch.randn(3, 64).to(torch.bfloat16)
    assert norms._shapes_fit(norm, states)
    assert not norms._shapes_fit(norm, states.float())
    assert not norms._shapes_fit(norm, torch.randn(64, 3).to(torch.bfloat16).T)
    assert not norms._shapes_fit(nn.LayerNorm(64), states)  # weights of another kind
    assert not norms._shapes_fit(nn.LayerNorm(64, elementwise_affine=False), states)
    assert not norms._shapes_fit(nn.LayerNorm((3, 64)).to(torch.bfloat16), states)
    assert not norms._shapes_fit(
        nn.LayerNorm(66).to(torch.bfloat16), torch.zeros(2, 66, dtype=torch.bfloat16)
    )
    assert not norms._fits(norm, states)  # not on a GPU


def run(module: nn.Module, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        return module(ids, use_cache=False).last_hidden_state


def test_a_pass_uses_it_where_bits_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "vocab_size": 50,
    }
    module = (
        transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**sizes)).to(torch.bfloat16).eval()
    )
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    calls: list[int] = []
    kernel, forward = norms.layer_norm, nn.LayerNorm.forward
    monkeypatch.setattr(norms, "_fits", norms._shapes_fit)
    monkeypatch.setattr(norms, "layer_norm", lambda *tensors: calls.append(1) or kernel(*tensors))
    want = run(module, ids)
    for same, n_calls in ((True, 5), (False, 0)):
        monkeypatch.setattr(norms, "_is_same", lambda *_, same=same: same)
        calls.clear()
        with torch.inference_mode(), norms.fast_norms():
            with norms.fast_norms():  # of another thread
                pass
            got = run(module, ids)
        assert nn.LayerNorm.forward is forward
        assert len(calls) == n_calls
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    with norms.fast_norms():
        calls.clear()
        module(ids)  # with gradients
    assert not calls


def test_other_bits_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = 64, torch.float16, torch.device("cpu")
    kernel = norms.layer_norm
    monkeypatch.setattr(
        nn.functional,
        "layer_norm",
        lambda x, _, weight, bias, epsilon: kernel(x, weight, bias, epsilon),
    )
    norms._is_same.cache_clear()
    assert norms._is_same(*kind)
    monkeypatch.setattr(norms, "layer_norm", lambda *given: kernel(*given) * 1.001)
    norms._is_same.cache_clear()
    assert not norms._is_same(*kind)
    norms._is_same.cache_clear()
