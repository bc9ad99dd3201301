"""Machine code of CUDA source: compiled by NVRTC, which comes with torch, once for each machine's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from layerscope.cache import cache_dir
from layerscope.spectra.cuda.libraries import UnusableError, load_library

_DIGEST = 32  # bytes in front of what is kept


@cache
def compiled(source: str, architecture: str) -> bytes:
    """The code for an architecture such as `sm_90`. A second process reads it from the cache: compiling takes seconds."""
    named = "\0".join([_version(), architecture, source])
    file = cache_dir() / "kernels" / f"{hashlib.sha256(named.encode()).hexdigest()}.cubin"
    kept = _kept(file)
    if kept is not None:
        return kept
    code = _compile(source, architecture)
    with suppress(OSError):  # a cache that cannot be written to costs time, nothing else
        _keep(file, code)
    return code


def _kept(file: Path) -> bytes | None:
    """What a file holds, if it is whole."""
    try:
        held = file.read_bytes()
    except OSError:
        return None
    digest, code = held[:_DIGEST], held[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _keep(file: Path, code: bytes) -> None:
    """Write under another name first: whoever reads finds all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(code).digest() + code)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _version() -> str:
    major, minor = c_int(), c_int()
    if load_library("libnvrtc.so").nvrtcVersion(byref(major), byref(minor)) != 0:
        raise UnusableError("nvrtcVersion failed")
    return f"{major.value}.{minor.value}"


def _compile(source: str, architecture: str) -> bytes:
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
