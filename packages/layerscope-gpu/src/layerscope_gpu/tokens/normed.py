"""States under the final norm, summed over tokens or centered, without ever storing the normed
states themselves.

A profile with views reads only the mean vector of each view. Norming every layer's states and
summing them goes over them three times; a CUDA kernel for half-precision states does it once. Token
measures need a dozen such passes, or one more kernel. A norm module is recognized by its results:
on a few states they must equal ours.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerscope_gpu.cuda import HALVES, WARP_SUM, UnusableError, launch

Kind = Literal["layer", "rms", "rms-rounded", "none"]
_KINDS: dict[Kind, int] = {"layer": 0, "rms": 1, "rms-rounded": 2, "none": 3}
_THREADS = 256
_WIDEST = 8192
_NEAR = 0.05  # units of the last place, of a sum: how far a norm's own result may be from ours
_NO_NORM = nn.Identity()
_known: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Kind | None]] = WeakKeyDictionary()

Weights = dict[str, Tensor]
Settings = tuple[Tensor, Tensor, int]
Held = dict[nn.Module, Settings]
"""Norms as the kernels read them, for as long as their weights cannot change: during one pass,
say."""


class CenteredStates(NamedTuple):
    """Each prompt's states under a norm.

    `total`: their sum over the real tokens (B, D); `before` and `norms`: the tokens' norms before
    and after it (B, T), all float64; `largest`: the token that is largest before it (B,);
    `centered`: the states minus the mean of all tokens but that one (B, T, D), float32, padding
    zero.
    """

    total: Tensor
    before: Tensor
    norms: Tensor
    largest: Tensor
    centered: Tensor


def normed_means(
    states: Tensor, mask: Tensor | None, norm: nn.Module | None, held: Held | None = None
) -> Tensor | None:
    """Return means over the real tokens (B, D), float32, of norm(states), or of states.

    None where it must be done step by step.
    """
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _means(states, mask, norm, kind, held=held)


def centered_states(
    states: Tensor, mask: Tensor | None, norm: nn.Module | None, held: Held | None = None
) -> CenteredStates | None:
    """Return the parts of norm(states), or of the states, that token measures need; None where it
    must be done step by step."""
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _centered(states, mask, norm, kind, held=held)


def _fits(states: Tensor, mask: Tensor | None) -> bool:
    width = states.shape[-1]
    if (
        not states.is_cuda
        or states.dtype not in (torch.bfloat16, torch.float16)
        or states.ndim != 3
        or not states.numel()
    ):
        return False
    if mask is not None and (
        mask.shape != states.shape[:2] or mask.dtype != torch.bool or mask.device != states.device
    ):
        return False
    return (
        states.is_contiguous()
        and states.data_ptr() % 8 == 0
        and width % 4 == 0
        and width <= _WIDEST
    )


def _means(
    states: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    kind: Kind,
    weights: Weights | None = None,
    held: Held | None = None,
) -> Tensor:
    texts, tokens, width = states.shape
    given = _given(states, mask, norm, weights, held)
    if tokens <= _shape(width)["CHUNK"]:  # a text is one block's: it divides too
        out = states.new_empty(texts, width, dtype=torch.float32)
        _run_sums(
            states,
            [*given[0], out, *[states] * 4, given[1]],
            mask is not None,
            kind,
            full=False,
            means=True,
        )
        return out
    total = _sum_chunks(states, given, mask is not None, kind, [states] * 4, full=False)
    return (total / (tokens if mask is None else mask.sum(-1, keepdim=True))).float()


def _centered(
    states: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    kind: Kind,
    weights: Weights | None = None,
    held: Held | None = None,
) -> CenteredStates:
    texts, tokens, width = states.shape
    given = _given(states, mask, norm, weights, held)
    means, scales = (states.new_empty(texts, tokens, dtype=torch.float32) for _ in range(2))
    before, norms = (states.new_empty(texts, tokens, dtype=torch.float64) for _ in range(2))
    total = _sum_chunks(
        states, given, mask is not None, kind, [means, scales, before, norms], full=True
    )
    largest = (before if mask is None else before.masked_fill(~mask, -1.0)).argmax(-1)
    centered = states.new_empty(texts, tokens, width, dtype=torch.float32)
    tensors = [*given[0], total, means, scales, largest, centered]
    _run("centered_states", states, [*tensors, *_numbers(states, mask is not None, kind)])
    return CenteredStates(total, before, norms, largest, centered)


def _sum_chunks(
    states: Tensor,
    given: tuple[list[Tensor], int],
    masked: bool,
    kind: Kind,
    sums: list[Tensor],
    full: bool,
) -> Tensor:
    """Sums over tokens (B, D); with `full`, each token's results go to the tensors given for
    them."""
    texts, tokens, width = states.shape
    out = states.new_empty(texts, -(-tokens // _shape(width)["CHUNK"]), width, dtype=torch.float64)
    _run_sums(states, [*given[0], out, *sums, given[1]], masked, kind, full)
    return out.sum(1) if out.shape[1] > 1 else out.squeeze(1)


def _run_sums(
    states: Tensor,
    given: list[Tensor | int],
    masked: bool,
    kind: Kind,
    full: bool,
    means: bool = False,
) -> None:
    known = _shape(states.shape[-1])
    arguments = [*given, *_numbers(states, masked, kind), int(full), int(means)]
    _run("normed_sums", states, arguments, known["THREADS"], 4 * known["ROWS"] * states.shape[-1])


def _run(
    name: str,
    states: Tensor,
    arguments: list[Tensor | int],
    threads: int = _THREADS,
    shared: int = 0,
) -> None:
    texts, tokens, width = states.shape
    launch(
        source_for(name, width, states.dtype),
        name,
        texts * -(-tokens // _shape(width)["CHUNK"]),
        threads,
        shared,
        arguments,
    )


def _given(
    states: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    weights: Weights | None,
    held: Held | None,
) -> tuple[list[Tensor], int]:
    weight, bias, epsilon = _settings(norm, states, weights, held)
    return [states, states if mask is None else mask.contiguous(), weight, bias], epsilon


def _numbers(states: Tensor, masked: bool, kind: Kind) -> list[int]:
    tokens = states.shape[1]
    return [tokens, int(masked), _KINDS[kind]]


@cache
def _shape(width: int) -> dict[str, int]:
    """Return the macros of the kernels for states of a width.

    TEAM warps share a token, ROWS tokens are worked on at once, a thread holds FOURS × 4 numbers of
    one (or COLUMNS × 4 columns), and a block has CHUNK tokens of a text: no more than sixteen for a
    team, which adds them up in float32.
    """
    team = 1 if width <= 2048 else 2 if width <= 4096 else 4
    threads = 256 if team < 4 else 512
    rows = threads // 32 // team
    fours, columns = -(-width // (128 * team)), -(-width // (4 * _THREADS))
    return {
        "TEAM": team,
        "THREADS": threads,
        "ROWS": rows,
        "CHUNK": 16 * rows,
        "FOURS": fours,
        "COLUMNS": columns,
    }


@cache
def source_for(kernel: str, width: int, dtype: torch.dtype) -> str:
    """A kernel for states of a width and a type. Each is compiled by itself: two at once take half
    the time."""
    known = {
        **_shape(width),
        "WIDTH": width,
        "HALF": int(dtype == torch.float16),
        "BLOCKS": 2 if _shape(width)["FOURS"] <= 8 else 1,
    }
    return (
        "".join(f"#define {name} {value}\n" for name, value in known.items())
        + _COMMON
        + KERNELS[kernel]
    )


def _settings(
    norm: nn.Module | None, states: Tensor, weights: Weights | None, held: Held | None
) -> Settings:
    """Weight and bias of a norm, or those to try it with, float32, and the bits of its ε."""
    if norm is None:
        return *_no_weights(states.shape[-1], states.device), 0
    if held is not None and norm in held and held[norm][0].device == states.device:
        return held[norm]
    names = [
        name
        for name in ("eps", "variance_epsilon", "epsilon")
        if isinstance(getattr(norm, name, None), float)
    ]
    if not names:
        raise UnusableError("a norm without an epsilon")
    (bits,) = struct.unpack("i", struct.pack("f", getattr(norm, names[0])))
    given = _weights(norm) if weights is None else weights
    scale = _as_floats(given["weight"])
    settings = (
        scale,
        _as_floats(given["bias"]) if "bias" in given else torch.zeros_like(scale),
        bits,
    )
    if held is not None:
        held[norm] = settings
    return settings


@cache
def _no_weights(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A weight and a bias that change nothing."""
    with torch.inference_mode(False):
        return torch.ones(width, device=device), torch.zeros(width, device=device)


