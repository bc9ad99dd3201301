"""The reduction of each site's states to a pooled vector per text and a few numbers per prompt,
inside the hooks.

One Gram matrix per prompt serves all built-in token metrics. Any other token metric is measured by
its own `measure`, on the states that the site gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope import accelerator
from layerscope.capture.batches import Batch, is_out_of_memory
from layerscope.capture.hooks import Anatomy, Capture, FinalNorm, apply_norm
from layerscope.core.plugins import PluginError
from layerscope.core.sites import Site
from layerscope.errors import NonFiniteStatesError
from layerscope.metrics.base import Metric
from layerscope.metrics.registry import measured_values
from layerscope.metrics.tokens import (
    TOGETHER,
    TOKEN_FIELDS,
    PreparedTokens,
    field_of,
    full_mask,
    largest_token,
    prepare_tokens,
    sink_ratio,
    token_entropies,
    token_norms,
    token_sum,
    without_token,
)
from layerscope.metrics.vectors import Options
from layerscope.spectra import map_concurrently

__all__ = ["BatchReduction", "ReducedTensors", "Reducer", "check_finite", "stack_fields"]

# texts of a batch on a CPU, at least, where each thread reduces a part of the texts
_TEXTS_PER_THREAD = 2


@dataclass(frozen=True)
class Reduced:
    """One batch, reduced: `pooled` (sites, texts, D) float32, and per-prompt `tokens` fields
    (sites, texts), or none."""

    pooled: np.ndarray
    tokens: dict[str, np.ndarray]


@dataclass(frozen=True)
class ReducedTensors:
    """A `Reduced` batch, still on its device: `pooled` (sites, texts, D) float32, `tokens` (fields,
    sites, texts) float64.

    On a GPU the work may still be running, and nothing has been checked for NaN or infinity (see
    `Reducer.check`).
    """

    pooled: Tensor
    tokens: Tensor | None


class Reducer(Capture):
    """Runs batches through a model and keeps, at every site, the mean-pooled vector and what the
    metrics measure of the tokens.

    The extra memory is a small constant number of one site's states: each hook reduces what it is
    given and lets it go. `measured` are token metrics with a `measure` of their own; `fields` names
    the rows of the token measures. Without `metrics`, the built-in ones are measured.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        options: Options,
        metrics: Sequence[Metric] | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(anatomy, sites, final_norm)
        self.options = options
        names = TOGETHER if metrics is None else [metric.info.name for metric in metrics]
        self.entropy = "prompt_entropy" in names
        self.curvature = "curvature" in names
        self.measured = [
            metric
            for metric in metrics or ()
            if metric.measure is not None and metric.info.name not in TOGETHER
        ]
        fields = [field_of(m.info.name, sink) for m in self.measured for sink in m.info.sinks]
        self.fields = (*TOKEN_FIELDS, *fields)
        gpu = None if device is None else accelerator.on(device)
        self.reduction: type[BatchReduction] = BatchReduction if gpu is None else gpu.reduction()

    def measure(
        self, batch: Batch, forward: Callable[[Batch], Any], token_level: bool = True
    ) -> Reduced:
        """Reduce and check one batch; `forward(batch)` runs the model.

        `token_level` asks for the per-prompt measures as well.
        """
        reduced = self.reduce(batch, forward, token_level)
        self.check(reduced.pooled)
        pooled = reduced.pooled.cpu().numpy()
        if reduced.tokens is None:
            return Reduced(pooled, {})
        return Reduced(pooled, dict(zip(self.fields, reduced.tokens.cpu().numpy(), strict=True)))

    def reduce(
        self, batch: Batch, forward: Callable[[Batch], Any], token_level: bool
    ) -> ReducedTensors:
        """Reduce one batch on the device: on a GPU this returns before the work is done."""
        reduction = self.reduction(self, batch, token_level)
        self.run(lambda: forward(batch), reduction.read)
        with torch.inference_mode():
            return reduction.finish()

    def check(self, pooled: Tensor) -> None:
        """Raise `NonFiniteStatesError` for the first site whose vectors (sites, …, D) are not
        finite. Waits for the device."""
        parameter = next(self.anatomy.blocks[0].parameters(), pooled)
        check_finite(self.sites, pooled, parameter.dtype)


