"""Kernels from CUDA source, compiled at run time and launched on torch's stream."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_void_p
from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.cuda.compiling import compiled
from layerscope.spectra.cuda.libraries import UnusableError, load_library, stream_of

_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def _driver(name: str, *arguments: object) -> None:
    status = getattr(load_library("libcuda.so"), name)(*arguments)
    if status != 0:
        raise UnusableError(f"{name} returned status {status}")


@cache
def _module(source: str, index: int) -> tuple[c_void_p, bytes]:
    major, minor = torch.cuda.get_device_capability(index)
    code = compiled(source, f"sm_{major}{minor}")
    module = c_void_p()
    _driver("cuModuleLoadData", byref(module), code)
    return module, code


def shared_memory(index: int) -> int:
    """Bytes of shared memory that one block may use on a device."""
    properties = torch.cuda.get_device_properties(index)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 * 1024))


@cache
def _function(source: str, name: str, index: int) -> c_void_p:
    function = c_void_p()
    _driver("cuModuleGetFunction", byref(function), _module(source, index)[0], name.encode())
    static = c_int()
    _driver("cuFuncGetAttribute", byref(static), c_int(_STATIC_SHARED), function)
    _driver("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED), c_int(shared_memory(index) - static.value))
    return function


def launch(source: str, name: str, blocks: int, threads: int, shared: int, arguments: list[Tensor | int]) -> None:
    """Run a kernel on the current stream of the tensors' device: `blocks` × `threads`, with `shared` bytes of shared memory."""
    device = next(a.device for a in arguments if isinstance(a, Tensor))
    assert device.index is not None
    with torch.cuda.device(device):
        function = _function(source, name, device.index)
        held = [c_void_p(a.data_ptr()) if isinstance(a, Tensor) else c_int(a) for a in arguments]
        pointers = (c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        grid = [c_uint(x) for x in (blocks, 1, 1, threads, 1, 1, shared)]
        _driver("cuLaunchKernel", function, *grid, stream_of(device), pointers, None)
