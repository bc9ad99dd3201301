"""Activation functions looked up in a table, by our kernel run on the CPU: the bits that the
functions themselves give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.passes import activations

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "launch", launch)
    monkeypatch.setattr(
        activations, "_fits", lambda x: isinstance(x, Tensor) and activations._shape_fits(x)
    )
    monkeypatch.setattr(activations, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(activations, "_THREADS", 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu", "relu2"])
def test_the_same_bits(name: str, dtype: torch.dtype) -> None:
    part = ACT2FN[name]
    table = activations.table_of(part, part, dtype, torch.device("cpu"))
    assert table is not None
    states = (5 * torch.randn(3, 347, 8, generator=torch.Generator().manual_seed(0))).to(dtype)
    states[0, :5, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -0.0])
    torch.testing.assert_close(
        activations.look_up(states, table), part(states), rtol=0, atol=0, equal_nan=True
    )


def test_functions_of_more_than_one_number_are_found_out() -> None:
    def softmax(x: Tensor) -> Tensor:
        return x.float().softmax(-1).to(x.dtype)

    assert activations._make_table(softmax, torch.bfloat16, torch.device("cpu")) is None
    assert activations._make_table(lambda x: x.float(), torch.bfloat16, torch.device("cpu")) is None
    assert not activations._is_plain(nn.PReLU())  # it has weights
    assert not activations._is_plain(nn.Softmax(-1))


@pytest.mark.parametrize(("family", "kind"), [("gpt_neox", "GPTNeoX"), ("llama", "Llama")])
def test_a_pass_gives_the_same_bits(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {
        "hidden_size": 32,
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
    calls: list[int] = []
    kernel = activations.look_up
    with torch.inference_mode():
        want = module(ids, use_cache=False).last_hidden_state
        monkeypatch.setattr(
            activations, "look_up", lambda *given: calls.append(1) or kernel(*given)
        )
        with activations.fast_activations(module):
            with activations.fast_activations(module):  # of another thread
                got = module(ids, use_cache=False).last_hidden_state
            assert any("forward" in vars(part) for part in module.modules())
        assert not any("forward" in vars(part) for part in module.modules())
    assert len(calls) >= 4  # two trials, two layers
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_what_the_kernel_cannot_take_stays_with_the_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*given: Any) -> Tensor:
        raise AssertionError("looked up")

    monkeypatch.setattr(activations, "look_up", refused)
    fast = activations._Fast(nn.GELU())
    assert fast(torch.randn(8)).dtype == torch.float32
    assert fast(torch.randn(4, 16).bfloat16().T).shape == (16, 4)
    assert fast(torch.randn(7).bfloat16()).shape == (7,)
    with torch.enable_grad():
        assert fast(torch.randn(8).bfloat16().requires_grad_()).requires_grad


def test_a_model_without_activations_of_its_own() -> None:
    module = nn.Linear(2, 2)
    with activations.fast_activations(module):
        assert activations._activations(module) == []
