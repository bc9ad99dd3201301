"""CUDA source for `band.py`: one pass over a matrix applies the last panel's reflections and multiplies with the next one's.

A <- A - V Y' - Y V', written back, and X = A Z, where V, Y and Z have 16 columns and are in shared memory. Twice: with plain
arithmetic, a thread having whole columns (`sweep`), and on tensor cores, a warp having 16 rows (`strip`).
"""

# rows of V, Y and Z in shared memory; sums over warps; products with small matrices
SMALL_PARTS = r"""
// 16 numbers of row i in shared memory, four at a time; permuted so that threads with neighboring rows meet in no bank
__device__ __forceinline__ float4* four(float* rows, int i, int q) {
  return (float4*)(rows + i * B + 4 * (q ^ ((i >> 1 ^ i >> 3) & 3)));
}
__device__ __forceinline__ float* single(float* rows, int i, int r) { return (float*)four(rows, i, r >> 2) + (r & 3); }
__device__ __forceinline__ void get(float* rows, int i, float (&x)[B]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 a = *four(rows, i, q);
    x[4 * q] = a.x, x[4 * q + 1] = a.y, x[4 * q + 2] = a.z, x[4 * q + 3] = a.w;
  }
}
__device__ __forceinline__ void put(float* rows, int i, const float (&x)[B]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) *four(rows, i, q) = make_float4(x[4 * q], x[4 * q + 1], x[4 * q + 2], x[4 * q + 3]);
}

// Sums over a warp of 16 numbers that every lane has: lane l is left with number l / 2
template <int HALF>
__device__ __forceinline__ void halve(float (&d)[B], int lane) {
  const bool upper = lane & 2 * HALF;
#pragma unroll
  for (int q = 0; q < HALF; ++q) {
    const float given = upper ? d[q] : d[q + HALF], kept = upper ? d[q + HALF] : d[q];
    d[q] = kept + __shfl_xor_sync(FULL, given, 2 * HALF);
  }
}
__device__ __forceinline__ float fold(float (&d)[B], int lane) {
  halve<8>(d, lane), halve<4>(d, lane), halve<2>(d, lane), halve<1>(d, lane);
  return d[0] + __shfl_xor_sync(FULL, d[0], 1);
}

// x += the thread's rows, from `first` on, times a B x B matrix
__device__ __forceinline__ void add_product(float* rows, const float* by, int first, int ld, float (&x)[EACH][B]) {
#pragma unroll 1
  for (int q = 0; q < 4; ++q) {
    float4 m[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) m[r][c] = *(const float4*)(by + (4 * q + r) * B + 4 * c);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      if (first + k * THREADS < ld) {
        const float4 z = *four(rows, min(first + (int)threadIdx.x + k * THREADS, ld - 1), q);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[k][4 * c] = dot4(z, make_float4(m[0][c].x, m[1][c].x, m[2][c].x, m[3][c].x), x[k][4 * c]);
          x[k][4 * c + 1] = dot4(z, make_float4(m[0][c].y, m[1][c].y, m[2][c].y, m[3][c].y), x[k][4 * c + 1]);
          x[k][4 * c + 2] = dot4(z, make_float4(m[0][c].z, m[1][c].z, m[2][c].z, m[3][c].z), x[k][4 * c + 2]);
          x[k][4 * c + 3] = dot4(z, make_float4(m[0][c].w, m[1][c].w, m[2][c].w, m[3][c].w), x[k][4 * c + 3]);
        }
      }
    }
  }
}
"""

