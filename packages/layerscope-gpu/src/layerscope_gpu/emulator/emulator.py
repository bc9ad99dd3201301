"""`launch` with the signature of `layerscope_gpu.cuda.launch`, for tensors in the CPU's memory.

g++ compiles a kernel's source with `shim.hpp` and links it to `runtime.cpp`; the result is kept in
the folder for temporary files. Every launch runs twice, with the threads of a block in opposite
orders: if the results differ, a barrier is missing. Tensors are copied to memory with guard bytes
on both sides, so that writes outside of a tensor are reported and reads there give NaN.
"""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

_SHIM = Path(__file__).with_name("shim.hpp")
_RUNTIME = Path(__file__).with_name("runtime.cpp")
_GUARD = 4096
_COMPILE = [
    "-std=c++20",
    "-O1",
    "-march=native",
    "-ffp-contract=fast",
    "-fPIC",
    "-w",
    "-U_FORTIFY_SOURCE",
]
# the runtime defines the handlers of these checks, so no library is linked for them
_CHECKS = ["-fsanitize=bounds,alignment"]
_FORWARD = 0
_BACKWARD = 1


class KernelError(AssertionError):
    """A mistake in a kernel; the message says what it would do on a GPU."""


def missing() -> str | None:
    """Return the reason why kernels cannot be run here, or None."""
    if not sys.platform.startswith("linux"):
        return "needs Linux (contexts of its C library)"
    return None if shutil.which("g++") else "needs g++"


