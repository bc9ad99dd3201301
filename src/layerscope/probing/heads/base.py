"""What a trained probe is: parameters with leading dimensions (layers, learning rates), and how states become class scores.

Every layer and every learning rate has parameters of its own; one set of matrix products runs them all. Layers share no
parameter and no statistic, so the gradient of one never reaches another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Generator, Tensor

Parameters = dict[str, Tensor]


class Head(ABC):
    """One kind of trained probe. A new kind is a new file in this folder with `HEAD = ItsClass`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    pooling: ClassVar[str]
    """What of an item's states it reads: `tokens`, or one vector: `mean` or `summary` (the class token where there is one)."""

    def __init__(self, width: int, heads: int, classes: int) -> None:
        self.width, self.heads, self.classes = width, heads, classes

    @abstractmethod
    def start(self, generator: Generator) -> Parameters:
        """The parameters of one probe at the start; every layer and learning rate begins with the same ones."""

    @abstractmethod
    def scores(self, parameters: Parameters, states: Tensor, mask: Tensor | None, mean: Tensor, scale: Tensor) -> Tensor:
        """Class scores (G, B, R, C) of states (G, B, N, D) under parameters (G, R, …).

        `mask` (B, N) is True at tokens that exist. `mean` and `scale` (G, D) standardise the states: a batch norm without
        weights of its own, whose statistics are those of the whole training split.
        """

    def count(self) -> int:
        """Number of parameters of one probe."""
        return sum(value.numel() for value in self.start(Generator()).values())
