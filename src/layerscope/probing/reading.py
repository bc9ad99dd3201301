"""Frozen states of all layers for some items: every token, or one vector, each reduced inside its own hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch, Capture, FinalNorm, Site
from layerscope.capture.reduce import non_finite_error
from layerscope.models import LoadedModel
from layerscope.probing.sources import Source
from layerscope.reading import BatchRunner

Kept = dict[str, Tensor]
Read = dict[str, tuple[Tensor, Tensor | None]]
POOLINGS = ("tokens", "mean", "summary")


class ModelReader:
    """Runs the model on items and keeps, per pooling, states (layers, items, tokens, D) in float32 on the model's device.

    `tokens`: the patches of an image, all tokens of a text. `mean`: their mean. `summary`: the class token where there is one,
    else the mean.
    """

    def __init__(
        self,
        model: LoadedModel,
        source: Source,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        poolings: Sequence[str],
        batch_size: int | None = None,
    ) -> None:
        self.model, self.source, self.sites, self.poolings = model, source, list(sites), list(poolings)
        self._runner = BatchRunner(model, batch_size)
        self._capture = Capture(model.anatomy, sites, final_norm, self._on_state)
        self._now: tuple[Batch, Tensor, Kept] | None = None

    def __enter__(self) -> Self:
        self._capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._capture.__exit__(None, None, None)

    def read_all(self, items: Sequence[int] | np.ndarray) -> Read:
        """Every pooling of some items, in the order given; runs in smaller batches where memory asks for it."""
        numbers = [int(i) for i in items]
        lengths = [self.source.lengths[i] for i in numbers]
        device, widest = self.model.device, max(lengths)
        shapes = {p: (len(self.sites), len(numbers), widest if p == "tokens" else 1, self.model.width) for p in self.poolings}
        # what lies beyond an item's tokens is masked, and must be finite for that
        room = torch.empty if min(lengths) == widest else torch.zeros
        out = {p: room(shape, device=device) for p, shape in shapes.items()}

        self._runner.run_lengths(
            lengths,
            lambda chosen: self.source.batch([numbers[i] for i in chosen]),
            lambda chosen, batch: self._run(chosen, batch, out),
        )
        self._check(out)
        ragged = min(lengths) < widest
        mask = torch.arange(widest) < torch.tensor(lengths)[:, None] if ragged else None
        mask = None if mask is None else mask.to(device)
        return {p: (states, mask if p == "tokens" else None) for p, states in out.items()}

    def _run(self, places: list[int], batch: Batch, out: Kept) -> None:
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
        for pooling, kept in out.items():
            if pooling == "tokens":
                kept[index, where, : tokens.shape[1]] = tokens if mask is None else torch.where(mask[..., None], tokens, 0)
            elif pooling == "summary" and self.source.has_class_token:
                kept[index, where, 0] = whole[:, 0]
            else:
                kept[index, where, 0] = _mean(tokens, mask)

    def _check(self, out: Kept) -> None:
        for states in out.values():
            if not bool(torch.isfinite(states).all()):
                bad = int((~torch.isfinite(states.flatten(1)).all(-1)).nonzero()[0])
                raise non_finite_error(self.sites[bad], states[bad].flatten(1), self._dtype())

    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.module.parameters() if p.is_floating_point()), torch.float32)


class OnePooling:
    """A reader of one pooling, for states that are computed whenever they are wanted."""

    def __init__(self, reader: ModelReader, pooling: str) -> None:
        self._reader, self._pooling = reader, pooling

    def read(self, items: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """States and mask."""
        return self._reader.read_all(items)[self._pooling]


def _mean(tokens: Tensor, mask: Tensor | None) -> Tensor:
    exact = tokens if tokens.device.type == "mps" else tokens.double()
    if mask is None:
        return exact.mean(1).float()
    return (torch.where(mask[..., None], exact, 0).sum(1) / mask.sum(1, keepdim=True)).float()
