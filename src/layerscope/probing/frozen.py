"""Frozen states of all layers for labeled items: every token, or one vector, each reduced
inside its own hook.

A source turns items into batches for one model; a reader runs them here, or an engine's workers
each read parts of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch, Capture, FinalNorm, Site
from layerscope.capture.hooks import Reduction
from layerscope.capture.reduce import check_finite
from layerscope.data.items import Items
from layerscope.data.kinds import get_kind
from layerscope.engines import Engine
from layerscope.engines.base import Advance, ModelRecipe, Work
from layerscope.forward import BatchRunner
from layerscope.models import LoadedModel
from layerscope.models.inputs import ReadSettings

DEFAULT_MAX_LENGTH = 128


class ModelItems:
    """Items of any kind as the model itself reads them: texts cut to `max_length` tokens.

    The class token is the first one of models that see both ways and have such a token. `lengths`
    are the tokens that are read of each item.
    """

    def __init__(
        self, model: LoadedModel, items: Items, max_length: int = DEFAULT_MAX_LENGTH
    ) -> None:
        self._model = model
        self._reader = model.open_items(
            items, ReadSettings(max_length, get_kind(items.kind).defaults)
        )
        self._part = self._reader.survey(np.arange(len(items)))
        self.lengths = np.maximum(self._part.lengths, 1).tolist()
        self.has_class_token = self._reader.has_class_token

    def batch(self, items: Sequence[int]) -> Batch:
        """Some items as one batch; an item without a token still needs a state."""
        planned = self._part.rows
        rows = self._reader.read(items) if planned is None else [planned[i] for i in items]
        return self._model.make_batch([row if len(row) else [self._model.pad_id] for row in rows])

    def facts(self) -> dict[str, Any]:
        """Return what is read of each item, how many were cut, and what was left out."""
        return self._reader.facts(self._part)

    def close(self) -> None:
        """End the processes that read items."""
        self._reader.close()


_Pooled = dict[str, Tensor]

ItemStates = dict[str, tuple[Tensor, Tensor | None]]
"""States (layers, items, tokens, D) by pooling, each with the mask of tokens (items, tokens)."""


class ModelReader(Reduction):
    """Runs the model on items and keeps, per pooling, states (layers, items, tokens, D) in float32
    on the model's device.

    `tokens`: all tokens that are read of an item. `mean`: their mean. `summary`: the
    class token where there is one, else the mean.
    """

    def __init__(
        self,
        model: LoadedModel,
        source: ModelItems,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        poolings: Sequence[str],
        batch_size: int | None = None,
        items: np.ndarray | None = None,
    ) -> None:
        """`items` are those of the source that are read, numbered from 0 in this order; None: all
        of them."""
        self.model, self.source = model, source
        self.sites, self.poolings = list(sites), list(poolings)
        self.items = np.arange(len(source.lengths)) if items is None else items
        self.lengths = [source.lengths[i] for i in self.items]
        self._runner = BatchRunner(model, batch_size)
        self._capture = Capture(model.anatomy, sites, final_norm, self._on_state)
        self._now: tuple[Batch, Tensor, _Pooled] | None = None

    def read_parts(self, parts: list[np.ndarray], poolings: Sequence[str]) -> Iterator[ItemStates]:
        """Yield the states of parts of the items, in the order of the parts."""
        for part in parts:
            yield self.read_all(part, poolings)

    def read_all(
        self, items: Sequence[int] | np.ndarray, poolings: Sequence[str] | None = None
    ) -> ItemStates:
        """Return poolings of some items, in the order given; runs in smaller batches where memory
        asks for it."""
        numbers, lengths = [int(self.items[i]) for i in items], [self.lengths[i] for i in items]
        device, widest = self.model.device, max(lengths)
        shapes = {
            p: (len(self.sites), len(numbers), widest if p == "tokens" else 1, self.model.width)
            for p in (self.poolings if poolings is None else poolings)
        }
        # what lies beyond an item's tokens is masked, and must be finite for that
        room = torch.empty if min(lengths) == widest else torch.zeros
        out = {p: room(shape, device=device) for p, shape in shapes.items()}

        self._runner.run_lengths(
            lengths,
            lambda chosen: self.source.batch([numbers[i] for i in chosen]),
            lambda chosen, batch: self._run(chosen, batch, out),
        )
        for states in out.values():
            check_finite(self.sites, states.flatten(2), self.model.dtype)
        ragged = min(lengths) < widest
        mask = torch.arange(widest) < torch.tensor(lengths)[:, None] if ragged else None
        mask = None if mask is None else mask.to(device)
        return {p: (states, mask if p == "tokens" else None) for p, states in out.items()}

    def _run(self, places: list[int], batch: Batch, out: _Pooled) -> None:
        self._now = (batch, torch.tensor(places, device=self.model.device), out)
        try:
            self._capture.run(lambda: self.model.run(batch))
        finally:
            self._now = None

    def _on_state(self, index: int, raw: Tensor, state: Tensor) -> None:
        assert self._now is not None
        batch, where, out = self._now
        whole = state.to(where.device).float()
        tokens = whole[:, batch.skip :]
        mask = None if batch.mask is None else batch.mask.to(where.device)
        for pooling, target in out.items():
            if pooling == "tokens":
                target[index, where, : tokens.shape[1]] = (
                    tokens if mask is None else torch.where(mask[..., None], tokens, 0)
                )
            elif pooling == "summary" and self.source.has_class_token:
                target[index, where, 0] = whole[:, 0]
            else:
                target[index, where, 0] = _mean(tokens, mask)


def _mean(tokens: Tensor, mask: Tensor | None) -> Tensor:
    exact = tokens if tokens.device.type == "mps" else tokens.double()
    if mask is None:
        return exact.mean(1).float()
    return (torch.where(mask[..., None], exact, 0).sum(1) / mask.sum(1, keepdim=True)).float()


Parts = Callable[[list[np.ndarray], Sequence[str]], Iterator[ItemStates]]
"""States of parts of the items, in the order of the parts, under some poolings."""


class ReadWork(Work[np.ndarray, dict[str, np.ndarray]]):
    """The numbers of some items in, their states by pooling out."""

    def __init__(
        self,
        recipe: ModelRecipe,
        items: Items,
        max_length: int,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        poolings: Sequence[str],
        batch_size: int | None,
    ) -> None:
        self.recipe, self.items, self.max_length = recipe, items.packed(), max_length
        self.settings = (list(sites), final_norm, list(poolings), batch_size)
        self.memory = recipe.memory

    def open(self) -> None:
        """Load the model and open the items."""
        model = self.recipe.open()
        self.device = model.device.type
        self._source = ModelItems(model, self.items, self.max_length)
        self._reader = ModelReader(model, self._source, *self.settings)
        self._reader.__enter__()

    def run(
        self, item: np.ndarray, prepared: Any, advance: Advance, common: Any
    ) -> dict[str, np.ndarray]:
        """States of a part."""
        found = self._reader.read_all(item)
        advance(len(item))
        return {pooling: states.cpu().numpy() for pooling, (states, _) in found.items()}

    def close(self) -> None:
        """Remove the hooks; close what was opened."""
        self._reader.__exit__(None, None, None)
        self._source.close()

    def name(self, item: np.ndarray) -> str:
        """Return the number of items and the first of them, in words."""
        return f"a part of {len(item)} items (the first: number {int(item[0])})"


def read_by_workers(
    engine: Engine, work: ReadWork, parts: Sequence[np.ndarray]
) -> Iterator[ItemStates]:
    """Yield the states of parts, in their order: one that is done early waits for those before
    it."""
    early: dict[int, dict[str, np.ndarray]] = {}
    following = 0
    for i, states in engine.run(work, parts):
        early[i] = states
        while following in early:
            arrays = early.pop(following)
            yield {name: (torch.from_numpy(array.copy()), None) for name, array in arrays.items()}
            following += 1
