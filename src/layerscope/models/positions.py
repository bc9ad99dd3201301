"""Whether a row holds several texts, asked once per length instead of in every pass.

transformers tells texts that are packed into one row by their positions, which start again. It looks for that on the GPU in every
pass without a mask, and the host waits for the answer. While it waits it queues no work: on an H200 that took 2 % of a profile. A
model that makes one row of positions for all texts makes them from their length alone, so the answer for a length is remembered.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import Tensor, nn

_HOME, _NAME = "transformers.masking_utils", "find_packed_sequence_indices"

_plain: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()  # lengths at which a model's positions do not start again


@contextmanager
def remembered_positions(module: nn.Module) -> Iterator[None]:
    """While this is open, passes of a module in this thread ask for a length once."""
    home = sys.modules.get(_HOME)
    own = getattr(home, _NAME, None)
    if own is None or isinstance(own, _Remembering):  # or another thread has replaced it
        yield
        return
    setattr(home, _NAME, _Remembering(own, _plain.setdefault(module, set())))
    try:
        yield
    finally:
        setattr(home, _NAME, own)


class _Remembering:
    """transformers' own function, or what it has said before."""

    def __init__(self, own: Callable[[Tensor], Tensor | None], plain: set[int]) -> None:
        self.own, self.plain, self.thread = own, plain, threading.get_ident()

    def __call__(self, position_ids: Tensor) -> Tensor | None:
        if threading.get_ident() != self.thread or not _is_one_row(position_ids):
            return self.own(position_ids)
        length = position_ids.shape[1]
        if length in self.plain:
            return None
        found = self.own(position_ids)
        if found is None:
            self.plain.add(length)
        return found


def _is_one_row(position_ids: Tensor) -> bool:
    """Whether several texts have the same positions, in the same memory: then they were made without looking at the texts."""
    return position_ids.ndim == 2 and position_ids.shape[0] > 1 and position_ids.stride(0) == 0
