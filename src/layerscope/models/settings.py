"""Number types and devices as a user names them, and keeping transformers quiet in the terminal."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path

import torch

from layerscope.errors import ModelError, UnknownNameError, one_line

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
DEVICES = ("cpu", "cuda", "mps")
_CPU_FACTS = Path("/proc/cpuinfo")
_BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16", "bf16")  # the last on ARM


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
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        gpus = torch.cuda.device_count()
        raise ModelError(
            f"device {str(device)!r} is not available on this machine: "
            f"{one_line(str(error))[:100]}. It has {gpus} GPUs, numbered from 0. "
            "Leave device= out, or use cpu."
        ) from error
    return chosen


def bfloat16_units() -> str | None:
    """Return the units of this CPU that compute bfloat16; empty if it has none, None if unknown."""
    try:
        facts = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return None
    line = re.search(r"^(flags|features)\b.*", facts, re.MULTILINE)
    if line is None:
        return None
    features = line[0].split()
    return next((unit for unit in _BFLOAT16_UNITS if unit in features), "")


def settle_bfloat16(
    module: torch.nn.Module, dtype: str | torch.dtype, name: str
) -> torch.nn.Module:
    """Return a model in bfloat16 as float32 on a CPU that would emulate bfloat16, dozens of times
    slower; unless the user asked for bfloat16 by name."""
    weights = next(module.parameters(), None)
    if dtype != "auto" or weights is None or weights.dtype != torch.bfloat16:
        return module
    if weights.device.type != "cpu" or bfloat16_units() != "":
        return module
    log.warning(
        "%s is read in float32: this CPU has no bfloat16 units. dtype=bfloat16 would force it.",
        name,
    )
    return module.float()


@contextmanager
def quiet(bars: bool = False) -> Iterator[None]:
    """Show only errors of transformers; with `bars`, nothing at all on stderr (reading GGUF draws
    bars of its own)."""
    import transformers.utils.logging as hf

    # its advice on kernels for state-space models would break a progress bar
    logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
    level = hf.get_verbosity()
    has_bars = hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    silence = redirect_stderr(io.StringIO()) if bars else nullcontext()
    try:
        with warnings.catch_warnings(), silence:
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if has_bars:
            hf.enable_progress_bar()
