"""The emulator runs what is right, and finds the mistakes that a GPU would punish."""

from __future__ import annotations

import pytest
import torch

from layerscope_gpu.emulator import KernelError, launch, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SUMS = r"""
__device__ __forceinline__ float doubled(float x) { return 2.f * x; }
extern "C" __global__ void __launch_bounds__(64, 2) sums(const float* given, float* out, int n) {
  extern __shared__ __align__(16) float held[];
  __shared__ float part[2];
  const int tid = threadIdx.x, lane = tid & 31;
  for (int i = tid; i < n; i += blockDim.x) held[i] = doubled(given[blockIdx.x * n + i]);
  __syncthreads();
  float s = 0.f;
  for (int i = tid; i < n; i += blockDim.x) s += held[n - 1 - i];
  for (int by = 16; by > 0; by >>= 1) s += __shfl_xor_sync(0xffffffffu, s, by);
  if (lane == 0) part[tid >> 5] = s;
  __syncthreads();
  if (tid == 0) out[blockIdx.x] = part[0] + part[1];
}
"""


def run(source: str, shared: int, n: int = 100) -> torch.Tensor:
    # seeded: a byte of a random number that is 255, as shared memory is at first, would not be
    # found
    given, out = torch.randn(3, n, generator=torch.Generator().manual_seed(0)), torch.zeros(3)
    launch(source, "sums", 3, 64, shared, [given, out, n])
    torch.testing.assert_close(out, 2 * given.sum(-1))
    return out


def test_a_correct_kernel():
    run(SUMS, 400)
    run(SUMS, 4 * 31, 31)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            (
                "if (lane == 0) part[tid >> 5] = s;\n  __syncthreads();",
                "if (lane == 0) part[tid >> 5] = s;",
            ),
            "a barrier is missing",
        ),
        (
            ("if (tid == 0) out[", "if (tid == 0) __syncthreads();\n  if (tid == 0) out["),
            "deadlock: 1 of 64 threads",
        ),
        (
            ("if (lane == 0) part", "if (tid == 7) return;\n  if (lane == 0) part"),
            "the others have ended",
        ),
        (("for (int by = 16", "if (lane < 16) for (int by = 16"), "not all its lanes reach"),
        (
            ("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0x0000ffffu"),
            "not in its mask|leaves out",
        ),
        (("part[tid >> 5] = s", "part[tid >> 4] = s"), "index 2 is outside of its array"),
        (
            ("held[i] = doubled", "held[i + 1] = doubled"),
            "shared memory written outside of the 400 bytes asked for, at byte 400",
        ),
        (
            ("out[blockIdx.x] =", "out[blockIdx.x + 1] ="),
            "memory written after a tensor of 12 bytes",
        ),
        (("float s = 0.f;", "float s = 0.f * ((float4*)(held + 1))->x;"), "misaligned address"),
        (("float s = 0.f;", "float s = nothing;"), "does not compile"),
    ],
)
def test_mistakes_are_found(change, message):
    assert change[0] in SUMS
    with pytest.raises(KernelError, match=message):
        run(SUMS.replace(*change), 400)


def test_what_is_not_set_is_not_a_number():
    source = SUMS.replace("held[i] = doubled", "if (i) held[i] = doubled")
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        run(source, 400)


def test_tensors_that_overlap_stay_one_piece_of_memory():
    both = torch.arange(8.0)
    source = 'extern "C" __global__ void shifted(const float* a, float* b, int by) { b[threadIdx.x] = a[threadIdx.x] + by; }'
    launch(source, "shifted", 1, 4, 0, [both[:4], both[4:], 10])
    assert both.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    launch(source, "shifted", 1, 8, 0, [both, both, 1])
    assert both.tolist() == [1, 2, 3, 4, 11, 12, 13, 14]


@pytest.mark.parametrize(("blocks", "threads"), [(1, 0), (1, 1025), (0, 32)])
def test_launches_that_a_gpu_refuses(blocks, threads):
    with pytest.raises(KernelError, match="a GPU"):
        launch(SUMS, "sums", blocks, threads, 0, [torch.zeros(1), torch.zeros(1), 1])


MMA = r"""
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* d) {
  __shared__ __align__(16) unsigned rows[16 * 8], columns[16 * 4];
  for (int i = threadIdx.x; i < 128; i += 32) rows[i] = a[i];
  for (int i = threadIdx.x; i < 64; i += 32) columns[i] = b[i];
  __syncthreads();
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const shared_address at = __cvta_generic_to_shared(rows + (lane % 16) * 8 + lane / 16 * 4);
  const shared_address from = __cvta_generic_to_shared(columns + lane % 16 * 4);
  unsigned a0, a1, a2, a3, b0, b1, b2, b3;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3) : "r"(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(b0), "=r"(b1), "=r"(b2), "=r"(b3) : "r"(from));
  float d0, d1, d2, d3, one = 1.f;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(one), "f"(one), "f"(one), "f"(one));
  d[g * 8 + 2 * t] = d0, d[g * 8 + 2 * t + 1] = d1, d[(g + 8) * 8 + 2 * t] = d2, d[(g + 8) * 8 + 2 * t + 1] = d3;
}
"""


def test_products_on_tensor_cores():
    """Small integers are exact; a sum of larger numbers is cut off to float32."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.randint(-9, 10, shape, generator=generator).half() for shape in ((16, 16), (16, 8))
    )
    out = torch.zeros(16, 8)
    launch(MMA, "product", 1, 32, 0, [a.view(torch.int32), b.view(torch.int32), out])
    assert torch.equal(out, a.float() @ b.float() + 1)
    first = torch.zeros(16, 16).half()
    first[:, 0] = 2**-12
    second = torch.full((16, 8), 3 * 2**-12).half()
    launch(MMA, "product", 1, 32, 0, [first.view(torch.int32), second.view(torch.int32), out])
    assert (out == 1 + 2**-23).all()  # 1 + 3 / 2^24 is cut off, not rounded to 1 + 2^-22
