"""States under the final norm, summed over tokens or centered, without storing the normed states.

A profile with views reads only the mean vector of each view. torch's norm and sum read every
layer's states three times; a CUDA kernel for half-precision states reads them once. Token measures
need a dozen such passes, or one more kernel. A norm module is recognized by its results: on a few
states they must equal the kernel's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerscope_gpu.cuda import FAILURES, HALVES, WARP_SUM, UnusableError, define, launch

Kind = Literal["layer", "rms", "rms-rounded", "none"]
_KINDS: dict[Kind, int] = {"layer": 0, "rms": 1, "rms-rounded": 2, "none": 3}
_THREADS = 256
_WIDEST = 8192
_NEAR = 0.05  # largest difference of a sum from the module's own, in units of its last place
_NO_NORM = nn.Identity()
_kinds_of: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Kind | None]] = WeakKeyDictionary()

Weights = dict[str, Tensor]
Settings = tuple[Tensor, Tensor, int]
NormCache = dict[nn.Module, Settings]
"""Weight, bias and ε of norms as the kernels read them. Use it while the weights cannot change,
such as during one pass."""


class CenteredStates(NamedTuple):
    """Each prompt's states under a norm.

    `total` is their sum over the real tokens (B, D). `before` and `norms` are the tokens' norms
    before and after the norm (B, T). These are float64. `largest` is the token with the largest
    norm before it (B,). `centered` are the states minus the mean of all tokens but that one (B, T,
    D), float32, with zeros as padding.
    """

    total: Tensor
    before: Tensor
    norms: Tensor
    largest: Tensor
    centered: Tensor


def normed_means(
    states: Tensor, mask: Tensor | None, norm: nn.Module | None, norm_cache: NormCache | None = None
) -> Tensor | None:
    """Return means over the real tokens (B, D), float32, of norm(states), or of states.

    Returns None where the kernel does not support them.
    """
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _means(_inputs(states, mask, norm, kind, norm_cache))


def centered_states(
    states: Tensor, mask: Tensor | None, norm: nn.Module | None, norm_cache: NormCache | None = None
) -> CenteredStates | None:
    """Return the parts of norm(states), or of the states, that token measures need; None where the
    kernel does not support them."""
    if not _fits(states, mask):
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _centered(_inputs(states, mask, norm, kind, norm_cache))


def _fits(states: Tensor, mask: Tensor | None) -> bool:
    if not states.is_cuda or states.ndim != 3 or not states.numel():
        return False
    mask_fits = mask is None or (
        mask.shape == states.shape[:2] and mask.dtype == torch.bool and mask.device == states.device
    )
    width = states.shape[-1]
    return (
        mask_fits
        and states.dtype in (torch.bfloat16, torch.float16)
        and states.is_contiguous()
        and states.data_ptr() % 8 == 0
        and width % 4 == 0
        and width <= _WIDEST
    )


@dataclass(frozen=True)
class _Inputs:
    """States and a norm as arguments of the kernels."""

    states: Tensor
    mask: Tensor | None
    tensors: list[Tensor]
    numbers: list[int]
    epsilon: int

    @property
    def chunks(self) -> int:
        """Return the number of blocks for each text."""
        _, tokens, width = self.states.shape
        return -(-tokens // _shape(width)["CHUNK"])

    def run(
        self, name: str, arguments: list[Tensor | int], threads: int = _THREADS, shared: int = 0
    ) -> None:
        """Launch one of the kernels."""
        texts, _, width = self.states.shape
        source = source_for(name, width, self.states.dtype)
        launch(source, name, texts * self.chunks, threads, shared, arguments)

    def write_sums(
        self, out: Tensor, results: list[Tensor] | None = None, means: bool = False
    ) -> None:
        """Write sums over the tokens of each block, or means, to `out`, and each token's mean,
        scale and norms to `results` if given."""
        width = self.states.shape[-1]
        macros = _shape(width)
        tensors = [*self.tensors, out, *(results or [self.states] * 4)]
        numbers = [self.epsilon, *self.numbers, int(results is not None), int(means)]
        arguments: list[Tensor | int] = [*tensors, *numbers]
        self.run("normed_sums", arguments, macros["THREADS"], 4 * macros["ROWS"] * width)

    def sums(self, results: list[Tensor] | None = None) -> Tensor:
        """Return sums over tokens (B, D), float64; see `write_sums` for `results`."""
        texts, _, width = self.states.shape
        out = self.states.new_empty(texts, self.chunks, width, dtype=torch.float64)
        self.write_sums(out, results)
        return out.sum(1) if self.chunks > 1 else out.squeeze(1)


def _inputs(
    states: Tensor,
    mask: Tensor | None,
    norm: nn.Module | None,
    kind: Kind,
    norm_cache: NormCache | None = None,
    weights: Weights | None = None,
) -> _Inputs:
    weight, bias, epsilon = _settings(norm, states, weights, norm_cache)
    tensors = [states, states if mask is None else mask.contiguous(), weight, bias]
    numbers = [states.shape[1], int(mask is not None), _KINDS[kind]]
    return _Inputs(states, mask, tensors, numbers, epsilon)


def _means(inputs: _Inputs) -> Tensor:
    texts, tokens, width = inputs.states.shape
    if inputs.chunks == 1:  # the kernel divides as well
        out = inputs.states.new_empty(texts, width, dtype=torch.float32)
        inputs.write_sums(out, means=True)
        return out
    counts = tokens if inputs.mask is None else inputs.mask.sum(-1, keepdim=True)
    return (inputs.sums() / counts).float()


def _centered(inputs: _Inputs) -> CenteredStates:
    states = inputs.states
    mask = inputs.mask
    texts, tokens, width = states.shape
    means, scales = (states.new_empty(texts, tokens, dtype=torch.float32) for _ in range(2))
    before, norms = (states.new_empty(texts, tokens, dtype=torch.float64) for _ in range(2))
    total = inputs.sums([means, scales, before, norms])
    largest = (before if mask is None else before.masked_fill(~mask, -1.0)).argmax(-1)
    centered = states.new_empty(texts, tokens, width, dtype=torch.float32)
    tensors = [*inputs.tensors, total, means, scales, largest, centered]
    inputs.run("centered_states", [*tensors, *inputs.numbers])
    return CenteredStates(total, before, norms, largest, centered)


@cache
def _shape(width: int) -> dict[str, int]:
    """Return the macros of the kernels for states of a width.

    TEAM warps share a token, a block works on ROWS tokens at once and on CHUNK in all, and a thread
    holds FOURS × 4 numbers of one token, or COLUMNS × 4 columns. CHUNK is sixteen tokens for each
    team, which adds them up in float32.
    """
    team = 1 if width <= 2048 else 2 if width <= 4096 else 4
    threads = 256 if team < 4 else 512
    rows = threads // 32 // team
    return {
        "TEAM": team,
        "THREADS": threads,
        "ROWS": rows,
        "CHUNK": 16 * rows,
        "FOURS": -(-width // (128 * team)),
        "COLUMNS": -(-width // (4 * _THREADS)),
    }


@cache
def source_for(kernel: str, width: int, dtype: torch.dtype) -> str:
    """Return the source of one kernel for states of a width and a type.

    Each kernel is compiled separately: two at the same time take half the time.
    """
    macros = {
        **_shape(width),
        "WIDTH": width,
        "HALF": int(dtype == torch.float16),
        "BLOCKS": 2 if _shape(width)["FOURS"] <= 8 else 1,
    }
    return define(macros) + _COMMON + KERNELS[kernel]


def _settings(
    norm: nn.Module | None, states: Tensor, weights: Weights | None, norm_cache: NormCache | None
) -> Settings:
    """Return weight and bias of a norm, or the given ones, as float32, and the bits of its ε."""
    if norm is None:
        return *_no_weights(states.shape[-1], states.device), 0
    if norm_cache is not None and norm in norm_cache:
        settings = norm_cache[norm]
        if settings[0].device == states.device:
            return settings
    epsilons = [getattr(norm, name, None) for name in ("eps", "variance_epsilon", "epsilon")]
    epsilon = next((value for value in epsilons if isinstance(value, float)), None)
    if epsilon is None:
        raise UnusableError("a norm without an epsilon")
    (bits,) = struct.unpack("i", struct.pack("f", epsilon))
    parameters = _weights(norm) if weights is None else weights
    scale = _as_floats(parameters["weight"])
    bias = _as_floats(parameters["bias"]) if "bias" in parameters else torch.zeros_like(scale)
    if norm_cache is not None:
        norm_cache[norm] = scale, bias, bits
    return scale, bias, bits


@cache
def _no_weights(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a weight and a bias that change nothing."""
    with torch.inference_mode(False):
        return torch.ones(width, device=device), torch.zeros(width, device=device)