def launch(
    source: str, name: str, blocks: int, threads: int, shared: int, arguments: list[Tensor | int]
) -> None:
    """Run a kernel on CPU tensors, which change as they would on a GPU."""
    if not 0 < threads <= 1024:
        raise KernelError(f"{threads} threads in a block: a GPU takes 1 to 1024")
    if blocks < 1:
        raise KernelError(f"{blocks} blocks: a GPU refuses an empty launch")
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    regions = _regions(tensors)
    results = []
    for order in (_FORWARD, _BACKWARD):
        copies = {region: _Guarded(*region) for region in regions}
        values = [
            _pointer(a, copies) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        problem = _compiled(source, name)(blocks, threads, shared, pointers, order).decode()
        if problem:
            raise KernelError(f"{name}: {problem}")
        for guarded in copies.values():
            guarded.check(name)
        results.append(copies)
    for region in regions:
        if results[0][region].content() != results[1][region].content():
            raise KernelError(
                f"{name}: the result depends on the order of the threads: a barrier is missing"
            )
        results[0][region].put_back()


def _extent(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def _regions(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Return the memory ranges of tensors as (start, end), with overlapping ranges joined."""
    spans = sorted({(t.data_ptr(), t.data_ptr() + _extent(t)) for t in tensors})
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


class _Guarded:
    """A copy of a memory range with guard bytes on both sides, aligned like the original."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.size = end - start
        length = self.size + 2 * _GUARD + 256
        self.buffer = ctypes.create_string_buffer(b"\xff" * length, length)
        base = ctypes.addressof(self.buffer) + _GUARD
        self.at = base + (start - base) % 256
        ctypes.memmove(self.at, start, self.size)

    def content(self) -> bytes:
        return ctypes.string_at(self.at, self.size)

    def check(self, name: str) -> None:
        before = self.at - ctypes.addressof(self.buffer)
        raw = self.buffer.raw
        for side, guard in (("before", raw[:before]), ("after", raw[before + self.size :])):
            if guard.strip(b"\xff"):
                raise KernelError(f"{name}: memory written {side} a tensor of {self.size} bytes")

    def put_back(self) -> None:
        ctypes.memmove(self.start, self.at, self.size)


def _pointer(tensor: Tensor, copies: dict[tuple[int, int], _Guarded]) -> ctypes.c_void_p:
    assert tensor.device.type == "cpu"
    address = tensor.data_ptr()
    for (start, end), guarded in copies.items():
        if start <= address < end or (address == start == end):
            return ctypes.c_void_p(guarded.at + address - start)
    raise AssertionError("this tensor has no memory")


def _translated(source: str) -> str:
    """Return the source as C++: dynamic shared memory becomes a pointer, PTX becomes a call."""
    source = re.sub(r'"\s*\n\s*"', "", source)  # string literals on several lines
    source = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+(\w+)\[\];",
        r"\1* \2 = (\1*)cuda_on_cpu::dynamic();",
        source,
    )

    def called(match: re.Match[str]) -> str:
        operation = match.group(1).split()[0].strip(";").replace(".", "_").replace(":", "_")
        operands = re.findall(r'"=?\w+"\s*\(([^()]*)\)', match.group(2))
        return f"cuda_on_cpu::{operation}({', '.join(operands)});"

    return re.sub(r'asm(?:\s+volatile)?\s*\(\s*"([^"]*)"\s*((?::[^;]*)?)\);', called, source)


def _compiled(source: str, name: str) -> Any:
    function = getattr(_library(source), f"emulate_{name}", None)
    if function is None:
        raise KernelError(f"the source has no kernel named {name}")
    function.restype = ctypes.c_char_p
    return function


@cache
def _shim(options: tuple[str, ...]) -> tuple[Path, Path]:
    """Return the shim and the runtime in the folder of compiled files.

    Both are compiled first: a kernel then compiles in a sixth of the time.
    """
    folder = Path(tempfile.gettempdir()) / f"layerscope-cuda-on-cpu-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    key = hashlib.sha256(
        b"\0".join([_SHIM.read_bytes(), _RUNTIME.read_bytes(), *map(str.encode, options)])
    ).hexdigest()[:16]
    shim = folder / f"shim-{key}.hpp"
    runtime = folder / f"runtime-{key}.o"
    if not runtime.exists():
        source_copy, header_file, object_file = (
            folder / f"{key}.{os.getpid()}.{ending}" for ending in ("hpp", "gch", "o")
        )
        source_copy.write_bytes(_SHIM.read_bytes())
        source_copy.replace(shim)
        _run(["g++", *options, "-x", "c++-header", str(shim), "-o", str(header_file)])
        header_file.replace(shim.with_suffix(".hpp.gch"))
        quick = ["-O2", "-fno-sanitize=all"]  # most of the time is spent in the runtime
        _run(["g++", *options, *quick, "-c", str(_RUNTIME), "-o", str(object_file)])
        object_file.replace(runtime)  # last: other processes look for this file
    return shim, runtime


@cache
def _library(source: str) -> ctypes.CDLL:
    """Return the library of all kernels of a source, compiled once for all runs."""
    names = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", source)
    entries = "".join(
        f'extern "C" const char* emulate_{name}(int b, int t, int s, void** a, int o) '
        f"{{ return cuda_on_cpu::launch({name}, b, t, s, a, o); }}\n"
        for name in names
    )
    options = [*_COMPILE, *_CHECKS]
    shim, runtime = _shim(tuple(options))
    whole = f'#include "{shim}"\n#line 1 "kernel"\n{_translated(source)}\n{entries}'
    key = hashlib.sha256("\0".join([whole, *options]).encode()).hexdigest()[:24]
    library = shim.with_name(f"{key}.so")
    if not library.exists():
        source_file, object_file, shared_object = (
            shim.with_name(f"{key}.{os.getpid()}.{ending}") for ending in ("cpp", "o", "so")
        )
        source_file.write_text(whole)
        try:
            _run(["g++", *options, "-c", str(source_file), "-o", str(object_file)])
            _run(
                [
                    "g++",
                    "-shared",
                    "-Wl,-Bsymbolic",
                    str(object_file),
                    str(runtime),
                    "-o",
                    str(shared_object),
                ]
            )
            shared_object.replace(library)
        finally:
            for temporary in (source_file, object_file):
                temporary.unlink(missing_ok=True)
    return ctypes.CDLL(str(library))


def _run(command: list[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise KernelError(f"the kernel does not compile:\n{process.stderr[:3000]}")
