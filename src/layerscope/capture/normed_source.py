"""CUDA source of the two kernels behind `normed.py`: states under the final norm, summed, or seen from their mean.

A norm's result is rounded as the model would store it, so that what is summed is what the model has. Sums run over sixteen tokens
in float32, then in float64. A block has CHUNK tokens of a text: long texts alone would leave most of the chip idle.
"""

from layerscope.spectra.cuda.pieces import HALVES, WARP_SUM

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
centred_states(const u16* states, const unsigned char* mask, const float* weight, const float* bias, const double* total,
               const float* means, const float* scales, const long long* largest, float* centred, int tokens, int width, int half,
               int masked, int kind) {
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
        *(float4*)(centred + ((size_t)text * tokens + i) * width + k) = y;
      }
    }
  }
}
"""
)
