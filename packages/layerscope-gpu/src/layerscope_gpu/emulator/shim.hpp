// CUDA's language on a CPU, for tests: blocks one after another, each thread of a block a fiber that runs until a barrier.
// What a GPU would make of a mistake is reported: a barrier or shuffle that not all threads reach, memory written outside of
// what was given, misaligned vectors. Shared memory starts as NaN; so does everything beyond its end.
// What is the same for every kernel is in `runtime.cpp`, which is compiled once: a kernel then takes a third of the time.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("cuda_shared")))
#define CUDA_ON_CPU 1
#if defined(__aarch64__)
typedef __fp16 half_t;  // g++ has no _Float16 in C++ on ARM
#else
typedef _Float16 half_t;
#endif

struct dim3 { unsigned x, y, z; };
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

#define VECTOR2(T, name, n) struct alignas(n) name { T x, y; }; static inline name make_##name(T x, T y) { return {x, y}; }
#define VECTOR4(T, name, n) \
  struct alignas(n) name { T x, y, z, w; }; static inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR2(float, float2, 8)
VECTOR4(float, float4, 16)
VECTOR2(int, int2, 8)
VECTOR4(int, int4, 16)
VECTOR2(unsigned, uint2, 8)
VECTOR4(unsigned, uint4, 16)
VECTOR2(unsigned short, ushort2, 4)
VECTOR4(unsigned short, ushort4, 8)
VECTOR4(unsigned char, uchar4, 4)
VECTOR2(double, double2, 16)
struct float3 { float x, y, z; };

namespace cuda_on_cpu {

extern int current;
extern void (*body)(void**);
void complain(const char* format, ...);
void* dynamic();
int barrier(int line, int vote);
// meet the other lanes of the mask, and see what each brought
const uint64_t* meet(unsigned mask, const char* kind, uint64_t given, int line);
// run the body for every thread; what went wrong, or nothing
const char* run(int blocks, int threads, int shared, void** given, int order);

template <class T> uint64_t packed(T x) { uint64_t bits = 0; memcpy(&bits, &x, sizeof x); return bits; }
template <class T> T unpacked(uint64_t bits) { T x; memcpy(&x, &bits, sizeof x); return x; }

template <class T> T shuffle(unsigned mask, T x, int from, int line) {
  const uint64_t* all = meet(mask, "a shuffle", packed(x), line);
  if (from >= 0 && from < 32 && !(mask >> from & 1)) complain("line %d: a shuffle reads lane %d, not in its mask", line, from);
  return unpacked<T>(all[from & 31]);
}
inline int lane_of() { return current % 32; }

template <class... P, size_t... I> void invoke(void (*kernel)(P...), void** v, std::index_sequence<I...>) {
  kernel(*(P*)v[I]...);
}

template <class... P> const char* launch(void (*kernel)(P...), int blocks, int threads, int shared, void** given, int order) {
  static void (*chosen)(P...);
  chosen = kernel;
  body = [](void** v) { invoke(chosen, v, std::index_sequence_for<P...>{}); };
  return run(blocks, threads, shared, given, order);
}

}  // namespace cuda_on_cpu

#define __syncthreads() cuda_on_cpu::barrier(__LINE__, 0)
#define __syncthreads_or(x) (cuda_on_cpu::barrier(__LINE__, !!(x)) > 0)
#define __syncthreads_and(x) (cuda_on_cpu::barrier(__LINE__, !!(x)) == (int)blockDim.x)
#define __syncthreads_count(x) cuda_on_cpu::barrier(__LINE__, !!(x))
#define __syncwarp(...) cuda_on_cpu::warp_barrier(__LINE__ __VA_OPT__(,) __VA_ARGS__)
#define __shfl_sync(m, x, ...) cuda_on_cpu::shfl(__LINE__, m, x, __VA_ARGS__)
#define __shfl_xor_sync(m, x, ...) cuda_on_cpu::shfl_xor(__LINE__, m, x, __VA_ARGS__)
#define __shfl_down_sync(m, x, ...) cuda_on_cpu::shfl_down(__LINE__, m, x, __VA_ARGS__)
#define __shfl_up_sync(m, x, ...) cuda_on_cpu::shfl_up(__LINE__, m, x, __VA_ARGS__)
#define __ballot_sync(m, x) cuda_on_cpu::ballot(__LINE__, m, x)
#define __any_sync(m, x) (cuda_on_cpu::ballot(__LINE__, m, x) != 0)
#define __all_sync(m, x) (cuda_on_cpu::ballot(__LINE__, m, x) == (m))

