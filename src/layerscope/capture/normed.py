"""States under the final norm, summed over tokens or centered, without ever storing the normed states themselves.

A profile with views reads only the mean vector of each view. Norming every layer's states and summing them goes over them three
times; a CUDA kernel for half-precision states does it once. Token measures need a dozen such passes, or one more kernel. A norm
module is recognized by its results: on a few states they must equal ours.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerscope.metrics.tokens.norms import largest_token
from layerscope.spectra.cuda import HALVES, WARP_SUM, UnusableError, launch

Kind = Literal["layer", "rms", "rms-rounded", "none"]
_KINDS: dict[Kind, int] = {"layer": 0, "rms": 1, "rms-rounded": 2, "none": 3}
_THREADS = 256
_WIDEST = 8192
_NEAR = 0.05  # units of the last place, of a sum: how far a norm's own result may be from ours
_NO_NORM = nn.Identity()
_known: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Kind | None]] = WeakKeyDictionary()

Weights = dict[str, Tensor]


class CenteredStates(NamedTuple):
    """Of each prompt's states under a norm: their sum over the real tokens (B, D), norms before and after it (B, T), all float64;

    the token that is largest before it (B,), and the states seen from the mean of all others (B, T, D), float32, padding zero.
    """

    total: Tensor
    before: Tensor
    norms: Tensor
    largest: Tensor
    centered: Tensor


def normed_sums(states: Tensor, mask: Tensor | None, norm: nn.Module) -> Tensor | None:
    """Sums over the real tokens (B, D), float64, of norm(states); None where it must be done step by step."""
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _sums(states, mask, norm, kind)


def centered_states(states: Tensor, mask: Tensor | None, norm: nn.Module | None) -> CenteredStates | None:
    """What token measures need of norm(states), or of the states themselves; None where it must be done step by step."""
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _centered(states, mask, norm, kind)


def _fits(states: Tensor, mask: Tensor | None) -> bool:
    width = states.shape[-1]
    if not states.is_cuda or states.dtype not in (torch.bfloat16, torch.float16) or states.ndim != 3 or not states.numel():
        return False
    if mask is not None and (mask.shape != states.shape[:2] or mask.dtype != torch.bool or mask.device != states.device):
        return False
    return states.is_contiguous() and states.data_ptr() % 8 == 0 and width % 4 == 0 and width <= _WIDEST


def _sums(states: Tensor, mask: Tensor | None, norm: nn.Module | None, kind: Kind, weights: Weights | None = None) -> Tensor:
    given = _given(states, mask, norm, weights)
    return _sum_chunks(states, given, mask is not None, kind, [states] * 4, full=False)


def _centered(
    states: Tensor, mask: Tensor | None, norm: nn.Module | None, kind: Kind, weights: Weights | None = None
) -> CenteredStates:
    texts, tokens, width = states.shape
    given = _given(states, mask, norm, weights)
    means, scales = (states.new_empty(texts, tokens, dtype=torch.float32) for _ in range(2))
    before, norms = (states.new_empty(texts, tokens, dtype=torch.float64) for _ in range(2))
    total = _sum_chunks(states, given, mask is not None, kind, [means, scales, before, norms], full=True)
    largest = largest_token(before, mask)
    centered = states.new_empty(texts, tokens, width, dtype=torch.float32)
    tensors = [*given[0], total, means, scales, largest, centered]
    _run("centered_states", states, [*tensors, *_numbers(states, mask is not None, kind)])
    return CenteredStates(total, before, norms, largest, centered)


def _sum_chunks(
    states: Tensor, given: tuple[list[Tensor], int], masked: bool, kind: Kind, sums: list[Tensor], full: bool
) -> Tensor:
    """Sums over tokens (B, D); with `full`, each token's results go to the tensors given for them."""
    texts, tokens, width = states.shape
    out = states.new_empty(texts, -(-tokens // CHUNK), width, dtype=torch.float64)
    _run("normed_sums", states, [*given[0], out, *sums, given[1], *_numbers(states, masked, kind), int(full)])
    return out.sum(1) if out.shape[1] > 1 else out.squeeze(1)


def _run(name: str, states: Tensor, arguments: list[Tensor | int]) -> None:
    texts, tokens, width = states.shape
    launch(source_for(width), name, texts * -(-tokens // CHUNK), _THREADS, 0, arguments)


def _given(states: Tensor, mask: Tensor | None, norm: nn.Module | None, weights: Weights | None) -> tuple[list[Tensor], int]:
    weight, bias, epsilon = _settings(norm, states, weights)
    return [states, states if mask is None else mask.contiguous(), weight, bias], epsilon


def _numbers(states: Tensor, masked: bool, kind: Kind) -> list[int]:
    _, tokens, width = states.shape
    return [tokens, width, int(states.dtype == torch.float16), int(masked), _KINDS[kind]]


@cache
def source_for(width: int) -> str:
    """The kernels for states of a width."""
    columns = -(-width // (4 * _THREADS))  # groups of four that a thread owns
    return f"#define COLUMNS {columns}\n{SOURCE}"


def _settings(norm: nn.Module | None, states: Tensor, weights: Weights | None) -> tuple[Tensor, Tensor, int]:
    """Weight and bias of a norm, or those to try it with, float32, and the bits of its ε."""
    if norm is None:
        nothing = states.new_zeros(states.shape[-1], dtype=torch.float32)
        return nothing, nothing, 0
    names = [name for name in ("eps", "variance_epsilon", "epsilon") if isinstance(getattr(norm, name, None), float)]
    if not names:
        raise UnusableError("a norm without an epsilon")
    (bits,) = struct.unpack("i", struct.pack("f", getattr(norm, names[0])))
    given = _weights(norm) if weights is None else weights
    scale = _as_floats(given["weight"])
    return scale, _as_floats(given["bias"]) if "bias" in given else torch.zeros_like(scale), bits


def _weights(norm: nn.Module) -> Weights:
    return {name: value for name, value in norm._parameters.items() if value is not None}


def _as_floats(weight: Tensor) -> Tensor:
    """As the kernels read them: float32, four at a time."""
    floats = weight.detach().float().contiguous()
    return floats if floats.data_ptr() % 16 == 0 else floats.clone()


def _kind_of(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Which of the kinds a module computes, tried once; None if none of them, or if the kernel cannot be used."""
    weights = {} if norm is None else _weights(norm)
    if norm is not None and (norm._modules or not _plain(weights, states)):  # or a wrapper, which keeps its weights elsewhere
        return None
    known = _known.setdefault(_NO_NORM if norm is None else norm, {})
    key = states.dtype, states.device.index or 0, *(value.dtype for value in weights.values())
    if key not in known:
        known[key] = _find_kind(norm, states)
    return known[key]


def _plain(weights: Weights, states: Tensor) -> bool:
    """Whether a norm has a weight and at most a bias, all of them here: not on another device, offloaded or a shard of one."""
    if "weight" not in weights or not weights.keys() <= {"weight", "bias"}:
        return False
    return all(
        type(value) in (Tensor, nn.Parameter) and value.device == states.device and value.shape == states.shape[-1:]
        for value in weights.values()
    )


@torch.inference_mode()
def _find_kind(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Tried with weights of our own: the module's may all be equal, and change while a model trains."""
    try:
        generator, width = torch.Generator().manual_seed(0), states.shape[-1]
        given = torch.randn(3, 19, width, generator=generator)
        given = ((given + 0.5) * torch.tensor([0.1, 30.0, 0.001])[:, None, None]).to(states.device, states.dtype)
        mask = torch.arange(19, device=states.device).expand(3, -1) < torch.tensor([[19], [11], [17]], device=states.device)
        weights = {
            name: (1 + 0.3 * torch.randn(width, generator=generator)).to(value.device, value.dtype)
            for name, value in ({} if norm is None else _weights(norm)).items()
        }
        after = given if norm is None else functional_call(norm, weights, (given,))
        if after.dtype != states.dtype:
            return None
        after = torch.where(mask.unsqueeze(-1), after, 0).double()
        want = after.sum(1)
        # at most a few elements may be rounded the other way: a sum of rows rounded once more often is further off than that
        unit = want.abs().mean(-1) * torch.finfo(states.dtype).eps
        kinds = [kind for kind in _KINDS if (kind == "none") == (norm is None)]
        errors = {kind: _off_by(_sums(given, mask, norm, kind, weights), want, unit) for kind in kinds}
        best = min(errors, key=errors.__getitem__)
        seen = _centered(given, mask, norm, best, weights)
        right = max(errors[best], _off_by(seen.total, want, unit)) < _NEAR and _is_centered(seen, given, mask, after)
        return best if right else None
    except (UnusableError, OSError, AttributeError, RuntimeError, AssertionError, KeyError, TypeError):
        return None


def _off_by(sums: Tensor, want: Tensor, unit: Tensor) -> float:
    return float(((sums - want).abs().mean(-1) / unit).max())


def _is_centered(seen: CenteredStates, given: Tensor, mask: Tensor, after: Tensor) -> bool:
    """Whether the other kernel's results are those of the same states."""
    at = torch.arange(len(given), device=given.device)
    mean = (after.sum(1) - after[at, seen.largest]) / (mask.sum(-1, keepdim=True) - 1)
    centered = torch.where(mask.unsqueeze(-1), after - mean.unsqueeze(1), 0.0)
    before, norms = torch.linalg.vector_norm(given.double(), dim=-1), torch.linalg.vector_norm(after, dim=-1)
    return (
        torch.equal(seen.largest, seen.before.masked_fill(~mask, -1.0).argmax(-1))
        and torch.allclose(seen.before, before, rtol=1e-4)
        and torch.allclose(seen.norms, norms, rtol=1e-2)
        and bool((seen.centered - centered).abs().mean() < 1e-3 * centered.abs().mean())
    )


# CUDA source. A norm's result is rounded as the model would store it, so that what is summed is what the model has. Sums run
# over sixteen tokens in float32, then in float64. A block has CHUNK tokens of a text: long texts alone would leave most of
# the chip idle.
CHUNK = 64

SOURCE = (
    HALVES
    + WARP_SUM
    + f"#define CHUNK {CHUNK}\n"
    + r"""
#define LAYER 0
#define ROUNDED 2  // an RMS norm that stores the state before it is scaled; 1 is one that does not
#define NONE 3

// to the nearest value of the states' type, as the model itself would store it
__device__ __forceinline__ float stored(float x, int half) {
  if (!half) {
    const unsigned int u = __float_as_uint(x);
    return x == x ? __uint_as_float((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u) : x;
  }
  return widened(narrowed(x), 1);
}

// the sum of a row's squares, and its mean and scale under a norm of some kind; a warp's work
__device__ __forceinline__ void statistics(const u16* row, int width, int half, int kind, float eps, float* squares, float* mean,
                                           float* scale) {
  const int lane = threadIdx.x & 31;
  float sum = 0.f, square = 0.f;
  for (int k = lane * 4; k < width; k += 128) {
    const ushort4 x = *(const ushort4*)(row + k);
    const float a = widened(x.x, half), b = widened(x.y, half), c = widened(x.z, half), d = widened(x.w, half);
    sum += (a + b) + (c + d);
    square += (a * a + b * b) + (c * c + d * d);
  }
  sum = kind == LAYER ? warp_sum(sum) / width : 0.f;
  square = warp_sum(square);
  *squares = square;
  if (kind == LAYER) {  // around the mean: the difference of two large sums would have no digits left
    square = 0.f;
    for (int k = lane * 4; k < width; k += 128) {
      const ushort4 x = *(const ushort4*)(row + k);
      const float a = widened(x.x, half) - sum, b = widened(x.y, half) - sum;
      const float c = widened(x.z, half) - sum, d = widened(x.w, half) - sum;
      square += (a * a + b * b) + (c * c + d * d);
    }
    square = warp_sum(square);
  }
  *mean = sum;
  *scale = 1.f / sqrtf(square / width + eps);
}

// four columns of a state under the norm, as the model would store them
__device__ __forceinline__ float4 normed(ushort4 x, float4 weight, float4 bias, float mean, float scale, int half, int kind) {
  float4 y = make_float4(widened(x.x, half), widened(x.y, half), widened(x.z, half), widened(x.w, half));
  if (kind == NONE) return y;
  y.x = (y.x - mean) * scale, y.y = (y.y - mean) * scale, y.z = (y.z - mean) * scale, y.w = (y.w - mean) * scale;
  if (kind == ROUNDED) y.x = stored(y.x, half), y.y = stored(y.y, half), y.z = stored(y.z, half), y.w = stored(y.w, half);
  y.x = stored(y.x * weight.x + bias.x, half), y.y = stored(y.y * weight.y + bias.y, half);
  y.z = stored(y.z * weight.z + bias.z, half), y.w = stored(y.w * weight.w + bias.w, half);
  return y;
}

// sums of CHUNK tokens of a text, sixteen at a time: a warp finds a token's mean and scale, then every thread sums its columns.
// With `full`, what is found of each token is kept, and its norms: as it came, and under the norm.
extern "C" __global__ void __launch_bounds__(256)
normed_sums(const u16* states, const unsigned char* mask, const float* weight, const float* bias, double* out, float* means,
            float* scales, double* before, double* after, int epsilon, int tokens, int width, int half, int masked, int kind,
            int full) {
  __shared__ float mean[16], scale[16], size[16], part[16 * 8];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int chunks = (tokens + CHUNK - 1) / CHUNK, text = blockIdx.x / chunks, begin = blockIdx.x % chunks * CHUNK;
  const int end = min(begin + CHUNK, tokens);
  const u16* at = states + (size_t)text * tokens * width;
  const unsigned char* real = mask + (size_t)text * tokens;
  const float eps = __int_as_float(epsilon);
  double total[COLUMNS * 4];
#pragma unroll
  for (int c = 0; c < COLUMNS * 4; ++c) total[c] = 0.;
  for (int start = begin; start < end; start += 16) {
    const int many = min(16, end - start);
    for (int i = warp; i < many; i += 8) {
      float squares, centre, by;
      statistics(at + (size_t)(start + i) * width, width, half, kind, eps, &squares, &centre, &by);
      if (lane == 0) {
        mean[i] = centre;
        scale[i] = by;
        size[i] = sqrtf(squares);
      }
    }
    __syncthreads();
    float square[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) square[i] = 0.f;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int k = (c * 256 + tid) * 4;
      if (k < width) {
        const float4 w = *(const float4*)(weight + k), b = *(const float4*)(bias + k);
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          if (i >= many || (masked && !real[start + i])) continue;
          const ushort4 x = *(const ushort4*)(at + (size_t)(start + i) * width + k);
          const float4 y = normed(x, w, b, mean[i], scale[i], half, kind);
          sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
          if (full) square[i] += (y.x * y.x + y.y * y.y) + (y.z * y.z + y.w * y.w);
        }
        total[c * 4] += sum.x, total[c * 4 + 1] += sum.y, total[c * 4 + 2] += sum.z, total[c * 4 + 3] += sum.w;
      }
    }
    if (full) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float s = warp_sum(square[i]);
        if (lane == 0) part[i * 8 + warp] = s;
      }
    }
    __syncthreads();
    if (full && tid < many) {
      float s = 0.f;
      for (int i = 0; i < 8; ++i) s += part[tid * 8 + i];
      const size_t token = (size_t)text * tokens + start + tid;
      means[token] = mean[tid];
      scales[token] = scale[tid];
      before[token] = size[tid];
      after[token] = sqrtf(s);
    }
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int k = (c * 256 + tid) * 4;
    if (k < width)
      for (int e = 0; e < 4; ++e) out[(size_t)blockIdx.x * width + k + e] = total[c * 4 + e];
  }
}

// CHUNK tokens of a text under the norm, seen from the mean of all its tokens but the largest
extern "C" __global__ void __launch_bounds__(256)
centered_states(const u16* states, const unsigned char* mask, const float* weight, const float* bias, const double* total,
                const float* means, const float* scales, const long long* largest, float* centered, int tokens, int width,
                int half, int masked, int kind) {
  __shared__ int counted[8];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int chunks = (tokens + CHUNK - 1) / CHUNK, text = blockIdx.x / chunks, begin = blockIdx.x % chunks * CHUNK;
  const int end = min(begin + CHUNK, tokens);
  const u16* at = states + (size_t)text * tokens * width;
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
    if (k < width) {
      const float4 w = *(const float4*)(weight + k), b = *(const float4*)(bias + k);
      const float4 far = normed(*(const ushort4*)(at + (size_t)sink * width + k), w, b, mean[sink], scale[sink], half, kind);
      const double* sum = total + (size_t)text * width + k;
      const float4 m = make_float4((float)((sum[0] - far.x) / others), (float)((sum[1] - far.y) / others),
                                   (float)((sum[2] - far.z) / others), (float)((sum[3] - far.w) / others));
#pragma unroll 8
      for (int i = begin; i < end; ++i) {
        float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
        if (!masked || real[i]) {
          y = normed(*(const ushort4*)(at + (size_t)i * width + k), w, b, mean[i], scale[i], half, kind);
          y.x -= m.x, y.y -= m.y, y.z -= m.z, y.w -= m.w;
        }
        *(float4*)(centered + ((size_t)text * tokens + i) * width + k) = y;
      }
    }
  }
}
"""
)