# In registers: four columns' rows of V and Y and their sums of X, 192 numbers. What a thread meets on its way, a row of V, Y and
# Z, comes from shared memory: four products for each number read. Few warps fit, so rows are read ahead.
PLAIN = r"""
struct __align__(4 * COLUMNS) Entries { float at[COLUMNS]; };

// COLUMNS columns from j on of rows `from`, a multiple of AHEAD, to `to`: subtract V Y' + Y V', then X += A Z
template <bool UPDATE>
__device__ __forceinline__ void sweep(float* M, float* V, float* Y, float* Z, float (&X)[COLUMNS][B], int j, int from, int to,
                                      int ld) {
  float v[COLUMNS][B], y[COLUMNS][B];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    if (UPDATE) get(V, j + c, v[c]), get(Y, j + c, y[c]);
#pragma unroll
    for (int r = 0; r < B; ++r) X[c][r] = 0.f;
  }
  float* at = M + (size_t)from * ld + j;
  const size_t far = (size_t)AHEAD * ld;
  Entries next[AHEAD];  // rows on their way: one after the other would wait for memory
#pragma unroll
  for (int u = 0; u < AHEAD; ++u)
    if (from + u < to) next[u] = *(const Entries*)(at + (size_t)u * ld);
#pragma unroll 1
  for (int start = from; start < to; start += AHEAD) {
    int offset[4];  // as in `four`, for AHEAD rows at once
#pragma unroll
    for (int q = 0; q < 4; ++q) offset[q] = start * B + 4 * (q ^ ((start >> 1 ^ start >> 3) & 3));
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      if (start + u >= to) break;
      float a[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) a[c] = next[u].at[c];
      if (start + u + AHEAD < to) next[u] = *(const Entries*)(at + far);
      if (UPDATE) {
        float one[COLUMNS] = {}, two[COLUMNS] = {};  // small: added up before the entry itself is rounded
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int o = offset[q ^ u >> 1 & 3] + u * B;
          const float4 vi = *(const float4*)(V + o), yi = *(const float4*)(Y + o);
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) {
            one[c] = fmaf(vi.x, y[c][4 * q], one[c]);
            two[c] = fmaf(yi.x, v[c][4 * q], two[c]);
            one[c] = fmaf(vi.y, y[c][4 * q + 1], one[c]);
            two[c] = fmaf(yi.y, v[c][4 * q + 1], two[c]);
            one[c] = fmaf(vi.z, y[c][4 * q + 2], one[c]);
            two[c] = fmaf(yi.z, v[c][4 * q + 2], two[c]);
            one[c] = fmaf(vi.w, y[c][4 * q + 3], one[c]);
            two[c] = fmaf(yi.w, v[c][4 * q + 3], two[c]);
          }
        }
        Entries changed;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) changed.at[c] = a[c] -= one[c] + two[c];
        *(Entries*)at = changed;
      }
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float4 z = *(const float4*)(Z + offset[q ^ u >> 1 & 3] + u * B);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          X[c][4 * q] = fmaf(a[c], z.x, X[c][4 * q]);
          X[c][4 * q + 1] = fmaf(a[c], z.y, X[c][4 * q + 1]);
          X[c][4 * q + 2] = fmaf(a[c], z.z, X[c][4 * q + 2]);
          X[c][4 * q + 3] = fmaf(a[c], z.w, X[c][4 * q + 3]);
        }
      }
      at += ld;
    }
  }
}
"""

