"""Replace the `forward` of modules for a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def replace_forwards(
    modules: Iterable[nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    """Use `wrap(module)` as the `forward` of each module inside a block.

    A module whose `forward` is replaced already, by another thread, is left as it is.
    """
    replaced = [module for module in modules if "forward" not in vars(module)]
    for module in replaced:
        module.forward = wrap(module)
    try:
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)
