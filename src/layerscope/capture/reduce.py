"""The reduction of each site's states to a pooled vector per text and a few numbers per prompt,
inside the hooks.

One Gram matrix per prompt serves all built-in token metrics. Any other token metric is measured by
its own `measure`, on the states that the site gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from layerscope import accelerator
from layerscope.capture.anatomy import Anatomy
from layerscope.capture.batches import Batch, is_out_of_memory
from layerscope.capture.hooks import Capture, FinalNorm, Reduction, apply_norm
from layerscope.core.plugins import PluginError
from layerscope.core.sites import Site
from layerscope.errors import NonFiniteStatesError
from layerscope.metrics.base import Metric
from layerscope.metrics.options import Options
from layerscope.metrics.registry import measured_values
from layerscope.metrics.tokens.fields import TOKEN_FIELDS, field_of, is_measured_alone
from layerscope.metrics.tokens.measures import PreparedTokens, prepare_tokens, token_entropies
from layerscope.metrics.tokens.norms import (
    full_mask,
    largest_token,
    sink_ratio,
    token_norms,
    token_sum,
    without_token,
)
from layerscope.spectra import map_concurrently

__all__ = ["Reducer", "check_finite", "stack_fields"]

_RESUME = (
    "Correct it, or choose other metrics; a run with an output folder goes on where it stopped."
)
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


@dataclass(frozen=True)
class _Part:
    """Some texts' share of what is kept of a site: sums over their tokens (texts, D), and the token
    fields (fields, texts)."""

    total: Tensor
    fields: Tensor | None


class Reducer(Reduction):
    """Runs batches through a model and keeps, at every site, the mean-pooled vector and the token
    measures.

    The extra memory is a small constant number of one site's states: each hook reduces what it is
    given and lets it go. The sink token is found on the states without the final norm, which would
    hide it. `measured` are token metrics with a `measure` of their own; `fields` names the rows of
    the token measures.
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
        measured: Sequence[Metric] = (),
    ) -> None:
        self.sites, self.options = list(sites), options
        self.entropy, self.curvature, self.measured = entropy, curvature, list(measured)
        self.fields = (
            *TOKEN_FIELDS,
            *(
                field_of(metric.info.name, sink)
                for metric in measured
                for sink in metric.info.sinks
            ),
        )
        self._capture = Capture(anatomy, sites, final_norm, self._on_state, self._on_raw)
        self._batch: Batch | None = None
        self._token_level = False
        self._dtype = torch.float32
        self._forget()

    @classmethod
    def of(
        cls,
        anatomy: Anatomy,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        options: Options,
        metrics: Sequence[Metric],
    ) -> Self:
        """Return what reduces states to what some metrics need."""
        names = {metric.info.name for metric in metrics}
        return cls(
            anatomy,
            sites,
            final_norm,
            options,
            entropy="prompt_entropy" in names,
            curvature="curvature" in names,
            measured=[metric for metric in metrics if is_measured_alone(metric)],
        )

    def _forget(self) -> None:
        self._batch = None
        self._pooled: dict[int, Tensor] = {}
        self._tokens: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}  # of the metrics in `measured`
        self._lengths: Tensor | None = None

    def run(self, batch: Batch, forward: Callable[[Batch], Any], token_level: bool) -> Reduced:
        """Reduce one batch; `forward(batch)` runs the model. `token_level` asks for the per-prompt
        measures as well."""
        reduced = self.reduce(batch, forward, token_level)
        self.check(reduced.pooled)
        if reduced.tokens is None:
            return Reduced(reduced.pooled.cpu().numpy(), {})
        return Reduced(
            reduced.pooled.cpu().numpy(),
            dict(zip(self.fields, reduced.tokens.cpu().numpy(), strict=True)),
        )

    def reduce(
        self, batch: Batch, forward: Callable[[Batch], Any], token_level: bool
    ) -> ReducedTensors:
        """The same, left on the device: on a GPU this returns before the work is done."""
        self._forget()
        self._batch, self._token_level = batch, token_level
        try:
            self._capture.run(lambda: forward(batch))
            with torch.inference_mode():
                self._finish()
                return ReducedTensors(stack_sites(self._pooled).float(), self._token_values())
        finally:
            self._forget()

    def _token_values(self) -> Tensor | None:
        if not self._tokens:
            return None
        tokens = stack_sites(self._tokens)
        if self.measured:
            tokens = torch.cat([tokens, stack_sites(self._own).to(tokens.device)], dim=1)
        return tokens.transpose(0, 1)

    def check_values(self, values: dict[str, np.ndarray]) -> None:
        """Raise a `PluginError` for the first metric in `measured` that gave an infinite value."""
        for metric in self.measured:
            for sink in metric.info.sinks:
                bad = np.isinf(values[field_of(metric.info.name, sink)])
                if bad.any():
                    where = self.sites[int(bad.any(1).argmax())].name
                    raise PluginError(
                        f"metric {metric.info.name!r}: measure gives infinite values at {where} for {int(bad.sum(1).max())} of "
                        f"{bad.shape[1]} prompts. {_RESUME}"
                    )

    def check(self, pooled: Tensor) -> None:
        """Raise `NonFiniteStatesError` for the first site whose vectors (sites, …, D) are not
        finite. Waits for the device."""
        check_finite(self.sites, pooled, self._dtype)

    def _finish(self) -> None:
        """Complete what the sites of a batch left undone; nothing is on a CPU."""

    def _on_raw(self, index: int, raw: Tensor, norm: nn.Module) -> bool:
        """Reduce a site without storing the normed states of all texts, where that pays."""
        batch = self._batch
        if batch is None or batch.skip or batch.pool_class:
            return False
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        return self._reduce_site(index, raw, mask, norm)

    def _reduce_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Reduce a site from its states before the norm, and return True; False where the states
        are to be normed first."""
        return self._in_parts(index, raw, mask, norm)

    def _in_parts(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Reduce a site's states on a CPU, a part of the texts on each core; return False where
        that does not pay.

        Inside one text's matrices threads would spend their time waiting for each other (see
        `spectra.execution`).
        """
        threads = torch.get_num_threads()
        needs_all_texts = self._token_level and self.measured
        if raw.device.type != "cpu" or needs_all_texts or len(raw) < _TEXTS_PER_THREAD * threads:
            return False
        masks = [None] * threads if mask is None else mask.tensor_split(threads)
        parts = [(*part, norm) for part in zip(raw.tensor_split(threads), masks, strict=True)]
        reduce = self._reduce_part
        done = (
            [reduce(*parts[0])]
            if threads == 1
            else list(map_concurrently("states", lambda part: reduce(*part), parts))
        )
        total = torch.cat([part.total for part in done])
        self._keep_mean(index, raw, mask, total)
        self._check_here(index)
        if self._token_level:
            self._tokens[index] = torch.cat(
                [part.fields for part in done if part.fields is not None], dim=1
            )
        return True

    def _reduce_part(self, raw: Tensor, mask: Tensor | None, norm: nn.Module | None) -> _Part:
        with torch.inference_mode():
            state = raw if norm is None else apply_norm(norm, raw)
            total = token_sum(state, mask)
            if not self._token_level or not bool(
                torch.isfinite(total).all()
            ):  # which is an error, told by the caller
                return _Part(total, None)
            return _Part(total, self._token_fields(raw, state, mask, total))

    def _token_fields(
        self, raw: Tensor, state: Tensor, mask: Tensor | None, total: Tensor
    ) -> Tensor:
        """Return the values of `TOKEN_FIELDS` (fields, texts)."""
        norms = token_norms(raw)
        position = largest_token(norms, mask)
        prepared = prepare_tokens(
            state,
            mask,
            position,
            self.options,
            entropy=self.entropy,
            curvature=self.curvature,
            total=total,
        )
        entropies = token_entropies(prepared, self.options)
        return stack_fields(entropies, prepared, sink_ratio(norms, position, mask), position, mask)

    def _keep_mean(self, index: int, raw: Tensor, mask: Tensor | None, total: Tensor) -> None:
        self._dtype = raw.dtype
        self._pooled[index] = (
            total / (raw.shape[1] if mask is None else self._lengths_on(mask).unsqueeze(-1))
        ).float()

    def _check_here(self, index: int) -> None:
        pooled = self._pooled[index]
        if pooled.device.type == "cpu":  # the host would wait for a GPU here
            check_finite(self.sites[index : index + 1], pooled.unsqueeze(0), self._dtype)

    def _on_state(self, index: int, raw: Tensor, state: Tensor) -> None:
        batch = self._batch
        assert batch is not None
        if raw.device.type == "mps":  # float64 does not exist there
            raw, state = raw.cpu(), state.cpu()
        is_bare = raw is state and not batch.pool_class  # without a norm
        whole = state
        raw = raw[:, batch.skip :]
        state = state[:, batch.skip :]
        self._dtype = state.dtype
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        if is_bare and self._reduce_site(index, raw, mask, None):
            return
        total = self._token_sum(state, mask)
        self._keep_mean(index, state, mask, total)
        if batch.pool_class:
            self._pooled[index] = whole[:, 0].float()
        self._check_here(index)
        if self._token_level:
            self._measure(index, raw, state, mask, total)
            self._measure_own(index, raw, state, mask)

    def _token_sum(self, states: Tensor, mask: Tensor | None) -> Tensor:
        return token_sum(states, mask)

    def _measure(
        self, index: int, raw: Tensor, state: Tensor, mask: Tensor | None, total: Tensor
    ) -> None:
        """Keep the token measures of a site."""
        self._tokens[index] = self._token_fields(raw, state, mask, total)

    def _lengths_on(self, mask: Tensor) -> Tensor:
        if self._lengths is None or self._lengths.device != mask.device:
            self._lengths = mask.sum(-1)
        return self._lengths

    def _measure_own(self, index: int, raw: Tensor, state: Tensor, mask: Tensor | None) -> None:
        """Token metrics that are not fused, by their own `measure`: half-precision states are given
        to them as float32."""
        if not self.measured:
            return
        masks = {"keep": full_mask(raw) if mask is None else mask}
        if any("drop" in metric.info.sinks for metric in self.measured):
            masks["drop"] = without_token(masks["keep"], largest_token(token_norms(raw), mask))
        states = _as_given(state)
        out = []
        for metric in self.measured:
            given = _as_given(raw) if metric.before_final_norm else states
            for sink in metric.info.sinks:
                try:
                    values = measured_values(metric, given, masks[sink], self.options)
                except PluginError:
                    raise
                except Exception as error:
                    if is_out_of_memory(error):  # the batch is split and tried again
                        raise
                    name, site = metric.info.name, self.sites[index].name
                    raise PluginError(
                        f"metric {name!r} failed at {site}: {type(error).__name__}: {error}. {_RESUME}"
                    ) from error
                out.append(values.to(states.device))
        self._own[index] = torch.stack(out)


