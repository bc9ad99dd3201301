"""Reduce states on a GPU: by kernels where they support the states, in float32 where that is exact
enough, and with the Gram matrices of many sites solved together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerscope.capture import Batch, Reducer
from layerscope.capture.hooks import apply_norm
from layerscope.capture.reduce import BatchReduction, ReducedTensors, stack_fields
from layerscope.metrics import Options
from layerscope.metrics.tokens import (
    PreparedTokens,
    largest_token,
    sink_ratio,
    token_norms,
    token_sum,
)
from layerscope_gpu import tokens
from layerscope_gpu.token_measures import Request, prepare_site, prepare_tokens, solve_tokens
from layerscope_gpu.tokens.normed import NormCache

_SHARE_OF_MEMORY = 0.06  # of a GPU's, for Gram matrices that wait for their eigenvalues


@dataclass(frozen=True)
class QueuedSite:
    """A site's token measures before their eigenvalues are solved."""

    index: int
    norms: Tensor
    position: Tensor
    prepared: PreparedTokens


class DeviceReduction(BatchReduction):
    """Reduces the states of a batch on a GPU: Gram matrices of sites are queued, as far as memory
    allows, and solved together."""

    def __init__(self, reducer: Reducer, batch: Batch, token_level: bool) -> None:
        super().__init__(reducer, batch, token_level)
        self._queued: list[QueuedSite] = []
        self._room_left: Tensor | None = None
        self._norms: NormCache = {}  # valid during one pass

    def reduce_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> None:
        """Compute a site's means and queue its token measures."""
        reduce_by_kernels = self._queue_site if self.token_level else self._keep_normed_mean
        if reduce_by_kernels(index, raw, mask, norm):
            return
        state = apply_norm(norm, raw)
        total = sum_tokens(state, mask)
        self.keep_mean(index, state, mask, total)
        if self.token_level:
            norms = token_norms(raw)
            position = largest_token(norms, mask)
            dtype = compute_dtype(self.reducer.options)
            prepared = prepare_tokens(
                state, mask, position, self._request(), dtype=dtype, total=total
            )
            self._queue(QueuedSite(index, norms, position, prepared))

    def finish(self) -> ReducedTensors:
        """Solve the queued matrices and return the results of all sites."""
        self._solve()
        return super().finish()

    def _keep_normed_mean(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Compute a site's means by one kernel; return False where that is not possible."""
        mean = tokens.normed_means(raw, mask, norm, self._norms)
        if mean is not None:
            self.pooled[index] = mean
        return mean is not None

    def _queue_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Compute a site's matrices by kernels and queue them; return False where that is not
        possible."""
        if compute_dtype(self.reducer.options) != torch.float32:
            return False
        measures = prepare_site(raw, mask, norm, self._norms, self._request())
        if measures is None:
            return False
        centered, prepared = measures
        self.keep_mean(index, raw, mask, centered.total)
        self._queue(QueuedSite(index, centered.before, centered.largest, prepared))
        return True

    def _request(self) -> Request:
        reducer = self.reducer
        return Request(reducer.options, reducer.entropy, reducer.curvature, self._space)

    def _queue(self, site: QueuedSite) -> None:
        """Queue a site's matrices; solve the queue when there is no room for more."""
        device = site.norms.device
        if self._queued and self._queued[0].norms.device != device:  # spread over devices
            self._solve()
        self._queued.append(site)
        pending = sum(
            matrices.numel() * matrices.element_size()
            for queued in self._queued
            for matrices in queued.prepared.matrices.values()
        )
        if pending >= room_for_matrices(device):
            self._solve()

    def _space(self, like: Tensor) -> Tensor:
        """Return memory for a batch of matrices, next to the batch before, so that both can be
        solved together without a copy."""
        size = like.numel()
        space = self._room_left
        if space is None or len(space) < size or space.device != like.device:
            limit = room_for_matrices(like.device) // like.element_size()
            for_all = 2 * len(self.reducer.sites) * size
            space = like.new_empty(max(size, min(for_all, limit)))
        self._room_left = space[size:]
        return space[:size].view_as(like)

    def _solve(self) -> None:
        """Compute the results of the queued sites and empty the queue."""
        queued = self._queued
        self._queued = []
        if not queued:
            return
        mask = self.batch.mask
        if mask is not None:
            mask = mask.to(queued[0].norms.device)
        entropies = solve_tokens([site.prepared for site in queued], self.reducer.options)
        norms = torch.stack([site.norms for site in queued])
        positions = torch.stack([site.position for site in queued])
        ratios = sink_ratio(norms, positions, mask)
        for site, entropy, ratio in zip(queued, entropies, ratios, strict=True):
            fields = stack_fields(entropy, site.prepared, ratio, site.position, mask)
            self.tokens[site.index] = fields


def compute_dtype(options: Options) -> torch.dtype:
    """Return the type of Gram matrices: float32, unless α < 1 amplifies its rounding."""
    return torch.float32 if options.alpha >= 1 else torch.float64


def room_for_matrices(device: torch.device) -> int:
    """Return the bytes of Gram matrices that may wait to be solved together."""
    if device.type != "cuda":  # in tests
        return 0
    return int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[1])


def sum_tokens(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return the sum of each prompt's real states (B, D), float64.

    Float64 copies of all states would cost more than the sum. Half-precision states are therefore
    first added in groups of 16 in float32, which loses hardly a digit.
    """
    if states.dtype not in (torch.bfloat16, torch.float16):
        return token_sum(states, mask)
    if mask is not None:
        states = torch.where(mask.unsqueeze(-1), states, 0)
    return sum_in_groups(states)


def sum_in_groups(states: Tensor, size: int = 16) -> Tensor:
    """Return sums over tokens (B, D), float64: groups of tokens in float32, then the groups."""
    whole = states.shape[1] // size * size
    last_group = states[:, whole:].sum(1, dtype=torch.float32).double()
    groups = states[:, :whole].unflatten(1, (-1, size)).sum(2, dtype=torch.float32)
    return groups.sum(1, dtype=torch.float64) + last_group
