"""Every way of turning a text's token states into one vector, at every site, in one pass.

A *kind* names what is kept: `POOLING/NORM` such as `mean/applied` or `last/raw`, `sink/NORM` (the
state of the largest token, from which means without it follow) and `POOLING-drop/NORM` (for
poolings other than means). Pooling runs over a text's *span*: the whole text, or the part that a
template reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.capture.batches import Batch
from layerscope.capture.hooks import Anatomy, Capture, apply_norm
from layerscope.capture.reduce import check_finite, stack_sites
from layerscope.core.sites import Site
from layerscope.core.templates import POOLINGS, SINK
from layerscope.metrics.tokens import largest_token, token_norms

_DROP = "-drop"


@dataclass(frozen=True)
class _Kind:
    """A pooling, or the state of the sink token (`pooling` is then "sink"), under a norm."""

    pooling: str
    without_sink: bool
    is_normed: bool

    @classmethod
    def of(cls, kind: str) -> _Kind:
        name, norm = kind.split("/")
        return cls(name.removesuffix(_DROP), name.endswith(_DROP), norm == "applied")

    @property
    def needs_sink(self) -> bool:
        return self.without_sink or self.pooling == SINK


class Pooler(Capture):
    """Runs batches and keeps some kinds at every site; nothing of a site's states outlives its
    hook."""

    def __init__(self, anatomy: Anatomy, sites: Sequence[Site], kinds: Sequence[str]) -> None:
        self.kinds = {kind: _Kind.of(kind) for kind in kinds}
        is_normed = any(kind.is_normed for kind in self.kinds.values())
        super().__init__(anatomy, sites, "applied" if is_normed else "raw")

    def pool(
        self, batch: Batch, spans: Sequence[tuple[int, int]], forward: Callable[[Batch], Any]
    ) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
        """Return the vectors and numbers of one batch.

        `spans` gives the first and one past the last token to read of each text. The vectors {kind:
        (sites, texts, D) float32} are left on the device. The numbers are the spans' lengths
        `tokens` (texts,) and, where it is needed, where in the span each site's `sink` token is
        (−1: outside it).
        """
        at = torch.arange(batch.input_ids.shape[1])
        bounds = torch.tensor(list(spans))
        span = ((at >= bounds[:, :1]) & (at < bounds[:, 1:])).to(batch.input_ids.device)
        needs_sink = any(kind.needs_sink for kind in self.kinds.values())
        pooled: dict[int, Tensor] = {}
        sinks: dict[int, Tensor] = {}
        dtypes: set[torch.dtype] = set()

        def read(index: int, raw: Tensor, norm: nn.Module | None) -> None:
            dtypes.add(raw.dtype)
            states = {True: apply_norm(norm, raw), False: raw}
            if needs_sink:
                mask = None if batch.mask is None else batch.mask.to(raw.device)
                sinks[index] = largest_token(token_norms(raw), mask)
            vectors = [
                _pool(kind, states[kind.is_normed], span.to(raw.device), sinks.get(index))
                for kind in self.kinds.values()
            ]
            pooled[index] = torch.stack(vectors).float()

        self.run(lambda: forward(batch), read)
        stacked = stack_sites(pooled)  # a GPU is waited for once, not at every site
        check_finite(self.sites, stacked.transpose(1, 2).flatten(2), dtypes.pop())
        numbers = {"tokens": (bounds[:, 1] - bounds[:, 0]).numpy()}
        if needs_sink:
            places = stack_sites(sinks).cpu()
            is_inside = (places >= bounds[:, 0]) & (places < bounds[:, 1])
            numbers["sink"] = torch.where(is_inside, places - bounds[:, 0], -1).numpy()
        return {kind: stacked[:, i] for i, kind in enumerate(self.kinds)}, numbers


def _pool(kind: _Kind, states: Tensor, span: Tensor, sink: Tensor | None) -> Tensor:
    """Return one vector per text (B, D); sums are in float64 where the device has it."""
    exact = torch.float32 if states.device.type == "mps" else torch.float64
    rows = torch.arange(len(states), device=states.device)
    if kind.pooling == SINK:
        return states[rows, sink].to(exact)
    pooling = POOLINGS.get(kind.pooling)
    if pooling.position == "first":
        return states[:, 0].to(exact)
    if pooling.position == "last":
        return states[rows, span.shape[1] - 1 - span.flip(-1).to(torch.uint8).argmax(-1)].to(exact)
    if kind.without_sink and sink is not None:
        is_alone = span.sum(-1) == 1  # a span of the sink alone keeps it: there is nothing else
        without = span.scatter(-1, sink.unsqueeze(-1), False)
        span = torch.where(is_alone.unsqueeze(-1), span, without)
    if pooling.pool is not None:
        return pooling.pool(states, span).to(exact)
    assert pooling.weight is not None
    weights = span.to(exact)
    weights = weights * pooling.weight(weights.cumsum(-1))
    clean = torch.where(span.unsqueeze(-1), states, 0).to(exact)
    return torch.einsum("bt,btd->bd", weights, clean) / weights.sum(-1, keepdim=True)


def drop_sink(
    pooling: str, pooled: np.ndarray, sink_state: np.ndarray, tokens: np.ndarray, sink: np.ndarray
) -> np.ndarray:
    """Return a weighted mean without the sink token, from the mean with it: nothing more has to be
    stored.

    Where the sink lies outside the span, or is all there is of it, the mean stays as it is.
    """
    weight = POOLINGS.get(pooling).weight
    if weight is None:
        raise ValueError(f"{pooling!r} without the sink token does not follow from {pooling!r}")
    places = np.arange(1.0, tokens.max(initial=0) + 1)
    total = np.append(0.0, np.cumsum(weight(places) + 0 * places))[tokens]
    share = weight(np.maximum(sink, 0) + 1.0) + 0 * total
    whole = pooled.astype(np.float64)
    has_sink = (sink >= 0) & (tokens > 1)
    remaining = np.where(has_sink, total - share, 1.0)[:, None]
    dropped = (whole * total[:, None] - sink_state * share[:, None]) / remaining
    return np.where(has_sink[:, None], dropped, whole)