def _weights(norm: nn.Module) -> Weights:
    return {name: value for name, value in norm._parameters.items() if value is not None}


def _as_floats(weight: Tensor) -> Tensor:
    """Return a weight as float32, aligned so that kernels can read four numbers at a time."""
    floats = weight.detach().float().contiguous()
    return floats if floats.data_ptr() % 16 == 0 else floats.clone()


def _kind_of(norm: nn.Module | None, states: Tensor) -> Kind | None:
    """Return the kind of norm that a module computes, tested once; None if it is none of these or
    the kernel cannot be used."""
    weights = {} if norm is None else _weights(norm)
    # a module with children is a wrapper, which keeps its weights elsewhere
    if norm is not None and (norm._modules or not _has_plain_weights(weights, states)):
        return None
    kinds = _kinds_of.setdefault(_NO_NORM if norm is None else norm, {})
    key = states.dtype, states.device.index or 0, *(value.dtype for value in weights.values())
    if key not in kinds:
        kinds[key] = _find_kind(norm, states)
    return kinds[key]


def _has_plain_weights(weights: Weights, states: Tensor) -> bool:
    """Return True if a norm has a weight and at most a bias, neither offloaded nor sharded."""
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
    """Compare a norm with the kernels on random states and weights, and return its kind.

    The module's own weights may all be equal, and change while a model trains.
    """
    device = states.device
    width = states.shape[-1]
    generator = torch.Generator().manual_seed(0)
    try:
        sample = torch.randn(3, 19, width, generator=generator) + 0.5
        sample = (sample * torch.tensor([0.1, 30.0, 0.001])[:, None, None]).to(device, states.dtype)
        lengths = torch.tensor([[19], [11], [17]], device=device)
        mask = torch.arange(19, device=device).expand(3, -1) < lengths
        weights = {
            name: (1 + 0.3 * torch.randn(width, generator=generator)).to(value.device, value.dtype)
            for name, value in ({} if norm is None else _weights(norm)).items()
        }
        after = sample if norm is None else functional_call(norm, weights, (sample,))
        if after.dtype != states.dtype:
            return None
        after = torch.where(mask.unsqueeze(-1), after, 0).double()
        expected = after.sum(1)
        # A few elements may be rounded the other way. Sums of rows that are rounded once more often
        # differ by more than that.
        unit = expected.abs().mean(-1) * torch.finfo(states.dtype).eps
        kinds = [kind for kind in _KINDS if (kind == "none") == (norm is None)]
        count = mask.sum(-1, keepdim=True)
        inputs = {kind: _inputs(sample, mask, norm, kind, weights=weights) for kind in kinds}
        errors = {
            kind: _error(count * _means(inputs[kind]).double(), expected, unit) for kind in kinds
        }
        best = min(errors, key=errors.__getitem__)
        centered = _centered(inputs[best])
        error = max(errors[best], _error(centered.total, expected, unit))
        return best if error < _NEAR and _is_centered(centered, sample, mask, after) else None
    except (*FAILURES, AssertionError, KeyError):
        return None


