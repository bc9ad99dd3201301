"""Compile CUDA kernels by NVRTC, cache and launch them, and load CUDA libraries through ctypes.

No compiler is needed: NVRTC is a library beside torch. A kernel is compiled once per machine and
launched on torch's stream. Several kernels share the CUDA source at the end of this file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class UnusableError(RuntimeError):
    """A library or a kernel cannot be used on this machine; the next solver takes its place."""


FAILURES = (UnusableError, OSError, AttributeError, RuntimeError, TypeError, ValueError)
"""Exceptions that mean that a kernel or a library cannot be used on this machine."""


@cache
def load_library(name: str) -> ctypes.CDLL:
    """Load a shared library such as `libcusolver.so` in any version.

    The library in torch's packages comes first, the system's second.
    """
    site = Path(torch.__file__).resolve().parent.parent
    folders = [*site.glob("nvidia/*/lib"), site / "torch" / "lib"]
    files = sorted(
        (file for folder in folders for file in folder.glob(f"{name}.*")),
        key=lambda f: f.name,
        reverse=True,
    )
    names = [*map(str, files), *(f"{name}.{version}" for version in (13, 12, 11, 1)), name]
    for candidate in names:
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise UnusableError(f"{name} was not found")


def stream_of(device: torch.device) -> ctypes.c_void_p:
    """Return torch's current stream on a device as an argument for a CUDA library."""
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)


_DIGEST = 32  # bytes of the checksum in front of cached code

# keyed by source and architecture
_compiling: dict[tuple[str, str], Future[bytes]] = {}
_in_cache: set[tuple[str, str]] = set()


def compile_ahead(sources: Iterable[str], architecture: str) -> None:
    """Start compiling the kernels that are not cached, in parallel background threads.

    Compiling them one after the other takes seconds.
    """
    keys = [(source, architecture) for source in dict.fromkeys(sources)]
    unknown = [key for key in keys if key not in _compiling and key not in _in_cache]
    missing = [key for key in unknown if _read_cache(_cache_file(*key)) is None]
    _in_cache.update(set(unknown).difference(missing))
    if missing:
        pool = ThreadPoolExecutor(
            min(len(missing), os.cpu_count() or 1), thread_name_prefix="layerscope-compiling"
        )
        for key in missing:
            _compiling[key] = pool.submit(_compile_and_cache, *key)
        pool.shutdown(wait=False)


def architecture_of(index: int) -> str:
    """Return the architecture of a device's kernels, such as `sm_90`."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


@cache
def compiled(source: str, architecture: str) -> bytes:
    """Return a kernel's code for an architecture such as `sm_90`, from the cache if it is there."""
    running = _compiling.get((source, architecture))
    if running is not None:
        return running.result()
    cached = _read_cache(_cache_file(source, architecture))
    return _compile_and_cache(source, architecture) if cached is None else cached


def _compile_and_cache(source: str, architecture: str) -> bytes:
    code = _compile(source, architecture)
    with suppress(OSError):  # without a cache the kernel is compiled again next time
        _write_cache(_cache_file(source, architecture), code)
    return code


def cache_folder() -> Path:
    """Return the folder of compiled kernels: `$LAYERSCOPE_CACHE/kernels`, or `layerscope/kernels`
    in `$XDG_CACHE_HOME` or `~/.cache`."""
    cache = os.environ.get("LAYERSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if cache:
            return Path(cache).expanduser() / "kernels"
        return (Path(base) if base else Path.home() / ".cache") / "layerscope" / "kernels"
    except RuntimeError as error:  # a container's user without a name and without HOME
        raise UnusableError(
            "there is no home folder to keep compiled kernels in: set LAYERSCOPE_CACHE to a folder"
        ) from error


def _cache_file(source: str, architecture: str) -> Path:
    key = "\0".join([_nvrtc_version(), architecture, source])
    return cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"


def _read_cache(file: Path) -> bytes | None:
    """Return the code in a cached file; None if the file is missing or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest = content[:_DIGEST]
    code = content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write_cache(file: Path, code: bytes) -> None:
    """Write under a temporary name, then rename: readers see a complete file or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(code).digest() + code)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _nvrtc_version() -> str:
    major = c_int()
    minor = c_int()
    if load_library("libnvrtc.so").nvrtcVersion(byref(major), byref(minor)) != 0:
        raise UnusableError("nvrtcVersion failed")
    return f"{major.value}.{minor.value}"


