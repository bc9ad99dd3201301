"""Dataset entropy: S_α of the N mean-pooled prompts."""

from __future__ import annotations

import math

from torch import Tensor

from layerscope.metrics.base import Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, spectrum_entropy
from layerscope.metrics.options import Options
from layerscope.metrics.spectral import OfSpectrum, OfSums, entropy_of_sums


def _entropy(eigenvalues: Tensor, options: Options) -> Tensor:
    return spectrum_entropy(eigenvalues, options.alpha)


def _sums(options: Options) -> OfSums | None:
    return entropy_of_sums if options.alpha == 1 else None


DATASET_ENTROPY = Metric(
    MetricInfo(
        name="dataset_entropy",
        title="Dataset entropy",
        level="pooled",
        unit="nats",
        higher_means="prompts spread over more directions",
        bounds=lambda n, d, o: (0.0, math.log(max(1, min(n, d)))),
        bounds_text="0 to log min(N, D)",
        citation="Skean et al. 2025, Eq. 1",
        normalizations=NORMALIZATIONS,
        core=True,
        heading="dataset\nentropy",
        order=30,
    ),
    estimate=OfSpectrum(_entropy, _sums),
)