def _error(sums: Tensor, expected: Tensor, unit: Tensor) -> float:
    return float(((sums - expected).abs().mean(-1) / unit).max())


def _is_centered(result: CenteredStates, sample: Tensor, mask: Tensor, after: Tensor) -> bool:
    """Return True if the second kernel's results are right; `after` are the normed states."""
    texts = torch.arange(len(sample), device=sample.device)
    mean = (after.sum(1) - after[texts, result.largest]) / (mask.sum(-1, keepdim=True) - 1)
    centered = torch.where(mask.unsqueeze(-1), after - mean.unsqueeze(1), 0.0)
    before = torch.linalg.vector_norm(sample.double(), dim=-1)
    norms = torch.linalg.vector_norm(after, dim=-1)
    return (
        torch.equal(result.largest, result.before.masked_fill(~mask, -1.0).argmax(-1))
        and torch.allclose(result.before, before, rtol=1e-4)
        and torch.allclose(result.norms, norms, rtol=1e-2)
        and bool((result.centered - centered).abs().mean() < 1e-3 * centered.abs().mean())
    )


# CUDA source. A norm's result is rounded as the model would store it, so that the sums are those of
# the model's values. Sums run over up to sixteen tokens in float32, then in float64. A block works
# on a part of a text, since a few long texts would leave most of the GPU idle.

