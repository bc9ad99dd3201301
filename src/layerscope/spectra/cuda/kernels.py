"""Kernels from CUDA source, compiled at run time by NVRTC (which comes with torch) and launched on torch's stream."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.cuda.libraries import UnusableError, load_library, stream_of

_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def _driver(name: str, *arguments: object) -> None:
    status = getattr(load_library("libcuda.so"), name)(*arguments)
    if status != 0:
        raise UnusableError(f"{name} returned status {status}")


@cache
def _compiled(source: str, architecture: str) -> bytes:
    nvrtc = load_library("libnvrtc.so")
    program = c_void_p()
    if nvrtc.nvrtcCreateProgram(byref(program), source.encode(), b"layerscope.cu", 0, None, None) != 0:
        raise UnusableError("nvrtcCreateProgram failed")
    options = (c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    status, size = nvrtc.nvrtcCompileProgram(program, 2, options), c_size_t()
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise UnusableError(f"the kernel does not compile: {log.value.decode(errors='replace')[:500]}")
    nvrtc.nvrtcGetCUBINSize(program, byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(byref(program))
    return code.raw


@cache
def _module(source: str, index: int) -> tuple[c_void_p, bytes]:
    major, minor = torch.cuda.get_device_capability(index)
    code = _compiled(source, f"sm_{major}{minor}")
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