def _compile(source: str, architecture: str) -> bytes:
    nvrtc = load_library("libnvrtc.so")
    program = c_void_p()
    if (
        nvrtc.nvrtcCreateProgram(
            byref(program), source.encode(), b"layerscope_gpu.cu", 0, None, None
        )
        != 0
    ):
        raise UnusableError("nvrtcCreateProgram failed")
    options = (c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    status = nvrtc.nvrtcCompileProgram(program, 2, options)
    size = c_size_t()
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise UnusableError(
            f"the kernel does not compile: {log.value.decode(errors='replace')[:500]}"
        )
    nvrtc.nvrtcGetCUBINSize(program, byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(byref(program))
    return code.raw


_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def _driver(name: str, *arguments: object) -> None:
    status = getattr(load_library("libcuda.so"), name)(*arguments)
    if status != 0:
        raise UnusableError(f"{name} returned status {status}")


@cache
def _module(source: str, index: int) -> tuple[c_void_p, bytes]:
    code = compiled(source, architecture_of(index))
    module = c_void_p()
    _driver("cuModuleLoadData", byref(module), code)
    return module, code


def define(macros: Mapping[str, int]) -> str:
    """Return lines that define the macros of a kernel's source."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_memory(index: int) -> int:
    """Return the bytes of shared memory that one block may use on a device."""
    properties = torch.cuda.get_device_properties(index)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 * 1024))


@cache
def _function(source: str, name: str, index: int) -> c_void_p:
    function = c_void_p()
    _driver("cuModuleGetFunction", byref(function), _module(source, index)[0], name.encode())
    static = c_int()
    _driver("cuFuncGetAttribute", byref(static), c_int(_STATIC_SHARED), function)
    _driver(
        "cuFuncSetAttribute",
        function,
        c_int(_MAX_DYNAMIC_SHARED),
        c_int(shared_memory(index) - static.value),
    )
    return function


def launch(
    source: str, name: str, blocks: int, threads: int, shared: int, arguments: list[Tensor | int]
) -> None:
    """Run a kernel on the current stream of the tensors' device.

    There are `blocks` × `threads` threads, and `shared` bytes of shared memory for each block.
    """
    index = next(a.device.index for a in arguments if isinstance(a, Tensor))
    assert index is not None
    if torch.cuda.current_device() != index:
        with torch.cuda.device(index):
            launch(source, name, blocks, threads, shared, arguments)
        return
    # This runs tens of thousands of times per profile, while the GPU may wait, so arguments share
    # one array. A kernel reads as many of the eight bytes as its parameter has, the lowest first.
    count = len(arguments)
    values = (c_uint64 * count)(*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])
    start = addressof(values)
    pointers = (c_uint64 * count)(*range(start, start + 8 * count, 8))
    function = _function(source, name, index)
    stream = _raw_stream(index)
    status = _launcher()(
        function, blocks, 1, 1, threads, 1, 1, shared, stream, addressof(pointers), None
    )
    if status != 0:
        raise UnusableError(f"cuLaunchKernel returned status {status}")


@cache
def _launcher() -> Callable[..., int]:
    """Return the driver's launch function with the types of its arguments."""
    function = load_library("libcuda.so").cuLaunchKernel
    function.argtypes = [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p]
    return function


def _raw_stream(index: int) -> int:
    """Return torch's current stream on a device as a number.

    The private function, which torch's compiled code calls, takes less time.
    """
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(index)) if raw is not None else int(torch.cuda.current_stream(index).cuda_stream)


def tried_once(trial: Callable[..., bool]) -> Callable[..., bool]:
    """Decorate a kernel's trial: run it once for equal arguments, and return False if it fails."""

    @cache
    def usable(*arguments: Any) -> bool:
        try:
            return trial(*arguments)
        except FAILURES:
            return False

    return usable


# the sum over the 32 threads of a warp, returned to each of them
WARP_SUM = r"""
template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
  for (int s = 16; s > 0; s >>= 1) x += __shfl_xor_sync(0xffffffffu, x, s);
  return x;
}
"""

# half-precision numbers as bits: float16 if `half`, else bfloat16
HALVES = r"""
typedef unsigned short u16;

__device__ __forceinline__ float widened(u16 x, int half) {
  if (!half) return __uint_as_float(((unsigned)x) << 16);  // bfloat16: a float's upper half
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

__device__ __forceinline__ u16 narrowed(float x) {  // float16
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}

__device__ __forceinline__ u16 rounded(float x, int half) {
  if (half) return narrowed(x);
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// two rounded numbers side by side: for bfloat16 in one instruction instead of a dozen
__device__ __forceinline__ unsigned paired(float low, float high, int half) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  unsigned pair;
  if (!half) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
#endif
  return rounded(low, half) | (unsigned)rounded(high, half) << 16;
}

__device__ __forceinline__ float low(unsigned pair, int half) {
  return widened((u16)pair, half);
}
__device__ __forceinline__ float high(unsigned pair, int half) {
  return widened((u16)(pair >> 16), half);
}
"""
