"""CUDA source for `band.py`: one pass over a matrix applies the last panel's reflections and
multiplies by the next one's.

A <- A - V Y' - Y V', written back, and X = A Z, where V, Y and Z have 16 columns and are in shared
memory. A warp has 16 rows. Tensor cores multiply float16 numbers, of 11 binary digits, so each
number is the sum of two of them. V, Y and Z are split once, before the pass.
"""

# reading and writing rows of V, Y and Z in shared memory; sums over warps
SMALL_PARTS = r"""
// 16 numbers of row i in shared memory, four at a time, permuted to avoid bank conflicts between
// threads with neighboring rows
__device__ __forceinline__ float4* four(float* rows, int i, int q) {
  return (float4*)(rows + i * B + 4 * (q ^ ((i >> 1 ^ i >> 3) & 3)));
}
__device__ __forceinline__ void get(float* rows, int i, float (&x)[B]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 a = *four(rows, i, q);
    x[4 * q] = a.x, x[4 * q + 1] = a.y, x[4 * q + 2] = a.z, x[4 * q + 3] = a.w;
  }
}
__device__ __forceinline__ void put(float* rows, int i, const float (&x)[B]) {
#pragma unroll
  for (int q = 0; q < 4; ++q)
    *four(rows, i, q) = make_float4(x[4 * q], x[4 * q + 1], x[4 * q + 2], x[4 * q + 3]);
}

// Sums over a warp of 16 numbers of every lane: lane l gets the sum of number l / 2
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
"""

