"""A training that was stopped, on disk: parameters and moments as safetensors, what was seen on the validation part as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.probing.training import Phase
from layerscope.store import atomic

_TENSORS = ("parameters", "first", "second", "best")
_ARRAYS = ("rates", "live", "accuracy", "loss", "at", "stopped")


def write_phase(file: Path, phase: Phase) -> None:
    """Write a training after an epoch; the file is whole or not there."""
    from safetensors.torch import save

    tensors = {f"{group}/{name}": v.cpu().contiguous() for group in _TENSORS for name, v in getattr(phase, group).items()}
    tensors |= {f"seen/{name}": torch.from_numpy(np.ascontiguousarray(getattr(phase, name))) for name in _ARRAYS}
    told = {"trial": json.dumps(phase.trial), "epoch": str(phase.epoch), "seconds": str(phase.seconds)}
    atomic.write(file, lambda stream: stream.write(save(tensors, metadata=told)))


def read_phase(file: Path, device: torch.device) -> Phase | None:
    """The training that an earlier attempt left, or None."""
    from safetensors import safe_open

    if not file.exists():
        return None
    with safe_open(file, framework="pt") as held:
        told = held.metadata()
        tensors = {key: held.get_tensor(key) for key in held.keys()}  # noqa: SIM118 - not a mapping
    groups: dict[str, dict[str, torch.Tensor]] = {group: {} for group in _TENSORS}
    for key, value in tensors.items():
        group, name = key.split("/", 1)
        if group in groups:
            groups[group][name] = value.to(device)
    arrays = {name: tensors[f"seen/{name}"].numpy().copy() for name in _ARRAYS}
    held_values: dict[str, Any] = {**groups, **arrays}
    return Phase(trial=json.loads(told["trial"]), epoch=int(told["epoch"]), seconds=float(told["seconds"]), **held_values)
