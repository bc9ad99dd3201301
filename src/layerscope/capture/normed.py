"""States under the final norm, summed over tokens, or seen from their mean: the normed states themselves are never written down.

A profile with views reads only the mean vector of each view. Norming every layer's states and summing them goes over them three
times; a kernel on CUDA, for half-precision states, once. Token measures need a dozen such passes, or one more kernel. A norm
module is known by what it does: its own result on a few states must be ours.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope.capture.normed_source import SOURCE
from layerscope.spectra.kernels import launch
from layerscope.spectra.libraries import UnusableError

Kind = Literal["layer", "rms", "rms-rounded", "none"]
_KINDS: dict[Kind, int] = {"layer": 0, "rms": 1, "rms-rounded": 2, "none": 3}
_THREADS = 256
_WIDEST = 8192
_LONGEST = 1024
_NO_NORM = nn.Identity()
_known: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype, int], Kind | None]] = WeakKeyDictionary()


class CentredStates(NamedTuple):
    """Of each prompt's states under a norm: their sum over the real tokens (B, D), norms before and after it (B, T), all float64;

    the token that is largest before it (B,), and the states seen from the mean of all others (B, T, D), float32, padding zero.
    """

    total: Tensor
    before: Tensor
    norms: Tensor
    largest: Tensor
    centred: Tensor


def normed_sums(states: Tensor, mask: Tensor | None, norm: nn.Module) -> Tensor | None:
    """Sums over the real tokens (B, D), float64, of norm(states); None where it must be done step by step."""
    if not _fits(states):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _sums(states, mask, norm, kind)


def centred_states(states: Tensor, mask: Tensor | None, norm: nn.Module | None) -> CentredStates | None:
    """What token measures need of norm(states), or of the states themselves; None where it must be done step by step."""
    if not _fits(states) or states.shape[1] > _LONGEST:
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _centred(states, mask, norm, kind)


def _fits(states: Tensor) -> bool:
    width = states.shape[-1]
    half = states.is_cuda and states.dtype in (torch.bfloat16, torch.float16)
    return half and states.is_contiguous() and width % 4 == 0 and width <= _WIDEST


def _sums(states: Tensor, mask: Tensor | None, norm: nn.Module | None, kind: Kind) -> Tensor:
    out = states.new_empty(len(states), states.shape[-1], dtype=torch.float64)
    _run("normed_sums", states, mask, norm, kind, [out], 0)
    return out


def _centred(states: Tensor, mask: Tensor | None, norm: nn.Module | None, kind: Kind) -> CentredStates:
    texts, tokens, width = states.shape
    made = CentredStates(
        states.new_empty(texts, width, dtype=torch.float64),
        states.new_empty(texts, tokens, dtype=torch.float64),
        states.new_empty(texts, tokens, dtype=torch.float64),
        states.new_empty(texts, dtype=torch.long),
        states.new_empty(texts, tokens, width, dtype=torch.float32),
    )
    _run("centred_states", states, mask, norm, kind, list(made), 12 * tokens)
    return made


def _run(
    name: str, states: Tensor, mask: Tensor | None, norm: nn.Module | None, kind: Kind, out: list[Tensor], shared: int
) -> None:
    texts, tokens, width = states.shape
    weight, bias, epsilon = _settings(norm, states)
    given = [states, states if mask is None else mask.contiguous(), weight, bias]
    numbers = [epsilon, tokens, width, int(states.dtype == torch.float16), int(mask is not None), _KINDS[kind]]
    launch(_source(width), name, texts, _THREADS, shared, [*given, *out, *numbers])


@cache
def _source(width: int) -> str:
    columns = -(-width // (4 * _THREADS))  # groups of four that a thread owns
    return f"#define COLUMNS {columns}\n{SOURCE}"


def _settings(norm: nn.Module | None, states: Tensor) -> tuple[Tensor, Tensor, int]:
    """Weight and bias of a norm, float32 on its device, and the bits of its ε."""
    if norm is None:
        nothing = states.new_zeros(states.shape[-1], dtype=torch.float32)
        return nothing, nothing, 0
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    held = [name for name in ("eps", "variance_epsilon", "epsilon") if isinstance(getattr(norm, name, None), float)]
    if not held:
        raise UnusableError("a norm without an epsilon")
    (bits,) = struct.unpack("i", struct.pack("f", getattr(norm, held[0])))
    scale = weight.detach().float().contiguous()
    return scale, torch.zeros_like(scale) if bias is None else bias.detach().float().contiguous(), bits


def _kind_of(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Which of the kinds a module computes, tried once; None if none of them, or if the kernel cannot be used."""
    held = _known.setdefault(_NO_NORM if norm is None else norm, {})
    key = states.dtype, states.device.index or 0
    if key not in held:
        held[key] = _find_kind(norm, states)
    return held[key]


@torch.inference_mode()
def _find_kind(norm: nn.Module | None, states: Tensor) -> Kind | None:
    try:
        generator = torch.Generator().manual_seed(0)
        given = torch.randn(2, 19, states.shape[-1], generator=generator)
        given = ((given + 0.5) * torch.tensor([0.1, 30.0])[:, None, None]).to(states.device, states.dtype)
        mask = torch.arange(19, device=states.device).expand(2, -1) < torch.tensor([[19], [11]], device=states.device)
        want = torch.where(mask.unsqueeze(-1), given if norm is None else norm(given), 0).sum(1, dtype=torch.float64)
        # at most a few elements may be rounded the other way: a sum of rows rounded once more often is further off than that
        unit = want.abs().mean() * torch.finfo(states.dtype).eps
        kinds = [kind for kind in _KINDS if (kind == "none") == (norm is None)]
        errors = {kind: float((_sums(given, mask, norm, kind) - want).abs().mean() / unit) for kind in kinds}
        best = min(errors, key=errors.__getitem__)
        return best if errors[best] < 0.05 else None
    except (UnusableError, OSError, AttributeError, RuntimeError, AssertionError):
        return None
