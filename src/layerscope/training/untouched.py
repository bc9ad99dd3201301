"""A model that is looked at in the middle of its training, and left exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part is in the mode it was in, and random numbers go on where they were."""
    modes = [(part, part.training) for part in module.modules()]
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        _usable_again(module)


def _usable_again(module: nn.Module) -> None:
    """Buffers that a forward pass made anew in inference mode (caches, say) could not be used in training: copy them."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_inference():
                part._buffers[name] = buffer.clone()


def bare(module: nn.Module) -> nn.Module:
    """The model inside data-parallel and compiled wrappers: running it alone involves no other process and no graph."""
    seen = module
    while True:
        inner = getattr(seen, "_orig_mod", None)
        if inner is None and type(seen).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = seen.module
        if not isinstance(inner, nn.Module):
            return seen
        seen = inner
