"""The kernel that sums normed states without writing them down, run on the CPU: what the norm
module and a sum give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.tokens import normed

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normed, "launch", launch)


def norms(width: int) -> dict[str, nn.Module]:
    made = {
        "layer": nn.LayerNorm(width, eps=1e-5),
        "layer without bias": nn.LayerNorm(width, eps=1e-3, bias=False),
        "rms": nn.RMSNorm(width, eps=1e-6),
        "rms-rounded": LlamaRMSNorm(width, eps=1e-6),
    }
    generator = torch.Generator().manual_seed(1)
    for norm in made.values():
        for parameter in norm.parameters():
            parameter.data.copy_(1 + 0.3 * torch.randn(width, generator=generator))
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["layer", "layer without bias", "rms", "rms-rounded"])
def test_the_kind_of_a_norm_is_found_and_its_sums_are_right(name: str, dtype: torch.dtype) -> None:
    for width, tokens in [(64, 1), (1028, 37)]:
        norm = norms(width)[name].to(dtype).eval()
        states = (
            torch.randn(2, tokens, width, generator=torch.Generator().manual_seed(2)) * 3 + 1
        ).to(dtype)
        mask = torch.rand(2, tokens, generator=torch.Generator().manual_seed(3)) < 0.7
        mask[:, 0] = True
        with torch.inference_mode():
            kind = normed._kind_of(norm, states)
            assert kind is not None
            assert kind.split("-")[0] == name.split("-")[0].split()[0]
            for padding in (None, mask):
                kept = (
                    norm(states)
                    if padding is None
                    else torch.where(padding.unsqueeze(-1), norm(states), 0)
                )
                got = normed._means(normed._inputs(states, padding, norm, kind)).double()
                want = kept.sum(1, dtype=torch.float64) / (
                    tokens if padding is None else padding.sum(-1, keepdim=True)
                )
                unit = float(want.abs().mean()) * torch.finfo(dtype).eps
                assert float((got - want).abs().mean()) < 0.1 * unit


@pytest.mark.parametrize("width", [2052, 4100])  # two warps share a token, four do
def test_wide_states(width: int) -> None:
    norm = norms(width)["layer"].bfloat16().eval()
    states = (
        torch.randn(1, 19, width, generator=torch.Generator().manual_seed(2)) * 3 + 1
    ).bfloat16()
    mask = torch.arange(19)[None] != 7
    with torch.inference_mode():
        after = norm(states).double()
        want = after[:, mask[0]].mean(1)
        seen = normed._centered(normed._inputs(states, mask, norm, "layer"))
        for got in (
            normed._means(normed._inputs(states, mask, norm, "layer")).double(),
            seen.total / 18,
        ):
            assert (
                float((got - want).abs().mean())
                < 0.1 * float(want.abs().mean()) * torch.finfo(torch.bfloat16).eps
            )
        lengths = [torch.linalg.vector_norm(x, dim=-1)[mask] for x in (states.double(), after)]
        torch.testing.assert_close(seen.before[mask], lengths[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(seen.norms[mask], lengths[1], rtol=1e-3, atol=0)


def test_a_long_text_is_the_work_of_several_blocks() -> None:
    norm = norms(64)["rms"].bfloat16().eval()
    states = torch.randn(2, 131, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    mask = torch.rand(2, 131, generator=torch.Generator().manual_seed(3)) < 0.7
    with torch.inference_mode():
        for real in (torch.ones_like(mask), mask):
            want = torch.where(real.unsqueeze(-1), norm(states), 0).sum(
                1, dtype=torch.float64
            ) / real.sum(-1, keepdim=True)
            got = normed._means(normed._inputs(states, None if real.all() else real, norm, "rms"))
            assert got.dtype == torch.float32
            assert (
                float((got - want).abs().mean())
                < 0.1 * float(want.abs().mean()) * torch.finfo(torch.bfloat16).eps
            )


def test_norms_that_do_something_else_are_left_alone() -> None:
    states = torch.randn(1, 4, 64).bfloat16()
    gemma = GemmaRMSNorm(64).bfloat16()
    gemma.weight.data.fill_(0.5)  # it scales by 1 + 0.5
    assert normed._kind_of(gemma, states) is None
    assert normed._kind_of(nn.Identity(), states) is None


class _Gained(LlamaRMSNorm):
    """An RMS norm that scales once more, by what is 1 at first."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) * self.gain


