"""`launch` with the signature of `layerscope_gpu.cuda.launch`, for tensors in the CPU's memory.

A kernel's source is compiled by g++ behind `shim.hpp`, linked to `runtime.cpp`, and kept in a
folder for temporary files. Every launch runs twice, the threads of a block in opposite orders:
where the results differ, a barrier is missing. Tensors are copied between guards, so what a kernel
writes outside of them is found, and what it reads there is NaN.
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
_CHECKS = [
    "-fsanitize=bounds,alignment"
]  # their handlers are in the runtime, so nothing is linked for them
_FORWARD, _BACKWARD = 0, 1


class KernelError(AssertionError):
    """A kernel's mistake, with its effect on a GPU in words."""


def missing() -> str | None:
    """Return the reason why kernels cannot be run here, or None."""
    if not sys.platform.startswith("linux"):
        return "needs Linux (contexts of its C library)"
    return None if shutil.which("g++") else "needs g++"


def launch(
    source: str, name: str, blocks: int, threads: int, shared: int, arguments: list[Tensor | int]
) -> None:
    """Run a kernel on CPU tensors: what it changes in them is what a GPU would change."""
    if not 0 < threads <= 1024:
        raise KernelError(f"{threads} threads in a block: a GPU takes 1 to 1024")
    if blocks < 1:
        raise KernelError(f"{blocks} blocks: a GPU refuses an empty launch")
    given = [a for a in arguments if isinstance(a, Tensor)]
    regions = _regions(given)
    results = []
    for order in (_FORWARD, _BACKWARD):
        held = {region: _Guarded(*region) for region in regions}
        values = [
            _pointer(a, held) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        problem = _compiled(source, name)(blocks, threads, shared, pointers, order).decode()
        if problem:
            raise KernelError(f"{name}: {problem}")
        for guarded in held.values():
            guarded.check(name)
        results.append(held)
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
    """The memory that tensors cover (start, end), overlapping parts joined."""
    spans = sorted({(t.data_ptr(), t.data_ptr() + _extent(t)) for t in tensors})
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


class _Guarded:
    """A copy of a piece of memory with guards on both sides, aligned as the original."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.size = start, end - start
        self.buffer = ctypes.create_string_buffer(
            b"\xff" * (self.size + 2 * _GUARD + 256), self.size + 2 * _GUARD + 256
        )
        base = ctypes.addressof(self.buffer) + _GUARD
        self.at = base + (start - base) % 256
        ctypes.memmove(self.at, start, self.size)

    def content(self) -> bytes:
        return ctypes.string_at(self.at, self.size)

    def check(self, name: str) -> None:
        before = self.at - ctypes.addressof(self.buffer)
        raw = self.buffer.raw
        for what, guard in (("before", raw[:before]), ("after", raw[before + self.size :])):
            if guard.strip(b"\xff"):
                raise KernelError(f"{name}: memory written {what} a tensor of {self.size} bytes")

    def put_back(self) -> None:
        ctypes.memmove(self.start, self.at, self.size)


def _pointer(tensor: Tensor, held: dict[tuple[int, int], _Guarded]) -> ctypes.c_void_p:
    assert tensor.device.type == "cpu"
    address = tensor.data_ptr()
    for (start, end), guarded in held.items():
        if start <= address < end or (address == start == end):
            return ctypes.c_void_p(guarded.at + address - start)
    raise AssertionError("a tensor without memory")


def _translated(source: str) -> str:
    """The source as C++: shared memory of a size given at launch becomes a pointer, PTX becomes a
    call."""
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
    """The shim and the runtime where compiled files stay, both compiled: kernels then take a sixth
    of the time."""
    folder = Path(tempfile.gettempdir()) / f"layerscope-cuda-on-cpu-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    key = hashlib.sha256(
        b"\0".join([_SHIM.read_bytes(), _RUNTIME.read_bytes(), *map(str.encode, options)])
    ).hexdigest()[:16]
    shim, runtime = folder / f"shim-{key}.hpp", folder / f"runtime-{key}.o"
    if not runtime.exists():
        copy, built, made = (
            folder / f"{key}.{os.getpid()}.{ending}" for ending in ("hpp", "gch", "o")
        )
        copy.write_bytes(_SHIM.read_bytes())
        copy.replace(shim)
        _run(["g++", *options, "-x", "c++-header", str(shim), "-o", str(built)])
        built.replace(shim.with_suffix(".hpp.gch"))
        quick = ["-O2", "-fno-sanitize=all"]  # it is no kernel, and most of the time is spent there
        _run(["g++", *options, *quick, "-c", str(_RUNTIME), "-o", str(made)])
        made.replace(runtime)  # last: where it is, all is
    return shim, runtime


@cache
def _library(source: str) -> ctypes.CDLL:
    """All kernels of a source, compiled once; the file stays for other runs."""
    names = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", source)
    entry = "(int b, int t, int s, void** a, int o) {{ return cuda_on_cpu::launch({name}, b, t, s, a, o); }}"
    entries = "".join(
        f'extern "C" const char* emulate_{name}{entry.format(name=name)}\n' for name in names
    )
    options = [*_COMPILE, *_CHECKS]
    shim, runtime = _shim(tuple(options))
    whole = f'#include "{shim}"\n#line 1 "kernel"\n{_translated(source)}\n{entries}'
    key = hashlib.sha256("\0".join([whole, *options]).encode()).hexdigest()[:24]
    library = shim.with_name(f"{key}.so")
    if not library.exists():
        text, made, built = (
            shim.with_name(f"{key}.{os.getpid()}.{ending}") for ending in ("cpp", "o", "so")
        )
        text.write_text(whole)
        try:
            _run(["g++", *options, "-c", str(text), "-o", str(made)])
            _run(["g++", "-shared", "-Wl,-Bsymbolic", str(made), str(runtime), "-o", str(built)])
            built.replace(library)
        finally:
            for left in (text, made):
                left.unlink(missing_ok=True)
    return ctypes.CDLL(str(library))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise KernelError(f"the kernel does not compile:\n{done.stderr[:3000]}")
