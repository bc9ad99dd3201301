"""CUDA source of a part of `tridiagonal_source.py`: a symmetric matrix times a vector, from its upper triangle alone."""

UPPER = r"""
#if HALF
// groups of rows for a warp, back and forth, because rows of a triangle get shorter
__device__ __forceinline__ int snake(int turn, int warp, int warps) {
  return turn * warps + (turn & 1 ? warps - 1 - warp : warp);
}

// A warp's share of A v from row `top` on, a multiple of 8: eight rows at a time, their products with v and v with their columns
__device__ __forceinline__ void add_upper(const float* M, const float* v, float* own, int top, int n, int ld, int warp, int warps,
                                          int lane) {
  for (int k = top + lane * 4; k < ld; k += 128) *(float4*)(own + k) = make_float4(0.f, 0.f, 0.f, 0.f);
  __syncwarp();
  for (int turn = 0; turn * warps * 8 < n - top; ++turn) {
    const int i = top + 8 * snake(turn, warp, warps);
    if (i >= n) continue;
    float at[8], s[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) at[r] = i + r < n ? v[i + r] : 0.f, s[r] = 0.f;
    for (int start = i; start < ld; start += 128) {
      const int k = start + lane * 4;
      if (k >= ld) continue;
      float4 a[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) a[r] = *(const float4*)(M + (size_t)min(i + r, n - 1) * ld + k);
      const float4 x = *(const float4*)(v + k);
      if (k < i + 8) {  // around the diagonal: what is below it counts as the entry above it does
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const int on = i + r - k;
          a[r].x = on > 0 ? 0.f : a[r].x;
          a[r].y = on > 1 ? 0.f : a[r].y;
          a[r].z = on > 2 ? 0.f : a[r].z;
          a[r].w = on > 3 ? 0.f : a[r].w;
        }
      }
#pragma unroll
      for (int r = 0; r < 8; ++r) s[r] = dot4(a[r], x, s[r]);
      if (k < i + 8) {  // the diagonal itself counts once
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const int on = i + r - k;
          a[r].x = on == 0 ? 0.f : a[r].x;
          a[r].y = on == 1 ? 0.f : a[r].y;
          a[r].z = on == 2 ? 0.f : a[r].z;
          a[r].w = on == 3 ? 0.f : a[r].w;
        }
      }
      float4 sum = *(float4*)(own + k);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        sum.x = fmaf(a[r].x, at[r], sum.x);
        sum.y = fmaf(a[r].y, at[r], sum.y);
        sum.z = fmaf(a[r].z, at[r], sum.z);
        sum.w = fmaf(a[r].w, at[r], sum.w);
      }
      *(float4*)(own + k) = sum;
    }
    // a row each for four lanes
#pragma unroll
    for (int bit = 16, half = 4; bit > 2; bit >>= 1, half >>= 1) {
      const bool upper = lane & bit;
#pragma unroll
      for (int q = 0; q < half; ++q) {
        const float given = upper ? s[q] : s[q + half], kept = upper ? s[q + half] : s[q];
        s[q] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
      }
    }
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 1);
    const int row = i + (lane >> 2);
    __syncwarp();
    if ((lane & 3) == 0 && row < n) own[row] += s[0];
    __syncwarp();
  }
}
#endif
"""
