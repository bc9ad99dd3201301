"""Eigenvalues through cuSOLVER's `cusolverDnXsyevBatched`: one call for a whole batch, on torch's
stream.

torch's batched call does not use it and is 50 to 300 x slower for small matrices. It came with CUDA
12.6; torch's wheels ship it.
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
_VALUES_ONLY, _LOWER = 0, 0
_SHARE_OF_MEMORY = 0.25  # of what is free, for one call's copy and workspace
_MOST_AT_ONCE = 16384

_local = threading.local()


def _check(status: int, what: str) -> None:
    if status != 0:
        raise UnusableError(f"{what} returned status {status}")


def _library() -> ctypes.CDLL:
    library = load_library("libcusolver.so")
    try:
        size, solve = library.cusolverDnXsyevBatched_bufferSize, library.cusolverDnXsyevBatched
    except AttributeError:
        raise UnusableError(
            "this libcusolver has no cusolverDnXsyevBatched (CUDA 12.6 or later has)"
        ) from None
    common: list[Any] = [
        c_void_p,
        c_void_p,
        c_int,
        c_int,
        c_int64,
        c_int,
        c_void_p,
        c_int64,
        c_int,
        c_void_p,
        c_int,
    ]
    size.argtypes = [*common, POINTER(c_size_t), POINTER(c_size_t), c_int64]
    solve.argtypes = [*common, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_int64]
    library.cusolverDnSetStream.argtypes = [c_void_p, c_void_p]
    return library


def _handle(device: torch.device) -> tuple[ctypes.CDLL, c_void_p, c_void_p]:
    """A handle of this thread on a device; cuSOLVER's handles must not be shared between
    threads."""
    handles = _local.__dict__.setdefault("handles", {})
    if device.index not in handles:
        library = _library()
        handle, params = c_void_p(), c_void_p()
        _check(library.cusolverDnCreate(byref(handle)), "cusolverDnCreate")
        _check(library.cusolverDnCreateParams(byref(params)), "cusolverDnCreateParams")
        handles[device.index] = library, handle, params
    return handles[device.index]


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Eigenvalues, ascending, of CUDA matrices (batch, n, n), float32 or float64; NaN where the
    solver did not converge."""
    n, device = matrices.shape[-1], matrices.device
    out = matrices.new_empty(matrices.shape[:-1])
    with torch.cuda.device(device):
        library, handle, params = _handle(device)
        _check(library.cusolverDnSetStream(handle, stream_of(device)), "cusolverDnSetStream")
        step = min(_MOST_AT_ONCE, len(matrices))
        while step > 1 and _bytes(library, handle, params, matrices, n, step) > _room(device):
            step = (step + 1) // 2
        for start in range(0, len(matrices), step):
            part = matrices[start : start + step]
            if not (overwrite and part.is_contiguous()):
                part = part.clone(memory_format=torch.contiguous_format)
            _solve(library, handle, params, part, out[start : start + step])
    return out


def _room(device: torch.device) -> float:
    """Bytes for one call: a share of what is free, what torch holds unused included, within the
    limit that torch was given."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    limit = total * getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(
        device
    )
    return _SHARE_OF_MEMORY * max(
        0, min(free + torch.cuda.memory_reserved(device) - allocated, limit - allocated)
    )


def _arguments(
    handle: c_void_p, params: c_void_p, a: Tensor | None, w: Tensor | None, n: int, kind: int
) -> tuple[object, ...]:
    here = [c_void_p(None if t is None else t.data_ptr()) for t in (a, w)]
    return handle, params, _VALUES_ONLY, _LOWER, n, kind, here[0], n, kind, here[1], kind


def _workspace(library: ctypes.CDLL, arguments: tuple[object, ...], count: int) -> tuple[int, int]:
    on_device, on_host = c_size_t(), c_size_t()
    status = library.cusolverDnXsyevBatched_bufferSize(
        *arguments, byref(on_device), byref(on_host), count
    )
    _check(status, "cusolverDnXsyevBatched_bufferSize")
    return on_device.value, on_host.value


def _bytes(
    library: ctypes.CDLL, handle: c_void_p, params: c_void_p, matrices: Tensor, n: int, count: int
) -> int:
    arguments = _arguments(handle, params, matrices, matrices, n, _TYPES[matrices.dtype])
    return _workspace(library, arguments, count)[0] + count * n * n * matrices.element_size()


def _solve(
    library: ctypes.CDLL, handle: c_void_p, params: c_void_p, part: Tensor, out: Tensor
) -> None:
    n, count = part.shape[-1], len(part)
    arguments = _arguments(handle, params, part, out, n, _TYPES[part.dtype])
    on_device, on_host = _workspace(library, arguments, count)
    space = torch.empty(max(1, on_device), dtype=torch.uint8, device=part.device)
    host = ctypes.create_string_buffer(max(1, on_host))
    info = torch.zeros(count, dtype=torch.int32, device=part.device)
    status = library.cusolverDnXsyevBatched(
        *arguments, space.data_ptr(), on_device, host, on_host, info.data_ptr(), count
    )
    _check(status, "cusolverDnXsyevBatched")
    out.masked_fill_((info != 0).unsqueeze(-1), torch.nan)  # on the device: nothing waits for it
