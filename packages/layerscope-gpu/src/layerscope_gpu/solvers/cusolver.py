"""Eigenvalues through cuSOLVER's `cusolverDnXsyevBatched`: one call for a whole batch, on torch's
stream.

torch's batched call does not use it and is 50 to 300 times slower for small matrices. CUDA 12.6 and
later have it, and torch's wheels contain it.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, byref, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import torch
from torch import Tensor

from layerscope_gpu.cuda import UnusableError, load_library, stream_of

_TYPES = {torch.float32: 0, torch.float64: 1}  # CUDA_R_32F, CUDA_R_64F
_VALUES_ONLY = 0
_LOWER = 0
_SHARE_OF_MEMORY = 0.25  # of the free memory, for one call's copy and workspace
_MOST_AT_ONCE = 16384

_local = threading.local()


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Return eigenvalues, ascending, of CUDA matrices (batch, n, n), float32 or float64.

    They are NaN where the solver did not converge.
    """
    n = matrices.shape[-1]
    device = matrices.device
    out = matrices.new_empty(matrices.shape[:-1])
    with torch.cuda.device(device):
        solver = _solver(device)
        step = min(_MOST_AT_ONCE, len(matrices))
        matrix_bytes = n * n * matrices.element_size()
        room = _room(device)
        while step > 1 and solver.workspace(matrices, out, step)[0] + step * matrix_bytes > room:
            step = (step + 1) // 2
        for start in range(0, len(matrices), step):
            batch = matrices[start : start + step]
            if not (overwrite and batch.is_contiguous()):
                batch = batch.clone(memory_format=torch.contiguous_format)
            solver.solve(batch, out[start : start + step])
    return out


def _room(device: torch.device) -> float:
    """Return the bytes for one call: a share of the memory that is free for torch."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    unused = free + torch.cuda.memory_reserved(device) - allocated
    return _SHARE_OF_MEMORY * max(0, min(unused, total * fraction(device) - allocated))


def _solver(device: torch.device) -> _Solver:
    """Return this thread's solver on a device; threads must not share a handle."""
    solvers = _local.__dict__.setdefault("solvers", {})
    if device.index not in solvers:
        solvers[device.index] = _Solver()
    solver: _Solver = solvers[device.index]
    _check(solver.library.cusolverDnSetStream(solver.handle, stream_of(device)), "SetStream")
    return solver


class _Solver:
    """A handle of cuSOLVER on the current device."""

    def __init__(self) -> None:
        self.library = _library()
        self.handle = c_void_p()
        self.params = c_void_p()
        _check(self.library.cusolverDnCreate(byref(self.handle)), "Create")
        _check(self.library.cusolverDnCreateParams(byref(self.params)), "CreateParams")

    def workspace(self, matrices: Tensor, out: Tensor, count: int) -> tuple[int, int]:
        """Return the bytes that `count` matrices need on the device and on the host."""
        on_device = c_size_t()
        on_host = c_size_t()
        status = self.library.cusolverDnXsyevBatched_bufferSize(
            *self._arguments(matrices, out), byref(on_device), byref(on_host), count
        )
        _check(status, "XsyevBatched_bufferSize")
        return on_device.value, on_host.value

    def solve(self, matrices: Tensor, out: Tensor) -> None:
        """Write the eigenvalues of matrices, which are overwritten."""
        count = len(matrices)
        on_device, on_host = self.workspace(matrices, out, count)
        space = torch.empty(max(1, on_device), dtype=torch.uint8, device=matrices.device)
        host = ctypes.create_string_buffer(max(1, on_host))
        info = torch.zeros(count, dtype=torch.int32, device=matrices.device)
        status = self.library.cusolverDnXsyevBatched(
            *self._arguments(matrices, out),
            *(space.data_ptr(), on_device, host, on_host, info.data_ptr(), count),
        )
        _check(status, "XsyevBatched")
        out.masked_fill_((info != 0).unsqueeze(-1), torch.nan)  # on the device: nothing waits

    def _arguments(self, matrices: Tensor, out: Tensor) -> tuple[object, ...]:
        n = matrices.shape[-1]
        kind = _TYPES[matrices.dtype]
        source = c_void_p(matrices.data_ptr())
        target = c_void_p(out.data_ptr())
        task = self.handle, self.params, _VALUES_ONLY, _LOWER
        return *task, n, kind, source, n, kind, target, kind


def _library() -> ctypes.CDLL:
    library = load_library("libcusolver.so")
    try:
        size = library.cusolverDnXsyevBatched_bufferSize
        solve = library.cusolverDnXsyevBatched
    except AttributeError:
        raise UnusableError(
            "this libcusolver has no cusolverDnXsyevBatched: it needs CUDA 12.6 or later"
        ) from None
    task: list[Any] = [c_void_p, c_void_p, c_int, c_int]
    data: list[Any] = [c_int64, c_int, c_void_p, c_int64, c_int, c_void_p, c_int]
    size.argtypes = [*task, *data, POINTER(c_size_t), POINTER(c_size_t), c_int64]
    solve.argtypes = [*task, *data, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_int64]
    library.cusolverDnSetStream.argtypes = [c_void_p, c_void_p]
    return library


def _check(status: int, name: str) -> None:
    if status != 0:
        raise UnusableError(f"cusolverDn{name} returned status {status}")
