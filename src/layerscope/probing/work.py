"""States of items as work for many workers: each holds the model, and reads whole parts of the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from layerscope.capture import FinalNorm, Site
from layerscope.data.items import PackedTexts
from layerscope.engines import Engine
from layerscope.engines.base import Advance, Work
from layerscope.engines.recipe import ModelRecipe
from layerscope.models import LoadedModel
from layerscope.probing.reading import ModelReader, Read
from layerscope.probing.sources import Source

Parts = Callable[[list[np.ndarray], Sequence[str]], Iterator[Read]]
"""States of parts of the items, in the order of the parts, under some poolings."""


class ReadWork(Work[np.ndarray, dict[str, np.ndarray]]):
    """The numbers of some items in, their states by pooling out."""

    def __init__(
        self,
        recipe: ModelRecipe,
        items: Any,
        make_source: Callable[[LoadedModel, Any], Source],
        sites: Sequence[Site],
        final_norm: FinalNorm,
        poolings: Sequence[str],
        batch_size: int | None,
    ) -> None:
        self.recipe, self.items, self.make_source = (
            recipe,
            PackedTexts(items) if isinstance(items, (list, tuple)) else items,
            make_source,
        )
        self.sites, self.final_norm, self.poolings, self.batch_size = list(sites), final_norm, list(poolings), batch_size
        self.memory = recipe.memory

    def open(self) -> None:
        """Load the model and open the items."""
        model = self.recipe.open()
        self._source = self.make_source(model, self.items)
        self._reader = ModelReader(model, self._source, self.sites, self.final_norm, self.poolings, self.batch_size)
        self._reader.__enter__()

    def run(self, item: np.ndarray, prepared: Any, advance: Advance, common: Any) -> dict[str, np.ndarray]:
        """States of a part."""
        found = self._reader.read_all(item)
        advance(len(item))
        return {pooling: states.cpu().numpy() for pooling, (states, _) in found.items()}

    def close(self) -> None:
        """Remove the hooks; close what was opened."""
        self._reader.__exit__(None, None, None)
        self._source.close()

    def name(self, item: np.ndarray) -> str:
        """How many items, and the first of them."""
        return f"a part of {len(item)} items (the first: number {int(item[0])})"


def read_by_workers(engine: Engine, work: ReadWork, parts: Sequence[np.ndarray], advance: Advance) -> Iterator[Read]:
    """States of parts, in their order: one that is done early waits for those before it."""
    early: dict[int, dict[str, np.ndarray]] = {}
    wanted = 0
    for i, states in engine.run(work, parts, advance):
        early[i] = states
        while wanted in early:
            yield {pooling: (torch.from_numpy(array.copy()), None) for pooling, array in early.pop(wanted).items()}
            wanted += 1
