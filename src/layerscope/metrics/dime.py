"""DiME: how much more alike two views are with their pairing than without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, gram_entropy, moved_by_rounding, spectrum_entropy
from layerscope.metrics.folds import FEWEST, entropy_of_sums, prepared_view
from layerscope.metrics.samples import ViewRows
from layerscope.spectra import eigvalsh
from layerscope.spectra.resolvents import FINE, fast_doubles, sums_without

_BATCH_ENTRIES = {"cpu": 4_000_000, "cuda": 64_000_000}  # of products solved at once: 32 and 512 MB
# Float32 is used where it moves the paired entropy by less than this share of the value: it may move others a few times as far.
_CLOSE = 2.5e-4


def dime_values(a: Tensor, b: Tensor, alpha: float, permutations: int, seed: int, feature_side: bool = False) -> np.ndarray:
    """S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B) for each random permutation P; views (N, D), already prepared.

    `feature_side` uses D×D covariances, as the released code does when N > D; P then shuffles features, not samples.
    """
    products = _products(a, b, permutations, seed, feature_side)
    entries = (a.shape[1] if feature_side else len(a)) ** 2
    values = []
    while some := list(islice(products, max(1, _BATCH_ENTRIES.get(a.device.type, _BATCH_ENTRIES["cpu"]) // entries))):
        values.append(_entropies(torch.stack(some), alpha))
    entropies = torch.cat(values)
    return (entropies[1:] - entropies[0]).cpu().numpy()


def _entropies(products: Tensor, alpha: float) -> Tensor:
    """S_α of float64 matrices, to far less than the differences that are taken of them."""
    if alpha == 1 and products.shape[-1] >= FEWEST and fast_doubles(products.device):
        return entropy_of_sums(sums_without(products, [], FINE)[0])
    return gram_entropy(products, alpha)


def _products(a: Tensor, b: Tensor, permutations: int, seed: int, feature_side: bool) -> Iterator[Tensor]:
    """K_A ∘ K_B, then K_A ∘ P K_B Pᵀ for each permutation."""
    k_a, k_b = (a.T @ a, b.T @ b) if feature_side else (a @ a.T, b @ b.T)
    rng = np.random.default_rng([seed, len(k_a)])
    yield k_a * k_b
    for _ in range(permutations):
        p = torch.from_numpy(rng.permutation(len(k_a))).to(k_a.device)
        yield k_a * k_b[p][:, p]


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
        order=70,
    )

    def _views(self, data: ViewRows) -> tuple[Tensor, Tensor]:
        o = self.options
        n = min(len(data), o.dime_samples)
        a, b = (prepared_view(data, i, o.view_rows, o.group)[:n] for i in (0, 1))
        return a, b

    def _feature_side(self, data: ViewRows) -> bool:
        return self.options.dime_feature_side and min(len(data), self.options.dime_samples) > data.width

    def prepare(self, many: Sequence[ViewRows]) -> None:
        """On a GPU, the entropies of all data and permutations together, in float32 where it gives what float64 gives."""
        o = self.options
        there = [data for data in many if data.on_gpu and len(data) >= 2 and data.n_views >= 2]
        there = [data for data in there if ("dime", o) not in data._memo]
        if not there or o.alpha < 1:
            return
        sets = [list(_products(*self._views(data), o.permutations, o.seed, self._feature_side(data))) for data in there]
        if len({products[0].shape for products in sets}) > 1:
            return
        paired = [products[0] for products in sets]
        near = eigvalsh(torch.stack([product.float() for products in sets for product in products]), overwrite=True)
        del sets
        near = near.double().clamp(min=0).view(len(there), -1, near.shape[-1])
        rough = self._entropy(near).cpu().numpy()
        terms = rough[:, 1:] - rough[:, :1]  # what rounding does to all of them alike cancels
        moved = moved_by_rounding(self._entropy, near[:, 0]).cpu().numpy()
        unsure = np.flatnonzero(~(moved <= _CLOSE * np.abs(terms.mean(1)))).tolist()
        if unsure:  # it may be less than it could be
            exact = _entropies(torch.stack([paired[i] for i in unsure]), o.alpha).cpu().numpy()
            moved[unsure] = np.abs(exact - rough[unsure, 0])
        for data, values, far in zip(there, terms, moved, strict=True):
            if far <= _CLOSE * abs(values.mean()):
                data._memo["dime", o] = values

    def _entropy(self, eigenvalues: Tensor) -> Tensor:
        return spectrum_entropy(eigenvalues, self.options.alpha)

    def estimate(self, data: ViewRows) -> Estimate:
        """The mean over permutations with its standard error."""
        data.need_views(2, self.info.name)
        o = self.options
        n = min(len(data), o.dime_samples)
        values = data._memo.get(("dime", o))
        if values is None:
            values = dime_values(*self._views(data), o.alpha, o.permutations, o.seed, self._feature_side(data))
        se = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
        return Estimate(float(values.mean()), n, data.width, se=se, df=len(values) - 1, notes={"permutations": len(values)})
