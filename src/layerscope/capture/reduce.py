"""What is kept of each site's states: a pooled vector per text and a few numbers per prompt. Runs
inside the hooks.

One Gram matrix per prompt serves all built-in token metrics. Any other token metric is measured by
its own `measure`, on the states that the site gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

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
from layerscope.metrics.tokens.measures import (
    PreparedTokens,
    prepare_tokens,
    solve_tokens,
)
from layerscope.metrics.tokens.norms import (
    full_mask,
    largest_token,
    sink_ratio,
    token_norms,
    token_sum,
    without_token,
)
from layerscope.spectra import faster, map_concurrently
from layerscope.spectra.execution import total_memory

_RESUME = (
    "Correct it, or choose other metrics; a run with an output folder goes on where it stopped."
)
_TEXTS_PER_THREAD = (
    2  # of a batch on a CPU, at least, where each thread reduces a part of the texts
)
_SHARE_OF_MEMORY = 0.06  # of a GPU's, for Gram matrices that wait for their eigenvalues


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
class _Waiting:
    """A site's token measures before their eigenvalues."""

    index: int
    norms: Tensor
    position: Tensor
    prepared: PreparedTokens


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
    hide it. On a GPU the sites' Gram matrices are collected, as far as memory allows, and solved
    together. `measured` are token metrics beyond the fused ones; `fields` names the rows of the
    token measures.
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
        self._waiting: list[_Waiting] = []
        self._room_left: Tensor | None = None
        self._norms: dict[nn.Module, Any] = {}  # as kernels read them, during one pass

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
                self._solve()
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

    def _on_raw(self, index: int, raw: Tensor, norm: nn.Module) -> bool:
        """Compute what is wanted of the normed states without storing them, where possible."""
        batch = self._batch
        if batch is None or batch.skip or batch.pool_class:
            return False
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        if self._in_parts(index, raw, mask, norm):
            return True
        if self._token_level:
            done = self._measure_at_once(index, raw, mask, norm)
            if done and self.measured:
                self._measure_own(index, raw, apply_norm(norm, raw), mask)
            return done
        gpu = faster.on(raw.device)
        mean = None if gpu is None else gpu.tokens.normed_means(raw, mask, norm, self._norms)
        if mean is None:
            return False
        self._dtype, self._pooled[index] = raw.dtype, mean
        return True

    def _measure_at_once(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Token measures in three kernels and one or two products, where those can compute what is
        asked for."""
        gpu = faster.on(raw.device)
        if gpu is None or compute_dtype(raw.device, self.options) != torch.float32:
            return False
        what = {"entropy": self.entropy, "curvature": self.curvature, "space": self._space}
        made = gpu.prepare_site(raw, mask, norm, self._norms, self.options, **what)
        if made is None:
            return False
        centered, prepared = made
        self._keep_mean(index, raw, mask, centered.total)
        self._wait(_Waiting(index, centered.before, centered.largest, prepared))
        return True

    def _in_parts(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Everything about a site's states on a CPU, a part of the texts on each core; False where
        that does not pay.

        Inside one text's matrices threads would spend their time waiting for each other (see
        `spectra.execution`).
        """
        threads = torch.get_num_threads()
        own = self._token_level and self.measured  # these get the states of all texts
        if raw.device.type != "cpu" or own or len(raw) < _TEXTS_PER_THREAD * threads:
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
            waiting = self._prepare(-1, raw, state, mask, total)
            return _Part(total, self._token_fields([waiting], mask)[0])

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
        bare = raw is state and not batch.pool_class  # without a norm
        plain = self._token_level and bare and not batch.skip
        whole, raw, state = (
            state,
            raw[:, batch.skip :],
            state[:, batch.skip :],
        )
        self._dtype = state.dtype
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        if plain and self._measure_at_once(index, raw, mask, None):
            self._measure_own(index, raw, state, mask)
            return
        if bare and self._in_parts(index, raw, mask, None):
            return
        total = token_sum(state, mask)
        self._keep_mean(index, state, mask, total)
        if batch.pool_class:
            self._pooled[index] = whole[:, 0].float()
        self._check_here(index)
        if self._token_level:
            self._wait(self._prepare(index, raw, state, mask, total))
            self._measure_own(index, raw, state, mask)

    def _lengths_on(self, mask: Tensor) -> Tensor:
        if self._lengths is None or self._lengths.device != mask.device:
            self._lengths = mask.sum(-1)
        return self._lengths

    def _prepare(
        self, index: int, raw: Tensor, state: Tensor, mask: Tensor | None, total: Tensor
    ) -> _Waiting:
        norms = token_norms(raw)
        position = largest_token(norms, mask)
        dtype = compute_dtype(raw.device, self.options)
        what = {"entropy": self.entropy, "curvature": self.curvature}
        space = self._space if raw.device.type == "cuda" else None
        prepared = prepare_tokens(
            state, mask, position, self.options, **what, dtype=dtype, total=total, space=space
        )
        return _Waiting(index, norms, position, prepared)

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

    def _wait(self, site: _Waiting) -> None:
        """Queue a site's matrices; solve the queue when there is no room for more."""
        if (
            self._waiting and self._waiting[0].norms.device != site.norms.device
        ):  # a model spread over devices
            self._solve()
        self._waiting.append(site)
        pending_bytes = sum(
            m.numel() * m.element_size()
            for site in self._waiting
            for m in site.prepared.matrices.values()
        )
        if pending_bytes >= room_for_matrices(site.norms.device):
            self._solve()

    def _space(self, like: Tensor) -> Tensor:
        """Memory for a batch of matrices, next to that of the batch before: they are solved
        together without being gathered."""
        each = like.numel()
        if (
            self._room_left is None
            or len(self._room_left) < each
            or self._room_left.device != like.device
        ):
            most = room_for_matrices(like.device) // like.element_size()
            self._room_left = like.new_empty(max(each, min(2 * len(self.sites) * each, most)))
        out, self._room_left = self._room_left[:each].view_as(like), self._room_left[each:]
        return out

    def _solve(self) -> None:
        """Entropies and sink ratios of the queued sites."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        assert self._batch is not None
        mask = None if self._batch.mask is None else self._batch.mask.to(waiting[0].norms.device)
        for site, fields in zip(waiting, self._token_fields(waiting, mask), strict=True):
            self._tokens[site.index] = fields

    def _token_fields(self, waiting: Sequence[_Waiting], mask: Tensor | None) -> list[Tensor]:
        """The values of `TOKEN_FIELDS` (fields, texts) of each of some sites."""
        entropies = solve_tokens([site.prepared for site in waiting], self.options)
        norms, position = (
            torch.stack([getattr(site, name) for site in waiting]) for name in ("norms", "position")
        )
        ratio = sink_ratio(norms, position, mask)
        first = 0 if mask is None else mask.to(torch.uint8).argmax(-1)
        nothing = torch.full_like(ratio[0], torch.nan)
        return [
            torch.stack(
                [
                    entropy.get("keep", nothing),
                    entropy.get("drop", nothing),
                    site.prepared.curvature.get("keep", nothing),
                    site.prepared.curvature.get("drop", nothing),
                    site.prepared.flat.double(),
                    ratio[i],
                    (position[i] - first).double(),
                ]
            )
            for i, (site, entropy) in enumerate(zip(waiting, entropies, strict=True))
        ]


def compute_dtype(device: torch.device, options: Options) -> torch.dtype:
    """What Gram matrices and their eigenvalues are computed in: float32 on a GPU, unless α < 1
    amplifies its rounding."""
    return torch.float32 if device.type == "cuda" and options.alpha >= 1 else torch.float64


def room_for_matrices(device: torch.device) -> int:
    """Bytes of Gram matrices that may wait to be solved together; on a CPU each site is solved at
    once."""
    return int(_SHARE_OF_MEMORY * total_memory(device)) if device.type == "cuda" else 0


def check_finite(sites: Sequence[Site], states: Tensor, dtype: torch.dtype) -> None:
    """Raise `NonFiniteStatesError` for the first site whose states (sites, …, D) are not finite."""
    if not bool(torch.isfinite(states).all()):
        bad = int((~torch.isfinite(states.flatten(1)).all(-1)).nonzero()[0])
        raise non_finite_error(sites[bad], states[bad].flatten(0, -2), dtype)


def non_finite_error(site: Site, pooled: Tensor, dtype: torch.dtype) -> NonFiniteStatesError:
    """What to say about NaN or infinity in the states of a site; `pooled` has a row per text."""
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