STRIP = r"""
// A row of 16 numbers in shared memory as float16: the first 11 binary digits of 8 numbers, those
// of the other 8, then the next 11 digits in the same order. All are multiplied by a power of two,
// so that the second ones are not too small for their format.
#define UP 256.f
#ifndef CUDA_ON_CPU
typedef unsigned shared_address;
#endif
__device__ __forceinline__ void split(float x, float y, unsigned& first, unsigned& second) {
  float a, b;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(first) : "f"(y), "f"(x));
  const unsigned short low = first & 0xffffu, high = first >> 16;
  asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(low));
  asm("cvt.f32.f16 %0, %1;" : "=f"(b) : "h"(high));
  const float over = x - a, above = y - b;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(second) : "f"(above), "f"(over));
}
__device__ __forceinline__ float whole(unsigned first, unsigned second, int upper) {
  float a, b;
  const unsigned short one = first >> 16 * upper & 0xffffu, two = second >> 16 * upper & 0xffffu;
  asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(one));
  asm("cvt.f32.f16 %0, %1;" : "=f"(b) : "h"(two));
  return a + b;
}
__device__ __forceinline__ void put_split(float* rows, int i, const float (&x)[B], float by) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    uint4 a, b;
    const float* from = x + 8 * q;
    split(from[0] * by, from[1] * by, a.x, b.x), split(from[2] * by, from[3] * by, a.y, b.y);
    split(from[4] * by, from[5] * by, a.z, b.z), split(from[6] * by, from[7] * by, a.w, b.w);
    *(uint4*)four(rows, i, q) = a, *(uint4*)four(rows, i, q + 2) = b;
  }
}
// columns 4 q to 4 q + 3 of a split row, still times the power of two
__device__ __forceinline__ float4 quarter(float* rows, int i, int q) {
  const uint2 a = *((uint2*)four(rows, i, q >> 1) + (q & 1));
  const uint2 b = *((uint2*)four(rows, i, (q >> 1) + 2) + (q & 1));
  return make_float4(whole(a.x, b.x, 0), whole(a.x, b.x, 1), whole(a.y, b.y, 0),
                     whole(a.y, b.y, 1));
}

// x += the thread's rows, from `first` on, times a B x B matrix; SPLIT: the rows are split
template <bool SPLIT>
__device__ __forceinline__ void add_product(float* rows, const float* by, int first, int ld,
                                            float (&x)[EACH][B]) {
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
        const int i = min(first + (int)threadIdx.x + k * THREADS, ld - 1);
        const float4 z = SPLIT ? quarter(rows, i, q) : *four(rows, i, q);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[k][4 * c] = dot4(z, make_float4(m[0][c].x, m[1][c].x, m[2][c].x, m[3][c].x),
                             x[k][4 * c]);
          x[k][4 * c + 1] = dot4(z, make_float4(m[0][c].y, m[1][c].y, m[2][c].y, m[3][c].y),
                                 x[k][4 * c + 1]);
          x[k][4 * c + 2] = dot4(z, make_float4(m[0][c].z, m[1][c].z, m[2][c].z, m[3][c].z),
                                 x[k][4 * c + 2]);
          x[k][4 * c + 3] = dot4(z, make_float4(m[0][c].w, m[1][c].w, m[2][c].w, m[3][c].w),
                                 x[k][4 * c + 3]);
        }
      }
    }
  }
}

// four 8 x 8 blocks of shared memory, 16 bytes a row, the rows of block p from lanes 8 p to 8 p +
// 7; or their columns
__device__ __forceinline__ void pieces(unsigned (&x)[4], shared_address at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
}
__device__ __forceinline__ void turned_pieces(unsigned (&x)[4], shared_address at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
}
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  float d0, d1, d2, d3;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  c[0] = d0, c[1] = d1, c[2] = d2, c[3] = d3;
}
// c += (a + a2) (b + b2) without a2 b2; b2 is (c0, c1). Sums are truncated: the largest comes last.
__device__ __forceinline__ void mma_split(float (&c)[4], const unsigned (&a)[4],
                                          const unsigned (&a2)[4], unsigned b0, unsigned b1,
                                          unsigned c0, unsigned c1) {
  mma(c, a2, b0, b1), mma(c, a, c0, c1), mma(c, a, b0, b1);
}

// the offset in bytes at which `four` stores quarter q of a row below 16; in rows 16 to 31 of every
// 32 it differs by 32
__device__ __forceinline__ int place(int row, int q) {
  return row * 4 * B + 16 * (q ^ ((row >> 1 ^ row >> 3) & 3));
}

// Load four numbers, and the other 60 of their 256 bytes into the L2 cache: a row's next columns
// are read soon, and reading 64 bytes at a time is slow. A plain assignment would become four
// stores.
__device__ __forceinline__ float4 load4(const float* from) {
  float4 x;
  asm volatile("ld.global.L2::256B.v4.f32 {%0,%1,%2,%3}, [%4];"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store4(float* to, const float (&x)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};"
      :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}

// A lane's share of V and Y: its rows of a tile's 16, and in pairs its columns, which are neighbors
// in memory
struct Tile {
  shared_address V, Y;
  unsigned v[4], v2[4], y[4], y2[4];  // rows i to i + 15
  int of[2];
  __device__ __forceinline__ Tile(float* rowsV, float* rowsY, int i) {
    const int piece = threadIdx.x >> 3 & 3, r = threadIdx.x & 7, row = (piece & 1) * 8 + r;
    const int down = 4 * (r >> 1) + (r & 1);
    V = (shared_address)__cvta_generic_to_shared(rowsV);
    Y = (shared_address)__cvta_generic_to_shared(rowsY);
    const int from = i * 4 * B, flip = (i & 16) * 2;
    const int own = place(row, piece >> 1) ^ flip, own2 = place(row, (piece >> 1) + 2) ^ flip;
    pieces(v, V + from + own);
    pieces(v2, V + from + own2);
    pieces(y, Y + from + own);
    pieces(y2, Y + from + own2);
    of[0] = place(down, piece), of[1] = place(down + 2, piece);
  }
  // a -= V Y' + Y V' at columns j to j + 15
  __device__ __forceinline__ void update(float (&a)[2][4], int j) const {
    const int from = j * 4 * B, flip = (j & 16) * 2;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      unsigned b[4], c[4];
      pieces(b, Y + from + (of[e] ^ flip)), pieces(c, V + from + (of[e] ^ flip));
      float one[4] = {}, two[4] = {};
      mma_split(one, v, v2, b[0], b[1], b[2], b[3]), mma_split(two, y, y2, c[0], c[1], c[2], c[3]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[h][2 * e] = fmaf(-1 / UP, one[2 * h] + two[2 * h], a[h][2 * e]);
        a[h][2 * e + 1] = fmaf(-1 / UP, one[2 * h + 1] + two[2 * h + 1], a[h][2 * e + 1]);
      }
    }
  }
};

// Write rows i to i + 15, columns s to s + 15 of a panel to Z, after their update; A is `by` times
// the matrix in memory
template <bool UPDATE>
__device__ __forceinline__ void panel_rows(const float* M, float* V, float* Y, float* Z, float by,
                                           int i, int s, int n, int ld) {
  const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
  float a[2][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (i + g + 8 * h < n && s + 4 * t < ld) {
      const float4 x = load4(M + (size_t)(i + g + 8 * h) * ld + s + 4 * t);
      a[h][0] = by * x.x, a[h][1] = by * x.y, a[h][2] = by * x.z, a[h][3] = by * x.w;
    }
  if (UPDATE) Tile(V, Y, i).update(a, s);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    *four(Z, i + g + 8 * h, t) = make_float4(a[h][0], a[h][1], a[h][2], a[h][3]);
}

// A warp's work on rows i to i + 15: subtract V Y' + Y V', then X = A Z; A is `by` times the matrix
// in memory if SCALE
template <bool UPDATE, bool SCALE>
__device__ __forceinline__ void strip(float* M, float* V, float* Y, float* Z, float* X, float by,
                                      int i, int first, int n, int ld) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, piece = lane >> 3, r = lane & 7;
  const int down = 4 * (r >> 1) + (r & 1) + 2 * (piece >> 1);
  const int ofZ = place(down, piece & 1);
  const int ofZ2 = place(down, (piece & 1) + 2);
  const shared_address atZ = (shared_address)__cvta_generic_to_shared(Z);
  const Tile tile(V, Y, i);
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
      next[u][h] = here[h] && j + 4 * t < ld ? load4(at[h] + j) : none;
    }
#pragma unroll 1
  for (int start = first; start < ld; start += 16 * AHEAD) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int j = start + u * 16, from = j * 4 * B, flip = (j & 16) * 2, later = j + 16 * AHEAD;
      if (j >= ld) break;
      float a[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[h][0] = next[u][h].x;
        a[h][1] = next[u][h].y;
        a[h][2] = next[u][h].z;
        a[h][3] = next[u][h].w;
        next[u][h] = here[h] && later + 4 * t < ld ? load4(at[h] + later) : none;
        if (SCALE) a[h][0] *= by, a[h][1] *= by, a[h][2] *= by, a[h][3] *= by;
      }
      if (UPDATE) {
        tile.update(a, j);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool inside = here[h] && j + 4 * t < ld;
          if (inside) store4(at[h] + j, a[h]);
#pragma unroll
          for (int c = 0; c < 4; ++c) a[h][c] = inside ? a[h][c] : 0.f;
        }
      }
      unsigned z[4], z2[4];
      turned_pieces(z, atZ + from + (ofZ ^ flip)), turned_pieces(z2, atZ + from + (ofZ2 ^ flip));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        unsigned b[2], c[2];
        float part[4] = {};
        split(a[h][0], a[h][1], b[0], c[0]), split(a[h][2], a[h][3], b[1], c[1]);
        mma_split(part, z, z2, b[0], b[1], c[0], c[1]);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[h][k] += part[k];
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = i + 8 * h + 2 * t + (k & 1);
      if (row < ld) X[(row - first) * B + g + (k >> 1) * 8] = sum[h][k] / UP;
    }
}
"""
