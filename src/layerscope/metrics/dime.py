"""DiME: how much more alike two views are with their pairing than without it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, gram_entropy
from layerscope.metrics.registry import register
from layerscope.metrics.samples import ViewRows
from layerscope.metrics.spectrum import prepared_view

_BATCH_ENTRIES = 4_000_000  # permuted products solved at once: 32 MB


def dime_values(a: Tensor, b: Tensor, alpha: float, permutations: int, seed: int, feature_side: bool = False) -> np.ndarray:
    """S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B) for each random permutation P; views (N, D), already prepared.

    `feature_side` uses D×D covariances, as the released code does when N > D; P then shuffles features, not samples.
    """
    k_a, k_b = (a.T @ a, b.T @ b) if feature_side else (a @ a.T, b @ b.T)
    n = len(k_a)
    rng = np.random.default_rng([seed, n])
    orders = [torch.from_numpy(rng.permutation(n)) for _ in range(permutations)]
    paired = gram_entropy(k_a * k_b, alpha)
    step = max(1, _BATCH_ENTRIES // (n * n))
    shuffled = []
    for start in range(0, permutations, step):
        products = torch.stack([k_a * k_b[p][:, p] for p in orders[start : start + step]])
        shuffled.append(gram_entropy(products, alpha))
    return (torch.cat(shuffled) - paired).numpy()


@register
class DiME(Metric[ViewRows]):
    """Mean over permutations of S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B), on N×N Gram matrices with unit diagonal.

    Its interval is the standard error over permutations: near zero the smallest value over layers is noise. At most
    `dime_samples` prompts are used (the first in canonical order: a random sample where keys are hashes), since the cost
    grows with their cube.
    """

    info = MetricInfo(
        name="dime",
        title="DiME",
        level="views",
        unit="nats",
        higher_means="two views of a prompt share more structure than views of different prompts",
        bounds=lambda n, d, o: (-math.log(max(1, n)), math.log(max(1, n))),
        bounds_text="−log N to log N",
        citation="Skean et al. 2023",
        normalizations=NORMALIZATIONS,
        core=True,
    )

    def new_data(self) -> ViewRows:
        """Pooled vectors of views."""
        return ViewRows()

    def estimate(self, data: ViewRows) -> Estimate:
        """The mean over permutations with its standard error."""
        data.need_views(2, self.info.name)
        o = self.options
        n = min(len(data), o.dime_samples)
        a, b = (prepared_view(data, i, o.view_rows, o.group)[:n] for i in (0, 1))
        values = dime_values(a, b, o.alpha, o.permutations, o.seed, o.dime_feature_side and n > data.width)
        se = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
        return Estimate(float(values.mean()), n, data.width, se=se, df=len(values) - 1, notes={"permutations": len(values)})
