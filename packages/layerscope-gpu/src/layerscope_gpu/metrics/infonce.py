"""InfoNCE of several sites together, so that the host waits only once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from layerscope.metrics import Estimate, Options, SiteVectors
from layerscope.metrics.geometry import BLOCK, info_nce
from layerscope_gpu.metrics import Finish
from layerscope_gpu.metrics.views import view_of_sites
from layerscope_gpu.transfers import Sent

_MOST_ENTRIES = 2**25  # similarities in memory at once, for several sites: 256 MB


def prepare(sites: Sequence[SiteVectors], options: Options) -> Finish:
    """Start computing the losses of sites of the same prompts."""
    at_once = max(1, _MOST_ENTRIES // (2 * len(sites[0]) * BLOCK))
    groups = [sites[i : i + at_once] for i in range(0, len(sites), at_once)]
    losses, negatives = zip(*(_losses(group, options) for group in groups), strict=True)
    sent = Sent(torch.cat(losses)), Sent(torch.cat(negatives))

    def finish() -> dict[str, list[Estimate]]:
        for site, loss, negative in zip(
            sites, *(sent_values.get() for sent_values in sent), strict=True
        ):
            site.shared["infonce", options] = loss, negative
        return {}

    return finish


def _losses(sites: Sequence[SiteVectors], options: Options) -> tuple[Tensor, Tensor]:
    a, b = (view_of_sites(sites, index, options) for index in (0, 1))
    return info_nce(a, b, options.temperature, options.infonce_one_way)
