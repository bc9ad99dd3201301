"""The CUDA source of `kernels.py`: passes over float16 matrices (B, m, m), m a multiple of 8, eight entries at a time."""

from __future__ import annotations

from layerscope.spectra.cuda.pieces import HALVES

SUMS_THREADS = 256
SUMS_BLOCKS = 4  # per matrix
EACH = 8  # groups of eight entries a thread, where entries are only rewritten

SOURCE = (
    HALVES
    + r"""
__device__ __forceinline__ void unpack(uint4 p, float* v) {
  const unsigned int words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    v[2 * k] = widened((u16)(words[k] & 0xffffu), 1);
    v[2 * k + 1] = widened((u16)(words[k] >> 16), 1);
  }
}

__device__ __forceinline__ uint4 packed(const float* v) {
  unsigned int words[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) words[k] = (unsigned int)narrowed(v[2 * k]) | ((unsigned int)narrowed(v[2 * k + 1]) << 16);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// float32 matrices (n, n) times a number each, as float16 (m, m) with zeros around them
extern "C" __global__ void narrow(const float* given, const float* by, u16* out, int n, int m) {
  const int wide = m / 8, all = m * wide, parts = (all + blockDim.x * 8 - 1) / (blockDim.x * 8);
  const int which = blockIdx.x / parts, start = blockIdx.x % parts * blockDim.x * 8 + threadIdx.x;
  const float scale = by[which];
  given += (size_t)which * n * n;
  out += (size_t)which * m * m;
#pragma unroll 4
  for (int k = 0; k < 8; ++k) {
    const int at = start + k * blockDim.x;
    if (at < all) {
      float v[8];
      if (n == m) {
        const float4 a = *(const float4*)(given + (size_t)at * 8), b = *(const float4*)(given + (size_t)at * 8 + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
      } else {
        const int i = at / wide, j = at % wide * 8;
        for (int c = 0; c < 8; ++c) v[c] = i < n && j + c < n ? given[(size_t)i * n + j + c] : 0.f;
      }
      for (int c = 0; c < 8; ++c) v[c] *= scale;
      *(uint4*)(out + (size_t)at * 8) = packed(v);
    }
  }
}

// first *= by; second = second * square + first, which goes to third as well
extern "C" __global__ void rescale(u16* first, u16* second, u16* third, const float* by, const float* square, int m) {
  const int all = m * (m / 8), parts = (all + blockDim.x * 8 - 1) / (blockDim.x * 8);
  const int which = blockIdx.x / parts, start = blockIdx.x % parts * blockDim.x * 8 + threadIdx.x;
  const float one = by[which], two = square[which];
  const size_t from = (size_t)which * m * m;
#pragma unroll 4
  for (int k = 0; k < 8; ++k) {
    const int at = start + k * blockDim.x;
    if (at < all) {
      const size_t place = from + (size_t)at * 8;
      float x[8], y[8];
      unpack(*(const uint4*)(first + place), x);
      unpack(*(const uint4*)(second + place), y);
      for (int c = 0; c < 8; ++c) {
        x[c] = widened(narrowed(x[c] * one), 1);
        y[c] = y[c] * two + x[c];
      }
      const uint4 sum = packed(y);
      *(uint4*)(first + place) = packed(x);
      *(uint4*)(second + place) = sum;
      *(uint4*)(third + place) = sum;
    }
  }
}

// sums of x_a x_b over the entries of symmetric matrices, for all pairs a <= b of COUNT arrays (B, m, m) that lie one after
// the other. Strips of eight rows are read from the diagonal on: what is right of its 8 x 8 square counts twice.
template <int COUNT>
__device__ __forceinline__ void sums(const u16* arrays, float* out, int many, int m, int parts) {
  const int PAIRS = COUNT * (COUNT + 1) / 2;
  __shared__ float held[8][COUNT * (COUNT + 1) / 2];
  const int which = blockIdx.x / parts, part = blockIdx.x % parts, strips = m / 8;
  const size_t apart = (size_t)many * m * m;
  arrays += (size_t)which * m * m;
  float total[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) total[p] = 0.f;
  for (int strip = part; strip < strips; strip += parts) {
    const int wide = strips - strip;
    for (int at = threadIdx.x; at < 8 * wide; at += blockDim.x) {
      const int row = at / wide, right = at - row * wide;
      const u16* place = arrays + (size_t)(strip * 8 + row) * m + (strip + right) * 8;
      const float weight = right == 0 ? 1.f : 2.f;
      uint4 loaded[COUNT];
#pragma unroll
      for (int a = 0; a < COUNT; ++a) loaded[a] = *(const uint4*)(place + a * apart);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          float x[COUNT];
#pragma unroll
          for (int a = 0; a < COUNT; ++a) {
            const unsigned int w = word == 0 ? loaded[a].x : word == 1 ? loaded[a].y : word == 2 ? loaded[a].z : loaded[a].w;
            x[a] = widened((u16)(upper ? w >> 16 : w & 0xffffu), 1);
          }
          int p = 0;
#pragma unroll
          for (int a = 0; a < COUNT; ++a) {
            const float twice = weight * x[a];
#pragma unroll
            for (int b = a; b < COUNT; ++b) total[p++] += twice * x[b];
          }
        }
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    for (int away = 16; away > 0; away /= 2) total[p] += __shfl_xor_sync(0xffffffffu, total[p], away);
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32][p] = total[p];
  }
  __syncthreads();
  if (threadIdx.x < PAIRS) {
    float sum = 0.f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += held[warp][threadIdx.x];
    out[(size_t)blockIdx.x * PAIRS + threadIdx.x] = sum;
  }
}

extern "C" __global__ void sums_of_1(const u16* arrays, float* out, int many, int m, int parts) {
  sums<1>(arrays, out, many, m, parts);
}

extern "C" __global__ void sums_of_6(const u16* arrays, float* out, int many, int m, int parts) {
  sums<6>(arrays, out, many, m, parts);
}
"""
)
