"""InfoNCE (NT-Xent) between two augmented views of every prompt, and the mutual information it
bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.folds import in_groups, prepare_views, prepared_view
from layerscope.metrics.options import Options
from layerscope.metrics.samples import ViewRows
from layerscope.spectra import Sent

_BLOCK = 1024
_MOST_ENTRIES = 2**25  # of similarities held at once for several data: 256 MB


def info_nce(
    a: Tensor, b: Tensor, temperature: float = 0.1, one_way: bool = False
) -> tuple[Tensor, Tensor]:
    """Loss of each prompt, and what each prompt adds to the others' losses as a negative; views (…,
    N, D), already prepared.

    NT-Xent: every one of the 2N rows is told from the 2N − 2 rows of other prompts. `one_way`: rows
    of `a` against rows of `b` only. Computed in blocks of rows.
    """
    n = a.shape[-2]
    z = a if one_way else torch.cat([a, b], dim=-2)
    others = b if one_way else z
    losses, columns = [], torch.zeros_like(others[..., 0])
    for start in range(0, z.shape[-2], _BLOCK):
        block = z[..., start : start + _BLOCK, :]
        here = torch.arange(start, start + block.shape[-2], device=z.device)
        partner = here if one_way else (here + n) % (2 * n)
        logits = block @ others.mT / temperature
        partners = partner.unsqueeze(-1).expand(*logits.shape[:-1], 1)
        if not one_way:
            logits.diagonal(start, -2, -1).fill_(-math.inf)
        positive = logits.gather(-1, partners).squeeze(-1)
        total = torch.logsumexp(logits, -1)
        losses.append(total - positive)
        share = (logits - total.unsqueeze(-1)).exp_()
        share.scatter_(-1, partners, 0.0)  # a partner does not count as a negative
        columns += share.sum(-2)
    per_row = torch.cat(losses, dim=-1)
    if one_way:
        return per_row, columns
    return per_row.unflatten(-1, (2, n)).mean(-2), columns.unflatten(-1, (2, n)).sum(-2) / 2


def _bound(n: int, d: int, o: Options) -> tuple[float, float]:
    if not o.view_rows.endswith("unit"):
        return 0.0, math.inf
    widest = 2 / o.temperature  # from cosine −1 to cosine 1
    return 0.0, float(np.logaddexp(0.0, math.log(2 * n - 2) + widest)) if n > 1 else 0.0


class InfoNCE(Metric[ViewRows]):
    """NT-Xent loss over the first two views, τ = 0.1, cosine similarity by default. Lower: views
    are told apart better.

    >>> import torch
    >>> same = torch.eye(8).unsqueeze(1).repeat(1, 2, 1)  # two equal views, prompts orthogonal
    >>> InfoNCE().update(same).compute().value < 0.01
    True
    """

    info = MetricInfo(
        name="infonce",
        title="InfoNCE",
        level="views",
        unit="nats",
        higher_means="augmented views of a prompt are harder to tell from other prompts (less invariant)",
        bounds=_bound,
        bounds_text="above 0; log(2N − 1) if views say nothing",
        citation="Oord et al. 2018; Chen et al. 2020",
        core=True,
        heading="Info-\nNCE",
        order=50,
    )

    def prepare(self, many: Sequence[ViewRows]) -> Callable[[], None] | None:
        """On a GPU, the losses of all data, for which the host waits once."""
        there = [data for data in many if data.on_gpu and len(data) >= 2 and data.n_views >= 2]
        there = [data for data in there if ("infonce queued", self.options) not in data._memo]
        if not there or len({len(data) for data in there}) > 1:
            return None
        for data in there:
            data._memo["infonce queued", self.options] = True  # its bound is made of the same
        if self.options.group is None:
            prepare_views(there, self.options.view_rows)
        at_once = max(1, _MOST_ENTRIES // (2 * len(there[0]) * _BLOCK))
        found = [self._losses(there[i : i + at_once]) for i in range(0, len(there), at_once)]
        parts = [Sent(torch.cat(part)) for part in zip(*found, strict=True)]

        def keep() -> None:
            for data, losses, as_negative in zip(
                there, *(part.get() for part in parts), strict=True
            ):
                data._memo["infonce losses", self.options] = losses, as_negative

        return keep

    def _losses(self, many: Sequence[ViewRows]) -> tuple[Tensor, Tensor]:
        o = self.options
        given = [in_groups(data, o.view_rows, o.group) for data in many]
        a, b = (torch.stack([prepared_view(data, i, rows) for data, rows in given]) for i in (0, 1))
        return info_nce(a, b, o.temperature, o.infonce_one_way)

    def estimate(self, data: ViewRows) -> Estimate:
        data.need_views(2, self.info.name)
        o = self.options
        if ("infonce", o) not in data._memo:  # the bound needs it too
            data._memo["infonce", o] = self._loss(data)
        return data._memo["infonce", o]

    def _loss(self, data: ViewRows) -> Estimate:
        found = data._memo.get(("infonce losses", self.options)) or [
            part[0] for part in self._losses([data])
        ]
        losses, as_negative = found
        n = len(losses)
        value = float(losses.mean())
        influence = (losses - value + as_negative - as_negative.mean()) / n
        return Estimate(value, n, data.width, influence.cpu().numpy())


class InfoNCEBound(InfoNCE):
    """log N − InfoNCE: a lower bound, at most log N, on the mutual information between two
    views."""

    info = MetricInfo(
        name="infonce_mi",
        title="InfoNCE bound on information",
        level="views",
        unit="nats",
        higher_means="two views of a prompt share more information",
        bounds=lambda n, d, o: (math.log(n) - _bound(n, d, o)[1], math.log(n)),
        bounds_text="at most log N",
        citation="Oord et al. 2018",
        main=False,
    )

    def estimate(self, data: ViewRows) -> Estimate:
        loss = super().estimate(data)
        return loss.mapped(lambda x: math.log(loss.n) - x, slope=-1.0)
