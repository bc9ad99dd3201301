"""The sum of a parallel block and the norms of the next in one kernel, run on the CPU: the bits of
the separate steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.passes import blocks, norms

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "launch", launch)
    monkeypatch.setattr(norms, "_fits", norms._shapes_fit)
    monkeypatch.setattr(
        norms, "_is_same", lambda *_: True
    )  # of the CPU's norms, not all bits are the same


def neox(parallel: bool = True, layers: int = 3) -> nn.Module:
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "intermediate_size": 64,
        "vocab_size": 50,
    }
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(**sizes, use_parallel_residual=parallel)
    return transformers.GPTNeoXModel(config).to(torch.bfloat16).eval()


IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))


def passed(module: nn.Module) -> Tensor:
    with torch.inference_mode(), norms.fast_norms(), blocks.fast_blocks(module):
        return module(IDS, use_cache=False).last_hidden_state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [68, 1024])
def test_the_same_bits(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    one, two, three = (
        (3 * torch.randn(2, 5, width, generator=generator)).to(dtype) for _ in range(3)
    )
    pair = nn.LayerNorm(width, eps=1e-5).to(dtype), nn.LayerNorm(width, eps=1e-3).to(dtype)
    for norm in pair:
        norm.weight.data.normal_(1, 0.3, generator=generator)
    got = norms.sum_and_norms(one, two, three, pair)
    torch.testing.assert_close(got, one + two + three, rtol=0, atol=0)
    for norm in pair:
        states, normed = norms._ready.pop(norm)
        assert states is got
        torch.testing.assert_close(
            normed, norms.layer_norm(got, norm.weight, norm.bias, norm.eps), rtol=0, atol=0
        )


def test_a_pass_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = neox(), []
    kernel = norms.sum_and_norms
    monkeypatch.setattr(norms, "sum_and_norms", lambda *given: calls.append(1) or kernel(*given))
    want = passed(module)
    assert not calls  # not before it was tried
    blocks.try_fast_blocks(module, lambda: passed(module))
    calls.clear()
    torch.testing.assert_close(passed(module), want, rtol=0, atol=0)
    assert len(calls) == 2  # the last block is followed by no other
    assert not norms._ready
    assert not any("forward" in vars(part) for part in module.modules())
    module(IDS)  # with gradients, and outside
    assert len(calls) == 2


def test_a_kernel_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = neox()
    kernel = norms.sum_and_norms
    monkeypatch.setattr(norms, "sum_and_norms", lambda *given: kernel(*given) * 1.5)
    blocks.try_fast_blocks(module, lambda: passed(module))
    assert blocks._known[module] == []


def llama() -> nn.Module:
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "vocab_size": 50,
    }
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes))


@pytest.mark.parametrize("module", [neox(parallel=False), llama()], ids=["serial", "llama"])
def test_other_blocks_are_left_alone(module: nn.Module) -> None:
    assert blocks._blocks(module) == []


def test_a_hook_that_changes_the_sum_is_seen() -> None:
    module = neox()
    blocks.try_fast_blocks(module, lambda: passed(module))
    assert blocks._known[module]

    def change(_module: Any, _given: Any, output: Tensor) -> None:
        output[:, 3] = 0

    handle = module.layers[0].register_forward_hook(change)  # type: ignore[index,union-attr]
    changed = passed(module)
    blocks._known[module], known = [], blocks._known[module]
    torch.testing.assert_close(changed, passed(module), rtol=0, atol=0)
    handle.remove()
    blocks._known[module] = known
    assert not torch.equal(passed(module), changed)
