"""Mamba's selective scan for training on a GPU: one thread per sequence and channel, forward and
backward.

transformers' own path without extra kernels is a Python loop over tokens. This replaces the mixers'
forward while training; the weights are transformers' own, and `checked` compares both before the
first step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOURCE = r"""
extern "C" __global__ void scan_forward(const float* x, const float* dt, const float* A, const float* B, const float* C,
                                        float* h, float* y, int batch, int length, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * width) return;
  int b = i / width, d = i % width;
  float a[STATES], s[STATES];
  #pragma unroll
  for (int n = 0; n < STATES; n++) { a[n] = A[d * STATES + n]; s[n] = 0.0f; }
  for (int t = 0; t < length; t++) {
    long long row = (long long)b * length + t;
    float u = dt[row * width + d], v = u * x[row * width + d], out = 0.0f;
    #pragma unroll
    for (int n = 0; n < STATES; n++) {
      s[n] = expf(u * a[n]) * s[n] + v * B[row * STATES + n];
      h[(row * STATES + n) * width + d] = s[n];
      out += s[n] * C[row * STATES + n];
    }
    y[row * width + d] = out;
  }
}

extern "C" __global__ void scan_backward(const float* x, const float* dt, const float* A, const float* B, const float* C,
                                         const float* h, const float* dy, float* dx, float* ddt, float* dA, float* g,
                                         int batch, int length, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * width) return;
  int b = i / width, d = i % width;
  float a[STATES], s[STATES], da[STATES];
  #pragma unroll
  for (int n = 0; n < STATES; n++) { a[n] = A[d * STATES + n]; s[n] = 0.0f; da[n] = 0.0f; }
  for (int t = length - 1; t >= 0; t--) {
    long long row = (long long)b * length + t;
    float u = dt[row * width + d], v = x[row * width + d], out = dy[row * width + d], by_dt = 0.0f, by_x = 0.0f;
    #pragma unroll
    for (int n = 0; n < STATES; n++) {
      s[n] += out * C[row * STATES + n];
      g[(row * STATES + n) * width + d] = s[n];
      float e = expf(u * a[n]);
      float before = t > 0 ? h[((row - 1) * STATES + n) * width + d] : 0.0f;
      float into = B[row * STATES + n];
      by_dt += s[n] * (a[n] * e * before + v * into);
      by_x += s[n] * u * into;
      da[n] += s[n] * u * e * before;
      s[n] *= e;
    }
    dx[row * width + d] = by_x;
    ddt[row * width + d] = by_dt;
  }
  #pragma unroll
  for (int n = 0; n < STATES; n++) dA[((long long)b * STATES + n) * width + d] = da[n];
}
"""
THREADS = 64


def source(states: int) -> str:
    """The kernels for a number of states per channel."""
    return f"#define STATES {states}\n{SOURCE}"


class Scan(torch.autograd.Function):
    """y_t = C_t h_t with h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t.

    x and dt are (batch, length, width), B and C (batch, length, states), A is (width, states).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """Float32 throughout."""
        from layerscope_gpu.cuda import launch

        x, dt, A, B, C = (value.float().contiguous() for value in (x, dt, A, B, C))
        batch, length, width = x.shape
        h, y = x.new_empty(batch, length, A.shape[1], width), torch.empty_like(x)
        blocks = -(-batch * width // THREADS)
        launch(
            source(A.shape[1]),
            "scan_forward",
            blocks,
            THREADS,
            0,
            [x, dt, A, B, C, h, y, batch, length, width],
        )
        ctx.save_for_backward(x, dt, A, B, C, h)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        """The gradients per channel come from the kernel; those of B and C are sums over
        channels."""
        from layerscope_gpu.cuda import launch

        x, dt, A, B, C, h = ctx.saved_tensors
        dy = dy.float().contiguous()
        batch, length, width = x.shape
        dx, ddt, g = torch.empty_like(x), torch.empty_like(x), torch.empty_like(h)
        dA = x.new_empty(batch, A.shape[1], width)
        blocks = -(-batch * width // THREADS)
        arguments = [x, dt, A, B, C, h, dy, dx, ddt, dA, g, batch, length, width]
        launch(source(A.shape[1]), "scan_backward", blocks, THREADS, 0, arguments)
        dB = torch.einsum("btnd,btd->btn", g, dt * x)
        dC = torch.einsum("btnd,btd->btn", h, dy)
        return dx, ddt, dA.sum(0).T, dB, dC


def mixer_forward(mixer: nn.Module, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """What transformers' MambaMixer computes for whole unpadded sequences."""
    x, gate = mixer.in_proj(hidden_states).chunk(2, dim=-1)
    length = x.shape[1]
    x = F.silu(mixer.conv1d(x.transpose(1, 2))[..., :length]).transpose(1, 2)
    rank, states = mixer.time_step_rank, mixer.ssm_state_size
    time, B, C = torch.split(mixer.x_proj(x), [rank, states, states], dim=-1)
    dt = F.softplus((time @ mixer.dt_proj.weight.T).float() + mixer.dt_proj.bias.float())
    y = Scan.apply(x, dt, -torch.exp(mixer.A_log.float()), B, C)
    y = (y + x * mixer.D) * F.silu(gate)
    return mixer.out_proj(y)


def use(model: nn.Module) -> None:
    """Replace the mixers' forward."""
    for module in model.modules():
        if type(module).__name__ == "MambaMixer":
            module.forward = partial(mixer_forward, module)


def checked(model: nn.Module, ids: Tensor) -> float:
    """Switch the kernels on if they give the loss and gradients of transformers' forward; the
    largest relative difference."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    before = _loss_and_gradients(model, ids)
    use(model)
    after = _loss_and_gradients(model, ids)
    torch.set_float32_matmul_precision(precision)
    worst = max(
        float((a - b).norm() / b.norm().clamp_min(1e-12))
        for a, b in zip(after, before, strict=True)
    )
    if worst > 1e-3:
        raise RuntimeError(
            f"the selective scan does not agree with transformers' forward: relative difference {worst:.1e}"
        )
    return worst


def _loss_and_gradients(model: nn.Module, ids: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    gradients = [p.grad.detach().clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [loss.detach(), *gradients]