# Tensor cores are faster, but take numbers of 11 digits (TF32): each number is the sum of two of those.
ON_TENSOR_CORES = r"""
// Products on tensor cores, which take 11 digits (TF32): a number is the sum of two of those, and the product of the small ones
// is left out. They cut off what they add up, so chains are short and the large products come last.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  float d0, d1, d2, d3;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  c[0] = d0, c[1] = d1, c[2] = d2, c[3] = d3;
}

// Rows i to i + 15, by a warp: subtract V Y' + Y V', then X = A Z
template <bool UPDATE>
__device__ __forceinline__ void strip(float* M, float* V, float* Y, float* Z, float* X, int i, int first, int n, int ld) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  unsigned high[4][4], low[4][4];  // 16 rows of V and Y; a thread's numbers are neighbors in memory: any order of a sum will do
  if (UPDATE) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const float4 a = *four(k ? Y : V, min(i + g, ld - 1), t), b = *four(k ? Y : V, min(i + g + 8, ld - 1), t);
      split(a.x, high[k][0], low[k][0]), split(b.x, high[k][1], low[k][1]);
      split(a.y, high[k][2], low[k][2]), split(b.y, high[k][3], low[k][3]);
      split(a.z, high[k + 1][0], low[k + 1][0]), split(b.z, high[k + 1][1], low[k + 1][1]);
      split(a.w, high[k + 1][2], low[k + 1][2]), split(b.w, high[k + 1][3], low[k + 1][3]);
    }
  }
  float sum[2][4] = {};
  const bool here[2] = {i + g < n, i + g + 8 < n};
  float* at[2] = {M + (size_t)(i + g) * ld + 4 * t, M + (size_t)(i + g + 8) * ld + 4 * t};
  const float4 none = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 next[AHEAD][2];
#pragma unroll
  for (int u = 0; u < AHEAD; ++u)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int j = first + u * 16;
      next[u][h] = here[h] && j + 4 * t < ld ? *(const float4*)(at[h] + j) : none;
    }
#pragma unroll 1
  for (int start = first; start < ld; start += 16 * AHEAD) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int j = start + u * 16;
      if (j >= ld) break;
      float a[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[h][0] = next[u][h].x, a[h][1] = next[u][h].y, a[h][2] = next[u][h].z, a[h][3] = next[u][h].w;
        next[u][h] = here[h] && j + 16 * AHEAD + 4 * t < ld ? *(const float4*)(at[h] + j + 16 * AHEAD) : none;
      }
      if (UPDATE) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = min(j + 4 * (g >> 1) + (g & 1) + 2 * e, ld - 1);
          const float4 y = *four(Y, row, t), v = *four(V, row, t);
          const float b[8] = {y.x, y.y, y.z, y.w, v.x, v.y, v.z, v.w};
          unsigned bh[8], bl[8];
#pragma unroll
          for (int k = 0; k < 8; ++k) split(b[k], bh[k], bl[k]);
          float one[4] = {}, two[4] = {};
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            mma(one, low[k], bh[2 * k], bh[2 * k + 1]), mma(two, low[k + 2], bh[2 * k + 4], bh[2 * k + 5]);
            mma(one, high[k], bl[2 * k], bl[2 * k + 1]), mma(two, high[k + 2], bl[2 * k + 4], bl[2 * k + 5]);
          }
#pragma unroll
          for (int k = 0; k < 2; ++k)
            mma(one, high[k], bh[2 * k], bh[2 * k + 1]), mma(two, high[k + 2], bh[2 * k + 4], bh[2 * k + 5]);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            a[h][2 * e] -= one[2 * h] + two[2 * h];
            a[h][2 * e + 1] -= one[2 * h + 1] + two[2 * h + 1];
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool inside = here[h] && j + 4 * t < ld;
          if (inside) *(float4*)(at[h] + j) = make_float4(a[h][0], a[h][1], a[h][2], a[h][3]);
#pragma unroll
          for (int c = 0; c < 4; ++c) a[h][c] = inside ? a[h][c] : 0.f;
        }
      }
      float more[2][4] = {};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        unsigned zh[4], zl[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) split(*single(Z, min(j + 4 * t + 2 * e + (k >> 1), ld - 1), g + (k & 1) * 8), zh[k], zl[k]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          unsigned h0, l0, h1, l1;
          split(a[h][2 * e], h0, l0), split(a[h][2 * e + 1], h1, l1);
          mma(more[h], zl, h0, h1), mma(more[h], zh, l0, l1), mma(more[h], zh, h0, h1);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[h][k] += more[h][k];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = i + 8 * h + 2 * t + (k & 1);
      if (row < ld) X[(row - first) * B + g + (k >> 1) * 8] = sum[h][k];
    }
}
"""
