"""The emulator runs what is right, and finds the mistakes that a GPU would punish."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_on_cpu import KernelError, launch, missing

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
    given, out = torch.randn(3, n), torch.zeros(3)
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
            ("if (lane == 0) part[tid >> 5] = s;\n  __syncthreads();", "if (lane == 0) part[tid >> 5] = s;"),
            "a barrier is missing",
        ),
        (("if (tid == 0) out[", "if (tid == 0) __syncthreads();\n  if (tid == 0) out["), "deadlock: 1 of 64 threads"),
        (("if (lane == 0) part", "if (tid == 7) return;\n  if (lane == 0) part"), "the others have ended"),
        (("for (int by = 16", "if (lane < 16) for (int by = 16"), "not all its lanes reach"),
        (("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0x0000ffffu"), "not in its mask|leaves out"),
        (("part[tid >> 5] = s", "part[tid >> 4] = s"), "index 2 is outside of its array"),
        (("held[i] = doubled", "held[i + 1] = doubled"), "shared memory written outside of the 400 bytes asked for, at byte 400"),
        (("out[blockIdx.x] =", "out[blockIdx.x + 1] ="), "memory written after a tensor of 12 bytes"),
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
