"""Queries and keys turned by our kernel, run on the CPU: the bits that transformers' own functions
give."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.passes import rotary

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "launch", launch)
    monkeypatch.setattr(rotary, "_fits", rotary._shapes_fit)
    rotary._is_same.cache_clear()


def own(family: str) -> Any:
    return importlib.import_module(
        f"transformers.models.{family}.modeling_{family}"
    ).apply_rotary_pos_emb


def given(
    dtype: torch.dtype, turned: int, *, across: int = 48, batch_of_angles: int = 2
) -> tuple[Tensor, ...]:
    """Queries and keys as a block cuts them out of one projection: strided; two heads of keys for
    four of queries."""
    generator = torch.Generator().manual_seed(turned)
    both = (3 * torch.randn(2, 7, 4 + 2 + 2, across, generator=generator)).to(dtype)
    q, k, _ = (part.transpose(1, 2) for part in both.split([4, 2, 2], dim=2))
    angles = 9 * torch.randn(batch_of_angles, 7, turned // 2, generator=generator)
    angles = torch.cat([angles, angles], -1)
    return q, k, angles.cos().to(dtype), angles.sin().to(dtype)


def tiny(family: str) -> tuple[torch.nn.Module, Tensor]:
    """A model in half precision whose heads the kernel takes, and something to run it on."""
    kind = {"gpt_neox": "GPTNeoX", "llama": "Llama"}[family]
    sizes = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "vocab_size": 50,
    }
    torch.manual_seed(0)
    module = (
        getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
        .to(torch.bfloat16)
        .eval()
    )
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    return module, ids


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "turned"), [("gpt_neox", 16), ("gpt_neox", 48), ("llama", 48), ("gemma3", 48)]
)
def test_the_same_bits(family: str, turned: int, dtype: torch.dtype) -> None:
    for angles in (1, 2):
        tensors = given(dtype, turned, batch_of_angles=angles)
        for got, want in zip(rotary.rotate(*tensors), own(family)(*tensors), strict=True):
            assert got.transpose(1, 2).is_contiguous()
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        wanted = own(family)(*tensors)
        for got, given_one, want in zip(
            rotary.rotate_in_place(*tensors), tensors, wanted, strict=False
        ):
            assert got is given_one
            torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_extreme_numbers() -> None:
    q, k, cos, sin = given(torch.bfloat16, 48)
    q, k = q.clone(), k.clone()
    q[0, 0, 0, :4] = torch.tensor([torch.nan, torch.inf, 3e38, 1e-40])
    k[1, 1, 3] *= 1e30
    for got, want in zip(rotary.rotate(q, k, cos, sin), own("llama")(q, k, cos, sin), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_what_the_kernel_cannot_take_stays_with_the_model() -> None:
    q, k, cos, sin = given(torch.bfloat16, 48)
    assert rotary._shapes_fit(q, k, cos, sin)
    assert not rotary._shapes_fit(
        q[..., 1:], k[..., 1:], cos[..., 1:], sin[..., 1:]
    )  # an odd number of them
    assert not rotary._shapes_fit(q, k, cos[:, :5], sin[:, :5])
    assert not rotary._shapes_fit(q, k[:, :, :5], cos, sin)
    assert not rotary._shapes_fit(q.transpose(-1, -2), k.transpose(-1, -2), cos, sin)
    assert not rotary._shapes_fit(*given(torch.bfloat16, 24))


def test_a_function_that_does_something_else_is_found_out() -> None:
    def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        def turned(x: Tensor) -> Tensor:
            return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)

        return tuple(x * cos.unsqueeze(1) + turned(x) * sin.unsqueeze(1) for x in (q, k))  # type: ignore[return-value]

    kind = torch.bfloat16, torch.device("cpu")
    assert rotary._is_same(own("llama"), *kind, False)
    assert rotary._is_same(own("gpt_neox"), *kind, True)
    assert not rotary._is_same(own("llama"), *kind, True)  # it takes whole heads only
    assert not rotary._is_same(interleaved, *kind, False)
    assert not rotary._is_same(own("cohere"), *kind, False)  # in float32, rounded once


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_a_pass_gives_the_same_bits(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, ids = tiny(family)
    calls = []
    kernel = rotary.rotate
    with torch.inference_mode():
        want = module(ids, use_cache=False).last_hidden_state
        monkeypatch.setattr(rotary, "rotate", lambda *tensors: calls.append(1) or kernel(*tensors))
        function = own(family)
        with rotary.fast_rotation(module):
            assert own(family) is not function
            with rotary.fast_rotation(module):  # of another thread
                got = module(ids, use_cache=False).last_hidden_state
        assert own(family) is function
    assert len(calls) >= 2
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_in_place_where_a_pass_gives_the_same_bits(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, ids = tiny(family)
    calls = []
    kernel = rotary.rotate_in_place
    monkeypatch.setattr(
        rotary, "rotate_in_place", lambda *tensors: calls.append(1) or kernel(*tensors)
    )

    def work() -> Tensor:
        with torch.inference_mode(), rotary.fast_rotation(module):
            return module(ids, use_cache=False).last_hidden_state

    with torch.inference_mode():
        want = module(ids, use_cache=False).last_hidden_state
    rotary._is_same(own(family), torch.bfloat16, torch.device("cpu"), family == "gpt_neox")
    calls.clear()
    work()
    assert not calls  # not before it was tried
    rotary.try_rotating_in_place(module, work)
    torch.testing.assert_close(work(), want, rtol=0, atol=0)
    assert len(calls) == 4


def test_a_model_that_needs_its_queries_as_they_were_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            turned, _ = importlib.import_module(type(self).__module__).apply_rotary_pos_emb(
                q, k, cos, sin
            )
            return turned + q

    Attention.__module__ = "transformers.models.llama.modeling_llama"
    module, tensors = Attention(), given(torch.bfloat16, 48)

    def work() -> Tensor:
        with torch.no_grad(), rotary.fast_rotation(module):
            return module(*(one.clone(memory_format=torch.preserve_format) for one in tensors))

    rotary.try_rotating_in_place(module, work)
    assert rotary._in_place[module] is False


def test_queries_that_share_numbers_are_not_turned_in_place() -> None:
    q, k, _, _ = given(torch.bfloat16, 48)
    assert rotary._do_not_overlap(q, k)
    assert not rotary._do_not_overlap(q, k[:1].expand(2, -1, -1, -1))
    assert not rotary._do_not_overlap(q, q)


def test_gradients_take_the_models_own_way() -> None:
    q, k, cos, sin = given(torch.bfloat16, 48)
    fast = rotary._Fast(own("llama"))
    q = q.detach().requires_grad_()
    assert fast(q, k, cos, sin)[0].requires_grad