_COMMON = (
    HALVES
    + WARP_SUM
    + r"""
#define LAYER 0
#define ROUNDED 2  // an RMS norm that rounds the state before the weight is applied; 1 does not
#define NONE 3     // mean 0, scale 1: the unchanged state

// round to the states' type, as the model would store the values
__device__ __forceinline__ void store(float& x, float& y) {
  const unsigned both = paired(x, y, HALF);
  x = low(both, HALF), y = high(both, HALF);
}

// four numbers of a state
__device__ __forceinline__ float4 wide(uint2 x) {
  return make_float4(low(x.x, HALF), high(x.x, HALF), low(x.y, HALF), high(x.y, HALF));
}

// four columns of a state under the norm, as the model would store them
__device__ __forceinline__ float4 normed(uint2 x, float4 weight, float4 bias, float mean,
                                         float scale, int kind) {
  float4 y = wide(x);
  y.x = (y.x - mean) * scale;
  y.y = (y.y - mean) * scale;
  y.z = (y.z - mean) * scale;
  y.w = (y.w - mean) * scale;
  if (kind == ROUNDED) store(y.x, y.y), store(y.z, y.w);
  y.x = y.x * weight.x + bias.x;
  y.y = y.y * weight.y + bias.y;
  y.z = y.z * weight.z + bias.z;
  y.w = y.w * weight.w + bias.w;
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

// a thread's columns of a token's state; zeros beyond the last token
__device__ __forceinline__ void read_token(uint2* held, const u16* at, int token, bool there,
                                           int column) {
#pragma unroll
  for (int f = 0; f < FOURS; ++f) {
    const int k = f * 128 * TEAM + column;
    held[f] = make_uint2(0u, 0u);
    if (there && k < WIDTH) held[f] = *(const uint2*)(at + (size_t)token * WIDTH + k);
  }
}

// Sums of CHUNK tokens of a text, or with `single` the mean of a text. TEAM warps read a token
// once, keep it in registers while they compute its mean and scale, and add its normed values to
// their sums; the next token is loaded meanwhile. With `full`, each token's mean and scale are
// stored, and its norms before and after the norm.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
normed_sums(const u16* states, const unsigned char* mask, const float* weight, const float* bias,
            double* out, float* means, float* scales, double* before, double* after, int epsilon,
            int tokens, int masked, int kind, int full, int single) {
  extern __shared__ __align__(16) float sums[];  // ROWS x WIDTH
  __shared__ float part[THREADS / 32];
  __shared__ int counts[THREADS / 32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, team = warp / TEAM;
  const int member = warp % TEAM;
  const int chunks = (tokens + CHUNK - 1) / CHUNK;
  const int text = blockIdx.x / chunks;
  const int begin = blockIdx.x % chunks * CHUNK;
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
    if (!full && TEAM == 1 && !counts_here) continue;  // this case has no barriers
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
      // around the mean, since the difference of two large sums would lose its digits
      for (int f = 0; f < FOURS; ++f) {
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
// CHUNK tokens of a text under the norm, minus the mean of all its tokens but the largest
extern "C" __global__ void __launch_bounds__(256)
centered_states(const u16* states, const unsigned char* mask, const float* weight,
                const float* bias, const double* total, const float* means, const float* scales,
                const long long* largest, float* centered, int tokens, int masked, int kind) {
  __shared__ int counted[8];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int chunks = (tokens + CHUNK - 1) / CHUNK;
  const int text = blockIdx.x / chunks;
  const int begin = blockIdx.x % chunks * CHUNK;
  const int end = min(begin + CHUNK, tokens);
  const u16* at = states + (size_t)text * tokens * WIDTH;
  const unsigned char* real = mask + (size_t)text * tokens;
  const float* mean = means + (size_t)text * tokens;
  const float* scale = scales + (size_t)text * tokens;
  int count = 0;
  for (int i = tid; i < tokens; i += 256) count += !masked || real[i];
  count = warp_sum(count);
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
      const float4 far = normed(*(const uint2*)(at + (size_t)sink * WIDTH + k), w, b, mean[sink],
                                scale[sink], kind);
      const double* sum = total + (size_t)text * WIDTH + k;
      const float4 m = make_float4((float)((sum[0] - far.x) / others),
                                   (float)((sum[1] - far.y) / others),
                                   (float)((sum[2] - far.z) / others),
                                       (float)((sum[3] - far.w) / others));
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