class _Halved(LlamaRMSNorm):
    """One whose ε is four times what it says."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states / 2)


class _RoundedLayer(nn.LayerNorm):
    """A layer norm that is stored before it is scaled."""

    def forward(self, states: Tensor) -> Tensor:
        return (
            nn.functional.layer_norm(states, states.shape[-1:], eps=self.eps) * self.weight
            + self.bias
        )


@pytest.mark.parametrize(
    "norm",
    [
        _Gained(64).bfloat16(),
        _Halved(64).bfloat16(),
        _RoundedLayer(64).bfloat16(),
        LlamaRMSNorm(64),  # its weights are float32: so is its result
        nn.RMSNorm(64).bfloat16(),  # an epsilon that depends on the states' type
        nn.LayerNorm(64, elementwise_affine=False),
        nn.Sequential(nn.LayerNorm(64)).bfloat16(),
        nn.LayerNorm(64, device="meta").bfloat16(),  # offloaded
        nn.LayerNorm(32).bfloat16(),  # a shard
        nn.utils.parametrize.register_parametrization(
            nn.LayerNorm(64).bfloat16(), "weight", nn.Identity()
        ),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_that_look_the_same_are_left_alone(norm: nn.Module) -> None:
    assert normed._kind_of(norm, torch.randn(1, 4, 64).bfloat16()) is None


def test_the_kind_does_not_depend_on_the_present_weights() -> None:
    norm = LlamaRMSNorm(64).bfloat16()  # all ones: rounded before or after scaling is the same
    assert normed._kind_of(norm, torch.randn(1, 4, 64).bfloat16()) == "rms-rounded"
    assert norm.weight.requires_grad
    assert (norm.weight == 1).all()


def test_states_and_masks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", True)
    states, mask = torch.randn(2, 8, 64).bfloat16(), torch.ones(2, 8, dtype=torch.bool)
    assert normed._fits(states, None)
    assert normed._fits(states, mask)
    odd = torch.randn(65).bfloat16()[1:].view(1, 1, 64)
    for some in (states.float(), states[0], states[:, :, :62], states[:, :4], states[:0], odd):
        assert not normed._fits(some, None)
    for other in (mask.long(), mask[:, :4], mask[:1]):
        assert not normed._fits(states, other)


def test_not_a_number_stays_one() -> None:
    norm = norms(64)["layer"].bfloat16()
    states = torch.randn(2, 5, 64).bfloat16()
    states[1, 3, 7] = torch.nan
    with torch.inference_mode():
        found = normed._means(normed._inputs(states, None, norm, "layer"))
    assert torch.isfinite(found[0]).all()
    assert found[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["layer", "rms-rounded", None])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (16, 64), (70, 64), (37, 1028)])
def test_states_seen_from_their_mean(
    tokens: int, width: int, name: str | None, dtype: torch.dtype
) -> None:
    norm = None if name is None else norms(width)[name].to(dtype).eval()
    states = (torch.randn(3, tokens, width, generator=torch.Generator().manual_seed(4)) + 2).to(
        dtype
    )
    states[1, tokens // 2] *= 50
    mask = torch.ones(3, tokens, dtype=torch.bool)
    mask[0, tokens // 2 + 1 :] = False
    mask[2, : tokens // 3] = False
    for padding in (None, mask):
        real = torch.ones_like(mask) if padding is None else padding
        with torch.inference_mode():
            kind = normed._kind_of(norm, states)
            assert kind is not None
            got = normed._centered(normed._inputs(states, padding, norm, kind))
            after = states if norm is None else norm(states)
        after = torch.where(real.unsqueeze(-1), after.double(), 0.0)
        before = torch.linalg.vector_norm(states.double(), dim=-1)
        largest = before.masked_fill(~real, -1.0).argmax(-1)
        mean = (after.sum(1) - after[torch.arange(3), largest]) / (
            real.sum(-1, keepdim=True) - 1
        ).clamp(min=1)
        want = torch.where(real.unsqueeze(-1), after - mean.unsqueeze(1), 0.0)
        assert got.largest.tolist() == largest.tolist()
        torch.testing.assert_close(got.before, before, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            got.norms, torch.linalg.vector_norm(after, dim=-1), rtol=1e-4, atol=1e-5
        )
        for found, wanted in ((got.total, after.sum(1)), (got.centered.double(), want)):
            # single numbers may be rounded the other way by the norm module
            assert float((found - wanted).abs().mean()) <= 1e-4 * float(wanted.abs().mean()) + 1e-7
            torch.testing.assert_close(
                found, wanted, rtol=1e-2, atol=5e-2 if norm is not None else 1e-3
            )
        assert (got.centered[~real] == 0).all()