namespace cuda_on_cpu {
inline void warp_barrier(int line, unsigned mask = 0xffffffffu) { meet(mask, "__syncwarp", 0, line); }
template <class T> T shfl(int line, unsigned mask, T x, int from, int width = 32) {
  return shuffle(mask, x, lane_of() / width * width + from % width, line);
}
template <class T> T shfl_xor(int line, unsigned mask, T x, int by, int width = 32) {
  const int lane = lane_of(), from = lane ^ by;
  return shuffle(mask, x, from / width > lane / width ? lane : from, line);
}
template <class T> T shfl_down(int line, unsigned mask, T x, int by, int width = 32) {
  const int lane = lane_of(), from = lane + by;
  return shuffle(mask, x, from / width != lane / width ? lane : from, line);
}
template <class T> T shfl_up(int line, unsigned mask, T x, int by, int width = 32) {
  const int lane = lane_of(), from = lane - by;
  return shuffle(mask, x, from < lane / width * width ? lane : from, line);
}
inline unsigned ballot(int line, unsigned mask, int x) {
  const uint64_t* all = meet(mask, "a ballot", x != 0, line);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) if (mask >> i & 1 && all[i]) bits |= 1u << i;
  return bits;
}
template <class T, class F> T changed(T* at, F change) { const T old = *at; *at = change(old); return old; }
inline void cvt_f32_f16(float& out, unsigned short bits) {
  const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
  float x = exponent == 0 ? ldexpf((float)fraction, -24) : exponent == 31 ? (fraction ? NAN : INFINITY) : ldexpf(1024.f + fraction, (int)exponent - 25);
  out = bits & 0x8000 ? -x : x;
}
inline void cvt_rn_f16_f32(unsigned short& out, float x) {
  const half_t h = (half_t)x;
  __builtin_memcpy(&out, &h, 2);
}
inline unsigned bf16_of(float x) {
  const unsigned bits = (unsigned)packed(x);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline void cvt_rn_bf16x2_f32(unsigned& out, float high, float low) { out = bf16_of(high) << 16 | bf16_of(low); }
// a GPU's fast functions are right to a unit in the last place or two: so it is here, one up or down
inline float rough(float x) {
  const unsigned bits = (unsigned)packed(x);
  if ((bits >> 23 & 255) - 2 > 250) return x;
  return unpacked<float>(bits + (bits * 2654435761u >> 30) % 3 - 1);
}

inline void cvt_rn_f16x2_f32(unsigned& out, float high, float low) {
  unsigned short a, b;
  cvt_rn_f16_f32(a, low), cvt_rn_f16_f32(b, high);
  out = (unsigned)b << 16 | a;
}

// four pieces of 8 x 8 halves, a row of 16 bytes from each lane: lane 4 r + c gets row r's (or column r's) entries 2 c and 2 c + 1
typedef uint64_t shared_address;
template <bool TURNED> void load_pieces(unsigned& d0, unsigned& d1, unsigned& d2, unsigned& d3, shared_address at) {
  const uint64_t* got = meet(0xffffffffu, "ldmatrix", at, 1000010);
  uint64_t rows[32];
  for (int i = 0; i < 32; ++i) {
    rows[i] = got[i];
    if (rows[i] % 16) complain("ldmatrix: a row that is not aligned to 16 bytes");
  }
  const int r = lane_of() >> 2, c = lane_of() & 3;
  unsigned* const d[4] = {&d0, &d1, &d2, &d3};
  for (int p = 0; p < 4; ++p) {
    unsigned short both[2];
    for (int k = 0; k < 2; ++k) {
      const int row = TURNED ? 2 * c + k : r, column = TURNED ? r : 2 * c + k;
      memcpy(&both[k], (const char*)rows[8 * p + row] + 2 * column, 2);
    }
    *d[p] = (unsigned)both[1] << 16 | both[0];
  }
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, shared_address at) {
  load_pieces<false>(a, b, c, d, at);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, shared_address at) {
  load_pieces<true>(a, b, c, d, at);
}

// tensor cores: 16 x 16 and 16 x 8 halves, sums cut off to float32 once
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,
    unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
  const unsigned given[6] = {a0, a1, a2, a3, b0, b1};
  float all[6][32][2];
  for (int r = 0; r < 6; ++r) {
    const uint64_t* got = meet(0xffffffffu, "mma", given[r], 1000000 + r);
    for (int i = 0; i < 32; ++i)
      for (int k = 0; k < 2; ++k) cvt_f32_f16(all[r][i][k], (unsigned short)((unsigned)got[i] >> 16 * k));
  }
  const int g = lane_of() >> 2, t = lane_of() & 3;
  const float c[4] = {c0, c1, c2, c3};
  float* const d[4] = {&d0, &d1, &d2, &d3};
  for (int e = 0; e < 4; ++e) {
    const int row = g + e / 2 * 8, column = 2 * t + e % 2;
    double sum = c[e];
    for (int k = 0; k < 16; ++k) {
      const int lane = k % 8 / 2, high = k / 8;
      sum += (double)all[row / 8 + 2 * high][row % 8 * 4 + lane][k % 2] * all[4 + high][column * 4 + lane][k % 2];
    }
    float x = (float)sum;
    if (fabs((double)x) > fabs(sum)) x = nextafterf(x, 0.f);
    *d[e] = x;
  }
}

