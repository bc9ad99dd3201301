"""CUDA's own libraries, which come with torch: found at run time, never required."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch


class UnusableError(RuntimeError):
    """A library or a kernel cannot be used here; the next solver takes its place."""


@cache
def load_library(name: str) -> ctypes.CDLL:
    """A shared library such as `libcusolver.so`, whatever its version: from torch's own packages, else the system's."""
    site = Path(torch.__file__).resolve().parent.parent
    folders = [*site.glob("nvidia/*/lib"), site / "torch" / "lib"]
    files = sorted((file for folder in folders for file in folder.glob(f"{name}.*")), key=lambda f: f.name, reverse=True)
    tried = [*(str(file) for file in files), *(f"{name}.{version}" for version in (13, 12, 11, 1)), name]
    for candidate in tried:
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise UnusableError(f"{name} was not found")


def stream_of(device: torch.device) -> ctypes.c_void_p:
    """torch's current stream on a device, as the libraries take it."""
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
