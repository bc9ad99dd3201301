"""The reduction of states on a GPU: kernels where they can be used, float32 where it will do, and
the Gram matrices of many sites solved together."""

from __future__ import annotations

from collections.abc import Sequence
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
from layerscope_gpu.tokens.normed import Held

_SHARE_OF_MEMORY = 0.06  # of a GPU's, for Gram matrices that wait for their eigenvalues


@dataclass(frozen=True)
class Waiting:
    """A site's token measures before their eigenvalues."""

    index: int
    norms: Tensor
    position: Tensor
    prepared: PreparedTokens


class DeviceReduction(BatchReduction):
    """Reduces the states of a batch on a GPU: the sites' Gram matrices are collected, as far as
    memory allows, and solved together."""

    def __init__(self, reducer: Reducer, batch: Batch, token_level: bool) -> None:
        super().__init__(reducer, batch, token_level)
        self._waiting: list[Waiting] = []
        self._room_left: Tensor | None = None
        self._norms: Held = {}  # as kernels read them, during one pass

    def reduce_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> None:
        """Keep a site's means, and queue its token measures."""
        is_done = self._queue_site if self.token_level else self._keep_normed_mean
        if is_done(index, raw, mask, norm):
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
            self._wait(Waiting(index, norms, position, prepared))

    def finish(self) -> ReducedTensors:
        """Solve what is queued, and return what was kept of all sites."""
        self._solve()
        return super().finish()

    def _keep_normed_mean(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Keep the means by one kernel, where that can compute them."""
        mean = tokens.normed_means(raw, mask, norm, self._norms)
        if mean is not None:
            self.pooled[index] = mean
        return mean is not None

    def _queue_site(
        self, index: int, raw: Tensor, mask: Tensor | None, norm: nn.Module | None
    ) -> bool:
        """Queue token measures in three kernels and one or two products, where those can compute
        what is asked for."""
        if compute_dtype(self.reducer.options) != torch.float32:
            return False
        made = prepare_site(raw, mask, norm, self._norms, self._request())
        if made is None:
            return False
        centered, prepared = made
        self.keep_mean(index, raw, mask, centered.total)
        self._wait(Waiting(index, centered.before, centered.largest, prepared))
        return True

    def _request(self) -> Request:
        reducer = self.reducer
        return Request(reducer.options, reducer.entropy, reducer.curvature, self._space)

    def _wait(self, site: Waiting) -> None:
        """Queue a site's matrices; solve the queue when there is no room for more."""
        device = site.norms.device
        if self._waiting and self._waiting[0].norms.device != device:  # spread over devices
            self._solve()
        self._waiting.append(site)
        pending = sum(
            matrices.numel() * matrices.element_size()
            for waiting in self._waiting
            for matrices in waiting.prepared.matrices.values()
        )
        if pending >= room_for_matrices(device):
            self._solve()

    def _space(self, like: Tensor) -> Tensor:
        """Return memory for a batch of matrices, next to that of the batch before: they are solved
        together without being gathered."""
        size = like.numel()
        left = self._room_left
        if left is None or len(left) < size or left.device != like.device:
            most = room_for_matrices(like.device) // like.element_size()
            for_all = 2 * len(self.reducer.sites) * size
            left = like.new_empty(max(size, min(for_all, most)))
        self._room_left = left[size:]
        return left[:size].view_as(like)

    def _solve(self) -> None:
        """Keep the fields of the queued sites."""
        waiting = self._waiting
        self._waiting = []
        if not waiting:
            return
        mask = self.batch.mask
        if mask is not None:
            mask = mask.to(waiting[0].norms.device)
        for site, fields in zip(waiting, self._fields_of(waiting, mask), strict=True):
            self.tokens[site.index] = fields

    def _fields_of(self, waiting: Sequence[Waiting], mask: Tensor | None) -> list[Tensor]:
        entropies = solve_tokens([site.prepared for site in waiting], self.reducer.options)
        norms = torch.stack([site.norms for site in waiting])
        positions = torch.stack([site.position for site in waiting])
        ratios = sink_ratio(norms, positions, mask)
        return [
            stack_fields(entropy, site.prepared, ratio, site.position, mask)
            for site, entropy, ratio in zip(waiting, entropies, ratios, strict=True)
        ]


def compute_dtype(options: Options) -> torch.dtype:
    """Return the type of Gram matrices and their eigenvalues: float32, unless α < 1 amplifies its
    rounding."""
    return torch.float32 if options.alpha >= 1 else torch.float64


def room_for_matrices(device: torch.device) -> int:
    """Return the bytes of Gram matrices that may wait to be solved together."""
    if device.type != "cuda":  # in tests
        return 0
    return int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[1])


def sum_tokens(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return the sum of each prompt's real states (B, D), float64.

    Float64 copies of all states would cost more than the sum: half-precision states, 16 of which
    float32 adds up with hardly a digit lost, are added in groups first.
    """
    if states.dtype not in (torch.bfloat16, torch.float16):
        return token_sum(states, mask)
    if mask is not None:
        states = torch.where(mask.unsqueeze(-1), states, 0)
    return sum_in_groups(states)


def sum_in_groups(states: Tensor, size: int = 16) -> Tensor:
    """Return sums over tokens (B, D), float64: groups of tokens in float32, then the groups."""
    whole = states.shape[1] // size * size
    rest = states[:, whole:].sum(1, dtype=torch.float32).double()
    groups = states[:, :whole].unflatten(1, (-1, size)).sum(2, dtype=torch.float32)
    return groups.sum(1, dtype=torch.float64) + rest
