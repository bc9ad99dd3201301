"""Every way of turning a text's token states into one vector, at every site, in one pass.

A *kind* names what is kept: `POOLING/NORM` such as `mean/applied` or `last/raw`, `sink/NORM` (the
state of the largest token, from which means without it follow) and `POOLING-drop/NORM` (for
poolings other than means). Pooling runs over a text's *span*: the whole text, or the part that a
template reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture.anatomy import Anatomy
from layerscope.capture.batches import Batch
from layerscope.capture.hooks import Capture, Reduction
from layerscope.capture.reduce import check_finite, stack_sites
from layerscope.core.poolings import POOLINGS, SINK, Pooling
from layerscope.core.sites import Site
from layerscope.metrics.tokens.norms import find_sink


class Pooler(Reduction):
    """Runs batches and keeps the wanted kinds at every site; nothing of a site's states outlives
    its hook.

    `run` returns vectors {kind: (sites, texts, D) float32}, left on the device, and numbers: the
    span's length (texts,) and, per site, where in the span the sink token is (−1: outside it).
    """

    def __init__(self, anatomy: Anatomy, sites: Sequence[Site], kinds: Sequence[str]) -> None:
        self.sites, self.kinds = list(sites), list(kinds)
        self._parts = [tuple(kind.split("/")) for kind in kinds]
        normed = any(norm == "applied" for _, norm in self._parts)
        named = {what: what.removesuffix("-drop") for what, _ in self._parts}
        self._poolings = {
            what: None if what == SINK else POOLINGS.get(name) for what, name in named.items()
        }
        self._needs_sink = any(what == SINK or what != name for what, name in named.items())
        self._capture = Capture(anatomy, sites, "applied" if normed else "raw", self._on_state)
        self._batch: Batch | None = None
        self._span, self._dtype = torch.empty(0), torch.float32
        self._pooled: dict[int, Tensor] = {}
        self._sinks: dict[int, Tensor] = {}

    def run(
        self, batch: Batch, spans: Sequence[tuple[int, int]], forward: Callable[[Batch], Any]
    ) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
        """Pool one batch; `spans` gives the first and one past the last token to read of each
        text."""
        width = batch.input_ids.shape[1]
        at = torch.arange(width)
        bounds = torch.tensor(list(spans))
        self._span = ((at >= bounds[:, :1]) & (at < bounds[:, 1:])).to(batch.input_ids.device)
        self._batch, self._pooled, self._sinks = batch, {}, {}
        try:
            self._capture.run(lambda: forward(batch))
            stacked = stack_sites(self._pooled)  # a GPU is waited for once, not at every site
            if not bool(torch.isfinite(stacked).all()):
                check_finite(self.sites, stacked.transpose(1, 2).flatten(2), self._dtype)
            numbers = {"tokens": (bounds[:, 1] - bounds[:, 0]).numpy()}
            if self._needs_sink:
                sinks = stack_sites(self._sinks).cpu()
                inside = (sinks >= bounds[:, 0]) & (sinks < bounds[:, 1])
                numbers["sink"] = torch.where(inside, sinks - bounds[:, 0], -1).numpy()
        finally:
            self._batch, self._pooled, self._sinks = None, {}, {}
        return {kind: stacked[:, i] for i, kind in enumerate(self.kinds)}, numbers

    def _on_state(self, index: int, raw: Tensor, normed: Tensor) -> None:
        batch = self._batch
        assert batch is not None
        span = self._span.to(raw.device)
        sink = None
        if self._needs_sink:
            sink = find_sink(
                raw, None if batch.mask is None else batch.mask.to(raw.device)
            ).position
            self._sinks[index] = sink
        states = {"raw": raw, "applied": normed}
        pooled = torch.stack(
            [
                _pool(what, self._poolings[what], states[norm], span, sink)
                for what, norm in self._parts
            ]
        )
        self._pooled[index], self._dtype = pooled.float(), raw.dtype


def _pool(
    what: str, pooling: Pooling | None, states: Tensor, span: Tensor, sink: Tensor | None
) -> Tensor:
    """One vector per text (B, D); sums in float64 where the device has it."""
    exact = torch.float32 if states.device.type == "mps" else torch.float64
    rows = torch.arange(len(states), device=states.device)
    if pooling is None:
        assert sink is not None
        return states[rows, sink].to(exact)
    if pooling.position == "first":
        return states[:, 0].to(exact)
    if pooling.position == "last":
        return states[rows, span.shape[1] - 1 - span.flip(-1).to(torch.uint8).argmax(-1)].to(exact)
    if what != pooling.name:
        assert sink is not None
        only = span.sum(-1) == 1  # a span of the sink alone keeps it: there is nothing else
        span = torch.where(only.unsqueeze(-1), span, span.scatter(-1, sink.unsqueeze(-1), False))
    if pooling.pool is not None:
        return pooling.pool(states, span).to(exact)
    assert pooling.weight is not None
    weights = span.to(exact)
    weights = weights * pooling.weight(weights.cumsum(-1))
    clean = torch.where(span.unsqueeze(-1), states, 0).to(exact)
    return torch.einsum("bt,btd->bd", weights, clean) / weights.sum(-1, keepdim=True)


def drop_sink(
    what: str, pooled: np.ndarray, sink_state: np.ndarray, tokens: np.ndarray, sink: np.ndarray
) -> np.ndarray:
    """A weighted mean without the sink token, from the mean with it: nothing more has to be stored.

    Where the sink lies outside the span, or is all there is of it, the mean stays as it is.
    """
    weight = POOLINGS.get(what).weight
    if weight is None:
        raise ValueError(f"{what!r} without the sink token does not follow from {what!r} with it")
    places = np.arange(1.0, tokens.max(initial=0) + 1)
    total = np.append(0.0, np.cumsum(weight(places) + 0 * places))[tokens]
    part = weight(np.maximum(sink, 0) + 1.0) + 0 * total
    whole = pooled.astype(np.float64)
    use = (sink >= 0) & (tokens > 1)
    rest = np.where(use, total - part, 1.0)[:, None]
    return np.where(
        use[:, None], (whole * total[:, None] - sink_state * part[:, None]) / rest, whole
    )
