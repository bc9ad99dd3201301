"""Runs simple CUDA kernels (no shared memory, no warp operations) on the CPU: compiled as C++, one thread after the other."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

_PRELUDE = """
#include <math.h>
#define __global__
struct Index { int x; };
static Index blockIdx, blockDim, threadIdx;
"""
_LOOP = """
extern "C" void run_NAME(int blocks, int threads, void** p) {
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) NAME(ARGUMENTS);
}
"""


def have_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return shutil.which("g++") is not None


def launcher(folder: Path) -> Callable[..., None]:
    """A stand-in for `layerscope.spectra.kernels.launch`; compiled libraries go into `folder`."""

    def launch(source: str, name: str, blocks: int, threads: int, shared: int, arguments: list[Tensor | int]) -> None:
        assert shared == 0
        kinds = ["float*" if isinstance(a, Tensor) else "int" for a in arguments]
        passed = [f"(float*)p[{i}]" if kind == "float*" else f"*(int*)p[{i}]" for i, kind in enumerate(kinds)]
        text = _PRELUDE + source + _LOOP.replace("NAME", name).replace("ARGUMENTS", ", ".join(passed))
        library = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.so"
        if not library.exists():
            code = library.with_suffix(".cpp")
            code.write_text(text)
            subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
        assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
        numbers = [ctypes.c_int(a) if isinstance(a, int) else None for a in arguments]
        pointers = (ctypes.c_void_p * len(arguments))(
            *(a.data_ptr() if isinstance(a, Tensor) else ctypes.addressof(n) for a, n in zip(arguments, numbers, strict=True))
        )
        getattr(ctypes.CDLL(str(library)), f"run_{name}")(blocks, threads, pointers)

    return launch
