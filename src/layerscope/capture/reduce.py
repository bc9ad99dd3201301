"""What is kept of each site's states: a pooled vector per text and a few numbers per prompt. Runs inside the hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture.anatomy import Anatomy
from layerscope.capture.batches import Batch
from layerscope.capture.hooks import Capture, FinalNorm
from layerscope.capture.sites import Site
from layerscope.errors import NonFiniteStatesError
from layerscope.metrics.options import Options
from layerscope.metrics.tokens import find_sink, measure_tokens

TOKEN_FIELDS = ("entropy_keep", "entropy_drop", "curvature_keep", "curvature_drop", "flat", "sink_ratio", "sink_position")


@dataclass(frozen=True)
class Reduced:
    """One batch, reduced: `pooled` (sites, texts, D) float32, and per-prompt `tokens` fields (sites, texts), or none."""

    pooled: np.ndarray
    tokens: dict[str, np.ndarray]


class Reducer:
    """Runs batches through a model and keeps, at every site, the mean-pooled vector and the token measures.

    The extra memory is a small constant number of one site's states: each hook reduces what it is given and lets it go.
    The sink token is found on the states without the final norm, which would hide it.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        options: Options,
        *,
        entropy: bool = True,
        curvature: bool = True,
    ) -> None:
        self.sites, self.options = list(sites), options
        self.entropy, self.curvature = entropy, curvature
        self._capture = Capture(anatomy, sites, final_norm, self._on_state)
        self._batch: Batch | None = None
        self._token_level = False
        self._pooled: dict[int, Tensor] = {}
        self._tokens: dict[int, Tensor] = {}

    def __enter__(self) -> Reducer:
        self._capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._capture.__exit__(None, None, None)

    def run(self, batch: Batch, forward: Callable[[Batch], Any], token_level: bool) -> Reduced:
        """Reduce one batch; `forward(batch)` runs the model. `token_level` asks for the per-prompt measures as well."""
        self._batch, self._token_level = batch, token_level
        self._pooled, self._tokens = {}, {}
        try:
            self._capture.run(lambda: forward(batch))
            pooled = _stacked(self._pooled).astype(np.float32)
            fields = _stacked(self._tokens) if self._tokens else np.empty((0, 0, 0))
        finally:
            self._batch = None
            self._pooled, self._tokens = {}, {}
        return Reduced(pooled, {name: fields[:, i] for i, name in enumerate(TOKEN_FIELDS)} if fields.size else {})

    def _on_state(self, index: int, raw: Tensor, state: Tensor) -> None:
        batch = self._batch
        assert batch is not None
        if raw.device.type == "mps":  # float64 does not exist there
            raw, state = raw.cpu(), state.cpu()
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        lengths = torch.tensor(batch.lengths, device=raw.device, dtype=torch.float64)
        kept = state if mask is None else torch.where(mask.unsqueeze(-1), state, 0)
        pooled = kept.sum(1, dtype=torch.float64) / lengths.unsqueeze(-1)
        if not bool(torch.isfinite(pooled).all()):
            raise non_finite_error(self.sites[index], pooled, state.dtype)
        self._pooled[index] = pooled
        if self._token_level:
            self._tokens[index] = self._measure(raw, state, mask)

    def _measure(self, raw: Tensor, state: Tensor, mask: Tensor | None) -> Tensor:
        sink = find_sink(raw, mask)
        measures = measure_tokens(state, mask, sink, self.options, entropy=self.entropy, curvature=self.curvature)
        nothing = torch.full_like(sink.ratio, torch.nan)
        first = torch.zeros_like(sink.position) if mask is None else mask.to(torch.uint8).argmax(-1)
        columns = [
            measures.entropy.get("keep", nothing),
            measures.entropy.get("drop", nothing),
            measures.curvature.get("keep", nothing),
            measures.curvature.get("drop", nothing),
            measures.flat.double(),
            sink.ratio,
            (sink.position - first).double(),
        ]
        return torch.stack(columns)


def non_finite_error(site: Site, pooled: Tensor, dtype: torch.dtype) -> NonFiniteStatesError:
    """What to say about NaN or infinity in the states of a site; `pooled` has a row per text."""
    bad = int((~torch.isfinite(pooled).all(-1)).sum())
    kind = "NaN" if bool(torch.isnan(pooled).any()) else "infinite values"
    where = f"{site.name} (layer {site.layer}, {str(dtype).removeprefix('torch.')})"
    hint = "float16 overflows in many models: use --dtype bfloat16 or float32." if dtype == torch.float16 else ""
    return NonFiniteStatesError(
        f"{kind} in the states at {where} for {bad} of {len(pooled)} texts in a batch. "
        + (hint or "The weights may be damaged: check the model, or read layers before this one with --sites.")
    )


def _stacked(by_site: dict[int, Tensor]) -> np.ndarray:
    """Tensors of all sites as one array; sites of a model spread over devices meet on the CPU."""
    return torch.stack([by_site[i].cpu() for i in range(len(by_site))]).numpy()