inline void ld_global_L2__256B_v4_f32(float& x, float& y, float& z, float& w, const float* at) {
  const float4 got = *(const float4*)at;
  x = got.x, y = got.y, z = got.z, w = got.w;
}
inline void st_global_v4_f32(float* at, float x, float y, float z, float w) { *(float4*)at = make_float4(x, y, z, w); }
inline void rcp_approx_ftz_f32(float& out, float x) { out = rough(1.f / x); }
inline void rcp_approx_f32(float& out, float x) { out = rough(1.f / x); }
inline void sqrt_approx_ftz_f32(float& out, float x) { out = rough(sqrtf(x)); }
inline void rsqrt_approx_ftz_f32(float& out, float x) { out = rough(1.f / sqrtf(x)); }
}  // namespace cuda_on_cpu

using cuda_on_cpu::shared_address;
inline uint64_t __cvta_generic_to_shared(const void* at) { return (uint64_t)at; }

template <class T, class U> T atomicAdd(T* at, U x) { return cuda_on_cpu::changed(at, [&](T old) { return (T)(old + x); }); }
template <class T, class U> T atomicMax(T* at, U x) { return cuda_on_cpu::changed(at, [&](T old) { return old < (T)x ? (T)x : old; }); }
template <class T, class U> T atomicMin(T* at, U x) { return cuda_on_cpu::changed(at, [&](T old) { return (T)x < old ? (T)x : old; }); }
template <class T, class U> T atomicExch(T* at, U x) { return cuda_on_cpu::changed(at, [&](T) { return (T)x; }); }
template <class T, class U> T atomicCAS(T* at, U a, U b) { return cuda_on_cpu::changed(at, [&](T old) { return old == (T)a ? (T)b : old; }); }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float __fdividef(float a, float b) {
  return fabsf(b) > 8.5e37f && !std::isinf(b) ? (a != a ? a : 0.f) : cuda_on_cpu::rough(a / b);
}
static inline float __frcp_rn(float x) { return 1.f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float rsqrtf(float x) { return cuda_on_cpu::rough(1.f / sqrtf(x)); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
static inline float __frsqrt_rn(float x) { return 1.f / sqrtf(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { volatile float x = a * b; return x; }
static inline float __fadd_rn(float a, float b) { volatile float x = a + b; return x; }
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
static inline float __saturatef(float x) { return x != x ? 0.f : fminf(fmaxf(x, 0.f), 1.f); }
static inline float __uint_as_float(unsigned x) { return cuda_on_cpu::unpacked<float>(x); }
static inline float __int_as_float(int x) { return cuda_on_cpu::unpacked<float>((unsigned)x); }
static inline unsigned __float_as_uint(float x) { return (unsigned)cuda_on_cpu::packed(x); }
static inline int __float_as_int(float x) { return (int)cuda_on_cpu::packed(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return by & 31 ? high << (by & 31) | low >> (32 - (by & 31)) : high;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return by & 31 ? low >> (by & 31) | high << (32 - (by & 31)) : low;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> T __ldg(const T* at) { return *at; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
using std::isfinite;
using std::isinf;
using std::isnan;
