"""Pieces of CUDA source that several kernels begin with."""

# sums over the 32 threads of a warp, in each of them
WARP_SUM = r"""
template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
  for (int s = 16; s > 0; s >>= 1) x += __shfl_xor_sync(0xffffffffu, x, s);
  return x;
}
"""

# half-precision numbers as their bits: `half` says float16, otherwise they are bfloat16
HALVES = r"""
typedef unsigned short u16;

__device__ __forceinline__ float widened(u16 x, int half) {
  if (!half) return __uint_as_float(((unsigned int)x) << 16);  // bfloat16: the upper half of a float
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

__device__ __forceinline__ u16 narrowed(float x) {  // float16
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
"""