class BatchReduction:
    """The states of one batch, reduced site by site: `read` is called inside the hooks.

    The sink token is found on the states without the final norm, which would hide it.
    """

    def __init__(self, reducer: Reducer, batch: Batch, token_level: bool) -> None:
        self.reducer = reducer
        self.batch = batch
        self.token_level = token_level
        self.pooled: dict[int, Tensor] = {}
        self.tokens: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}  # of the metrics in `measured`

    def read(self, index: int, raw: Tensor, norm: nn.Module | None) -> None:
        """Reduce the states of a site."""
        if raw.device.type == "mps":  # float64 does not exist there
            raw = raw.cpu()
        states = raw[:, self.batch.skip :]
        mask = None if self.batch.mask is None else self.batch.mask.to(raw.device)
        self.reduce_site(index, states, mask, norm)
        if self.batch.pool_class:
            self.pooled[index] = apply_norm(norm, raw[:, :1])[:, 0].float()
        if self.token_level and self.reducer.measured:
            self._own[index] = self._measure_own(index, states, mask, norm)

    def reduce_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> None:
        """Keep a site's means and token measures: a part of the texts on each core.

        Inside one text's matrices threads would spend their time waiting for each other (see
        `map_concurrently`).
        """
        threads = torch.get_num_threads()
        if len(raw) < _TEXTS_PER_THREAD * threads:
            threads = 1
        masks = [None] * threads if mask is None else mask.tensor_split(threads)
        shares = list(zip(raw.tensor_split(threads), masks, strict=True))
        if threads == 1:
            reduced = [self.reduce_texts(raw, mask, norm)]
        else:
            reduced = list(
                map_concurrently("states", lambda share: self.reduce_texts(*share, norm), shares)
            )
        self.keep_mean(index, raw, mask, torch.cat([total for total, _ in reduced]))
        check_finite(
            self.reducer.sites[index : index + 1], self.pooled[index].unsqueeze(0), raw.dtype
        )
        if self.token_level:
            self.tokens[index] = torch.cat([fields for _, fields in reduced], dim=1)

    def reduce_texts(
        self, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Return sums over the tokens of some texts (texts, D), and their fields (fields, texts).

        There are no fields where only vectors are asked for, or a sum is not finite.
        """
        with torch.inference_mode():
            state = apply_norm(norm, raw)
            total = token_sum(state, mask)
            if not self.token_level or not bool(torch.isfinite(total).all()):
                return total, total.new_empty(len(TOKEN_FIELDS), 0)
            norms = token_norms(raw)
            sink = largest_token(norms, mask)
            reducer = self.reducer
            prepared = prepare_tokens(
                state,
                mask,
                sink,
                reducer.options,
                entropy=reducer.entropy,
                curvature=reducer.curvature,
                total=total,
            )
            entropies = token_entropies(prepared, reducer.options)
            ratio = sink_ratio(norms, sink, mask)
            return total, stack_fields(entropies, prepared, ratio, sink, mask)

    def keep_mean(self, index: int, raw: Tensor, mask: Tensor | None, total: Tensor) -> None:
        """Keep a site's mean vectors from the sums over tokens."""
        count = raw.shape[1] if mask is None else mask.sum(-1, keepdim=True)
        self.pooled[index] = (total / count).float()

    def finish(self) -> ReducedTensors:
        """Return what was kept of all sites."""
        pooled = stack_sites(self.pooled)
        if not self.tokens:
            return ReducedTensors(pooled, None)
        tokens = stack_sites(self.tokens)
        if self._own:
            tokens = torch.cat([tokens, stack_sites(self._own).to(tokens.device)], dim=1)
        return ReducedTensors(pooled, tokens.transpose(0, 1))

    def _measure_own(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> Tensor:
        """Return the values (fields, texts) of the token metrics that have a `measure`, which gets
        half-precision states as float32."""
        real = full_mask(raw) if mask is None else mask
        masks = {"keep": real, "drop": without_token(real, largest_token(token_norms(raw), mask))}
        before = raw if raw.dtype == torch.float64 else raw.float()
        normed = apply_norm(norm, raw)
        after = normed if normed.dtype == torch.float64 else normed.float()
        site = self.reducer.sites[index].name
        values = []
        for metric in self.reducer.measured:
            states = before if metric.before_final_norm else after
            for sink in metric.info.sinks:
                try:
                    measured = measured_values(metric, states, masks[sink], self.reducer.options)
                except Exception as error:
                    if is_out_of_memory(error):  # the batch is split and tried again
                        raise
                    raise PluginError(
                        f"metric {metric.info.name!r} failed at {site}: {type(error).__name__}: "
                        f"{error}. Correct it, or choose other metrics."
                    ) from error
                values.append(measured.to(after.device))
        return torch.stack(values)


def stack_fields(
    entropy: Mapping[str, Tensor],
    prepared: PreparedTokens,
    ratio: Tensor,
    position: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Return the values of `TOKEN_FIELDS` (fields, texts); NaN where one was not asked for."""
    start = 0 if mask is None else mask.to(torch.uint8).argmax(-1)
    nothing = torch.full_like(ratio, torch.nan)
    return torch.stack(
        [
            entropy.get("keep", nothing),
            entropy.get("drop", nothing),
            prepared.curvature.get("keep", nothing),
            prepared.curvature.get("drop", nothing),
            prepared.flat.double(),
            ratio,
            (position - start).double(),
        ]
    )


def check_finite(sites: Sequence[Site], states: Tensor, dtype: torch.dtype) -> None:
    """Raise `NonFiniteStatesError` for the first site whose states (sites, …, D) are not finite."""
    if bool(torch.isfinite(states).all()):
        return
    bad = int((~torch.isfinite(states.flatten(1)).all(-1)).nonzero()[0])
    vectors = states[bad].flatten(0, -2)
    count = int((~torch.isfinite(vectors).all(-1)).sum())
    kind = "NaN" if bool(torch.isnan(vectors).any()) else "infinite values"
    site = sites[bad]
    hint = "The weights may be damaged: check the model. Only layers before this one can be read."
    if dtype == torch.float16:
        hint = "float16 overflows in many models: use dtype='bfloat16' or 'float32'."
    raise NonFiniteStatesError(
        f"{kind} in the states at {site.name} (layer {site.layer}, "
        f"{str(dtype).removeprefix('torch.')}) for {count} of {len(vectors)} texts in a batch. "
        f"{hint}"
    )


def stack_sites(by_site: dict[int, Tensor]) -> Tensor:
    """Return the tensors of all sites as one, on the device of the first site's."""
    home = by_site[0].device
    return torch.stack([by_site[i].to(home) for i in range(len(by_site))])
