"""Copies from a GPU to the host that neither waits for."""

from __future__ import annotations

import torch
from torch import Tensor


class Sent:
    """A tensor that is copied to the host after the work that computes it; the host waits in
    `get` only.

    A plain copy to the host would also wait for all work that was queued later.

    >>> Sent(torch.tensor([1.0, 2.0])).get().tolist()
    [1.0, 2.0]
    """

    def __init__(self, tensor: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if tensor.is_cuda:
            source = tensor
            tensor = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            tensor.copy_(source, non_blocking=True)
            self._done = torch.cuda.current_stream(source.device).record_event()
        self._copy = tensor

    def get(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._done is not None:
            self._done.synchronize()
            self._done = None
        return self._copy