def stack_fields(
    entropy: Mapping[str, Tensor],
    prepared: PreparedTokens,
    ratio: Tensor,
    position: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Return the values of `TOKEN_FIELDS` (fields, texts); NaN where one was not asked for."""
    first = 0 if mask is None else mask.to(torch.uint8).argmax(-1)
    nothing = torch.full_like(ratio, torch.nan)
    return torch.stack(
        [
            entropy.get("keep", nothing),
            entropy.get("drop", nothing),
            prepared.curvature.get("keep", nothing),
            prepared.curvature.get("drop", nothing),
            prepared.flat.double(),
            ratio,
            (position - first).double(),
        ]
    )


def reducer_on(device: torch.device) -> type[Reducer]:
    """Return the class of reducers for a device."""
    gpu = accelerator.on(device)
    return Reducer if gpu is None else gpu.reducer()


def check_finite(sites: Sequence[Site], states: Tensor, dtype: torch.dtype) -> None:
    """Raise `NonFiniteStatesError` for the first site whose states (sites, …, D) are not finite."""
    if not bool(torch.isfinite(states).all()):
        bad = int((~torch.isfinite(states.flatten(1)).all(-1)).nonzero()[0])
        raise non_finite_error(sites[bad], states[bad].flatten(0, -2), dtype)


def non_finite_error(site: Site, pooled: Tensor, dtype: torch.dtype) -> NonFiniteStatesError:
    """Return the error about NaN or infinity in the states of a site; `pooled` has a row per text."""
    bad = int((~torch.isfinite(pooled).all(-1)).sum())
    kind = "NaN" if bool(torch.isnan(pooled).any()) else "infinite values"
    where = f"{site.name} (layer {site.layer}, {str(dtype).removeprefix('torch.')})"
    hint = (
        "float16 overflows in many models: use dtype='bfloat16' or 'float32'."
        if dtype == torch.float16
        else ""
    )
    return NonFiniteStatesError(
        f"{kind} in the states at {where} for {bad} of {len(pooled)} texts in a batch. "
        + (
            hint
            or "The weights may be damaged: check the model. Only layers before this one can be read."
        )
    )


def _as_given(states: Tensor) -> Tensor:
    """States as metrics outside the fused ones get them: half precision as float32."""
    return states if states.dtype == torch.float64 else states.float()


def stack_sites(by_site: dict[int, Tensor]) -> Tensor:
    """Tensors of all sites as one; sites of a model spread over devices meet on the first one's."""
    home = by_site[0].device
    return torch.stack([by_site[i].to(home) for i in range(len(by_site))])
