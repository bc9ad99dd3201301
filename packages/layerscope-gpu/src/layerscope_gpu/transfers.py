"""Copies between the host and a GPU that neither waits for."""

from __future__ import annotations

import torch
from torch import Tensor


class Sent:
    """A tensor on its way to the host, behind the work that makes it: the host waits only when it
    asks for it.

    A plain copy to the host would wait for all that a GPU has been given since.

    >>> Sent(torch.tensor([1.0, 2.0])).get().tolist()
    [1.0, 2.0]
    """

    def __init__(self, tensor: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if tensor.is_cuda:
            there = tensor
            tensor = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            tensor.copy_(there, non_blocking=True)
            self._done = torch.cuda.current_stream(there.device).record_event()
        self._here = tensor

    def get(self) -> Tensor:
        """Return the tensor, when it is here."""
        if self._done is not None:
            self._done.synchronize()
            self._done = None
        return self._here