def _weights(norm: nn.Module) -> Weights:
    return {name: value for name, value in norm._parameters.items() if value is not None}


def _as_floats(weight: Tensor) -> Tensor:
    """As the kernels read them: float32, four at a time."""
    floats = weight.detach().float().contiguous()
    return floats if floats.data_ptr() % 16 == 0 else floats.clone()


def _kind_of(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Return the kind that a module computes, tried once; None if none of them, or if the kernel
    cannot be used."""
    weights = {} if norm is None else _weights(norm)
    if norm is not None and (
        norm._modules or not _plain(weights, states)
    ):  # or a wrapper, which keeps its weights elsewhere
        return None
    known = _known.setdefault(_NO_NORM if norm is None else norm, {})
    key = states.dtype, states.device.index or 0, *(value.dtype for value in weights.values())
    if key not in known:
        known[key] = _find_kind(norm, states)
    return known[key]


def _plain(weights: Weights, states: Tensor) -> bool:
    """Return True if a norm has a weight and at most a bias, all here: not on another device,
    offloaded or a shard of one."""
    if "weight" not in weights or not weights.keys() <= {"weight", "bias"}:
        return False
    return all(
        type(value) in (Tensor, nn.Parameter)
        and value.device == states.device
        and value.shape == states.shape[-1:]
        for value in weights.values()
    )


@torch.inference_mode()
def _find_kind(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Tried with weights of our own: the module's may all be equal, and change while a model
    trains."""
    try:
        generator, width = torch.Generator().manual_seed(0), states.shape[-1]
        given = torch.randn(3, 19, width, generator=generator)
        given = ((given + 0.5) * torch.tensor([0.1, 30.0, 0.001])[:, None, None]).to(
            states.device, states.dtype
        )
        mask = torch.arange(19, device=states.device).expand(3, -1) < torch.tensor(
            [[19], [11], [17]], device=states.device
        )
        weights = {
            name: (1 + 0.3 * torch.randn(width, generator=generator)).to(value.device, value.dtype)
            for name, value in ({} if norm is None else _weights(norm)).items()
        }
        after = given if norm is None else functional_call(norm, weights, (given,))
        if after.dtype != states.dtype:
            return None
        after = torch.where(mask.unsqueeze(-1), after, 0).double()
        want = after.sum(1)
        # at most a few elements may be rounded the other way: a sum of rows rounded once more often
        # is further off than that
        unit = want.abs().mean(-1) * torch.finfo(states.dtype).eps
        kinds = [kind for kind in _KINDS if (kind == "none") == (norm is None)]
        count = mask.sum(-1, keepdim=True)
        errors = {
            kind: _off_by(count * _means(given, mask, norm, kind, weights).double(), want, unit)
            for kind in kinds
        }
        best = min(errors, key=errors.__getitem__)
        seen = _centered(given, mask, norm, best, weights)
        right = max(errors[best], _off_by(seen.total, want, unit)) < _NEAR and _is_centered(
            seen, given, mask, after
        )
        return best if right else None
    except (
        UnusableError,
        OSError,
        AttributeError,
        RuntimeError,
        AssertionError,
        KeyError,
        TypeError,
    ):
        return None


def _off_by(sums: Tensor, want: Tensor, unit: Tensor) -> float:
    return float(((sums - want).abs().mean(-1) / unit).max())


def _is_centered(seen: CenteredStates, given: Tensor, mask: Tensor, after: Tensor) -> bool:
    """Return True if the other kernel's results are those of the same states."""
    at = torch.arange(len(given), device=given.device)
    mean = (after.sum(1) - after[at, seen.largest]) / (mask.sum(-1, keepdim=True) - 1)
    centered = torch.where(mask.unsqueeze(-1), after - mean.unsqueeze(1), 0.0)
    before, norms = (
        torch.linalg.vector_norm(given.double(), dim=-1),
        torch.linalg.vector_norm(after, dim=-1),
    )
    return (
        torch.equal(seen.largest, seen.before.masked_fill(~mask, -1.0).argmax(-1))
        and torch.allclose(seen.before, before, rtol=1e-4)
        and torch.allclose(seen.norms, norms, rtol=1e-2)
        and bool((seen.centered - centered).abs().mean() < 1e-3 * centered.abs().mean())
    )


# CUDA source. A norm's result is rounded as the model would store it, so that what is summed is
# what the model has. Sums run over up to sixteen tokens in float32, then in float64. A block has a
# part of a text: long texts alone would leave most of the chip idle.

_COMMON = (
    HALVES
    + WARP_SUM
    + r"""
#define LAYER 0
#define ROUNDED 2  // an RMS norm that stores the state before it is scaled; 1 is one that does not
#define NONE 3     // mean 0, scale 1: the state as it is

// to the nearest values of the states' type, as the model itself would store them
__device__ __forceinline__ void store(float& x, float& y) {
  const unsigned both = paired(x, y, HALF);
  x = low(both, HALF), y = high(both, HALF);
}

// four numbers of a state
__device__ __forceinline__ float4 wide(uint2 x) {
  return make_float4(low(x.x, HALF), high(x.x, HALF), low(x.y, HALF), high(x.y, HALF));
}

// four columns of a state under the norm, as the model would store them
__device__ __forceinline__ float4 normed(uint2 x, float4 weight, float4 bias, float mean, float scale, int kind) {
  float4 y = wide(x);
  y.x = (y.x - mean) * scale, y.y = (y.y - mean) * scale, y.z = (y.z - mean) * scale, y.w = (y.w - mean) * scale;
  if (kind == ROUNDED) store(y.x, y.y), store(y.z, y.w);
  y.x = y.x * weight.x + bias.x, y.y = y.y * weight.y + bias.y, y.z = y.z * weight.z + bias.z, y.w = y.w * weight.w + bias.w;
  store(y.x, y.y), store(y.z, y.w);
  return y;
}
"""
)

_SUMS = r"""
// the sum over the warps that share a token, in each of their threads
__device__ __forceinline__ float team_sum(float x, float* part, int warp) {
  x = warp_sum(x);
#if TEAM > 1
  __syncthreads();
  part[warp] = x;
  __syncthreads();
  x = 0.f;
#pragma unroll
  for (int i = 0; i < TEAM; ++i) x += part[warp / TEAM * TEAM + i];
#endif
  return x;
}

// a thread's part of a token's state; zeros where there is no such token
__device__ __forceinline__ void read_token(uint2* held, const u16* at, int token, bool there, int column) {
#pragma unroll
  for (int f = 0; f < FOURS; ++f) {
    const int k = f * 128 * TEAM + column;
    held[f] = there && k < WIDTH ? *(const uint2*)(at + (size_t)token * WIDTH + k) : make_uint2(0u, 0u);
  }
}

// Sums of CHUNK tokens of a text, or with `single` the mean of a text. A token is read once, by TEAM warps that keep it in
// registers while they find its mean and scale, and add it to their own sums under the norm; the next one is on its way
// meanwhile. With `full`, what is found of each token is kept, and its norms: as it came, and under the norm.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
normed_sums(const u16* states, const unsigned char* mask, const float* weight, const float* bias, double* out, float* means,
            float* scales, double* before, double* after, int epsilon, int tokens, int masked, int kind, int full, int single) {
  extern __shared__ __align__(16) float sums[];  // ROWS x WIDTH
  __shared__ float part[THREADS / 32];
  __shared__ int counts[THREADS / 32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, team = warp / TEAM, member = warp % TEAM;
  const int chunks = (tokens + CHUNK - 1) / CHUNK, text = blockIdx.x / chunks, begin = blockIdx.x % chunks * CHUNK;
  const int end = min(begin + CHUNK, tokens), column = (member * 32 + lane) * 4;
  const u16* at = states + (size_t)text * tokens * WIDTH;
  const unsigned char* real = mask + (size_t)text * tokens;
  const float eps = __int_as_float(epsilon);
  float4 sum[FOURS];
#pragma unroll
  for (int f = 0; f < FOURS; ++f) sum[f] = make_float4(0.f, 0.f, 0.f, 0.f);
  int count = 0;
  uint2 next[FOURS];
  read_token(next, at, begin + team, begin + team < end, column);
  for (int start = begin; start < end; start += ROWS) {
    const int token = start + team;
    const bool there = token < end, counts_here = there && (!masked || real[token]);
    uint2 held[FOURS];
#pragma unroll
    for (int f = 0; f < FOURS; ++f) held[f] = next[f];
    read_token(next, at, token + ROWS, token + ROWS < end, column);
    if (!full && TEAM == 1 && !counts_here) continue;  // no barrier is missed: none are here
    float mean = 0.f, square = 0.f, squares = 0.f, scale = 1.f;
    if (kind == LAYER) {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const float4 x = wide(held[f]);
        mean += (x.x + x.y) + (x.z + x.w);
      }
      mean = team_sum(mean, part, warp) / WIDTH;
    }
    if (kind != NONE || full) {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {  // around the mean: the difference of two large sums would have no digits left
        if (f * 128 * TEAM + column >= WIDTH) continue;
        const float4 x = wide(held[f]);
        const float a = x.x - mean, b = x.y - mean, c = x.z - mean, d = x.w - mean;
        square += (a * a + b * b) + (c * c + d * d);
      }
      square = team_sum(square, part, warp);
    }
    if (kind != NONE) scale = 1.f / sqrtf(square / WIDTH + eps);
    if (full) {
      squares = square;
      if (kind == LAYER) {
        squares = 0.f;
#pragma unroll
        for (int f = 0; f < FOURS; ++f) {
          const float4 x = wide(held[f]);
          squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
        }
        squares = team_sum(squares, part, warp);
      }
    }
    float size = 0.f;
    if (counts_here) {
      ++count;
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const int k = f * 128 * TEAM + column;
        if (k >= WIDTH) continue;
        const float4 w = *(const float4*)(weight + k), b = *(const float4*)(bias + k);
        const float4 y = normed(held[f], w, b, mean, scale, kind);
        sum[f].x += y.x, sum[f].y += y.y, sum[f].z += y.z, sum[f].w += y.w;
        if (full) size += (y.x * y.x + y.y * y.y) + (y.z * y.z + y.w * y.w);
      }
    }
    if (full) {
      size = team_sum(size, part, warp);
      if (there && member == 0 && lane == 0) {
        const size_t place = (size_t)text * tokens + token;
        means[place] = mean;
        scales[place] = scale;
        before[place] = sqrtf(squares);
        after[place] = sqrtf(size);
      }
    }
  }
#pragma unroll
  for (int f = 0; f < FOURS; ++f) {
    const int k = f * 128 * TEAM + column;
    if (k < WIDTH) *(float4*)(sums + (size_t)team * WIDTH + k) = sum[f];
  }
  counts[warp] = count;
  __syncthreads();
  count = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) count += counts[r * TEAM];
  for (int k = tid; k < WIDTH; k += THREADS) {
    double total = 0.;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) total += sums[(size_t)r * WIDTH + k];
    if (single) {
      ((float*)out)[(size_t)blockIdx.x * WIDTH + k] = (float)(total / count);
    } else {
      out[(size_t)blockIdx.x * WIDTH + k] = total;
    }
  }
}
"""

_CENTERED = r"""
// CHUNK tokens of a text under the norm, seen from the mean of all its tokens but the largest
extern "C" __global__ void __launch_bounds__(256)
centered_states(const u16* states, const unsigned char* mask, const float* weight, const float* bias, const double* total,
                const float* means, const float* scales, const long long* largest, float* centered, int tokens, int masked,
                int kind) {
  __shared__ int counted[8];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int chunks = (tokens + CHUNK - 1) / CHUNK, text = blockIdx.x / chunks, begin = blockIdx.x % chunks * CHUNK;
  const int end = min(begin + CHUNK, tokens);
  const u16* at = states + (size_t)text * tokens * WIDTH;
  const unsigned char* real = mask + (size_t)text * tokens;
  const float* mean = means + (size_t)text * tokens;
  const float* scale = scales + (size_t)text * tokens;
  int count = 0;
  for (int i = tid; i < tokens; i += 256) count += !masked || real[i];
  for (int s = 16; s > 0; s >>= 1) count += __shfl_xor_sync(0xffffffffu, count, s);
  if (lane == 0) counted[warp] = count;
  __syncthreads();
  count = 0;
  for (int i = 0; i < 8; ++i) count += counted[i];
  const int others = max(count - 1, 1), sink = (int)largest[text];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int k = (c * 256 + tid) * 4;
    if (k < WIDTH) {
      const float4 w = *(const float4*)(weight + k), b = *(const float4*)(bias + k);
      const float4 far = normed(*(const uint2*)(at + (size_t)sink * WIDTH + k), w, b, mean[sink], scale[sink], kind);
      const double* sum = total + (size_t)text * WIDTH + k;
      const float4 m = make_float4((float)((sum[0] - far.x) / others), (float)((sum[1] - far.y) / others),
                                   (float)((sum[2] - far.z) / others), (float)((sum[3] - far.w) / others));
#pragma unroll 4
      for (int i = begin; i < end; ++i) {
        float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
        if (!masked || real[i]) {
          y = normed(*(const uint2*)(at + (size_t)i * WIDTH + k), w, b, mean[i], scale[i], kind);
          y.x -= m.x, y.y -= m.y, y.z -= m.z, y.w -= m.w;
        }
        *(float4*)(centered + ((size_t)text * tokens + i) * WIDTH + k) = y;
      }
    }
  }
}
"""

KERNELS = {"normed_sums": _SUMS, "centered_states": _CENTERED}
