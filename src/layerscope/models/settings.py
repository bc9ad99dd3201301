"""Number types and devices as a user names them, and keeping transformers quiet in the terminal."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path

import torch

from layerscope.errors import ModelError, UnknownNameError

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
DEVICES = ("cpu", "cuda", "mps")


def pick_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """Return a floating-point type, or "auto" for the checkpoint's own."""
    name = str(dtype).removeprefix("torch.")
    if name != "auto" and name not in DTYPES:
        raise UnknownNameError("dtype", name, [*DTYPES, "auto"])
    return DTYPES.get(name, name)


def pick_device(device: str | torch.device | None) -> torch.device:
    """Return the device that is named, or by default a GPU if there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if str(device).split(":")[0] not in DEVICES:
        raise UnknownNameError("device", str(device), DEVICES, "A GPU may be numbered: cuda:1.")
    counts = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    usable = ", ".join(name for name, count in counts.items() if count)
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ModelError(
            f"{str(device)!r} is not a device: {error}. Usable here: {usable}."
        ) from error
    if not counts[chosen.type]:
        raise ModelError(
            f"device {str(device)!r} is not available on this machine. Usable here: {usable}."
        )
    if (chosen.index or 0) >= counts[chosen.type]:
        raise ModelError(
            f"device {str(device)!r} does not exist: this machine has {counts[chosen.type]} "
            "GPUs, numbered from 0."
        )
    return chosen


_CPU_FACTS = Path("/proc/cpuinfo")
_BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16", "bf16")  # the last on ARM


def bfloat16_units() -> str | None:
    """Return the units of this CPU that compute bfloat16; empty if it has none, None if unknown."""
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.lower().startswith(("flags", "features")):
            features = line.split()
            return next((unit for unit in _BFLOAT16_UNITS if unit in features), "")
    return None


def settle_bfloat16(
    module: torch.nn.Module, dtype: str | torch.dtype, name: str
) -> torch.nn.Module:
    """Return a model in bfloat16 as float32 on a CPU that would emulate bfloat16, dozens of times
    slower; unless the user asked for bfloat16 by name."""
    weights = next(module.parameters(), None)
    if weights is None or weights.dtype != torch.bfloat16 or weights.device.type != "cpu":
        return module
    if bfloat16_units() != "":
        return module
    if dtype == "auto":
        log.warning(
            "%s is read in float32: this CPU has no bfloat16 units. dtype=bfloat16 would force it.",
            name,
        )
        return module.float()
    log.warning(
        "this CPU has no bfloat16 units and emulates them, many times slower: leave dtype=bfloat16 "
        "out for float32."
    )
    return module


@contextmanager
def quiet(bars: bool = False) -> Iterator[None]:
    """Show only errors of transformers; with `bars`, nothing at all on stderr (reading GGUF draws
    bars of its own)."""
    import transformers.utils.logging as hf

    level, shown = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    silence: AbstractContextManager[object] = nullcontext()
    if bars:
        silence = redirect_stderr(io.StringIO())
    try:
        with warnings.catch_warnings(), silence:
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if shown:
            hf.enable_progress_bar()


def without_advice() -> None:
    """Keep transformers' advice on kernels for state-space models out of the terminal, where it
    would break a progress bar."""
    logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
