"""Published ways to choose a layer without labels, as judges: rows of a comparison, each exactly as
its authors define it.

They look at the vectors of the texts alone (or at the depth), and were made for the layers of one
readout.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from layerscope.core.candidates import ScoredCandidates
from layerscope.metrics import spectrum_entropy
from layerscope.metrics.geometry import neighbor_ratios
from layerscope.metrics.ranks import power_law_exponent
from layerscope.selection.judges.base import Candidates
from layerscope.selection.judges.rank import RankMe


def _spectrum(vectors: np.ndarray | Tensor, center: bool) -> Tensor:
    """Eigenvalues of the (centered) vectors' inner products, in double precision."""
    rows = torch.as_tensor(vectors, dtype=torch.float64)
    return torch.linalg.svdvals(rows - rows.mean(0) if center else rows).square()


class AlphaReQ(RankMe):
    """Eigenvalues that fall as 1/i: the exponent nearest to 1 (Agrawal et al. 2022)."""

    name = "alpha-req"
    summary = "eigenvalue exponent nearest to 1 (Agrawal et al. 2022)"

    def value(self, vectors: np.ndarray | Tensor) -> float:
        """Minus the distance to 1."""
        return -abs(float(power_law_exponent(_spectrum(vectors, center=True))) - 1)


class LowestTwoNN(RankMe):
    """The lowest intrinsic dimension by TwoNN (Facco et al. 2017), as KV-Embedding chooses its
    layer."""

    name = "twonn-minimum"
    summary = "lowest intrinsic dimension (TwoNN)"

    def value(self, vectors: np.ndarray | Tensor) -> float:
        """Minus the dimension."""
        logs = neighbor_ratios(torch.as_tensor(vectors, dtype=torch.float64)).log()
        logs = logs[torch.isfinite(logs)]
        return -float((len(logs) - 1) / logs.sum()) if len(logs) > 2 and logs.sum() > 0 else np.nan


class DatasetEntropy(RankMe):
    """The highest entropy of the pooled vectors' spectrum, one of the seven metrics of Skean et al.
    2025."""

    name = "dataset-entropy"
    summary = "highest dataset entropy (Skean et al. 2025)"

    def value(self, vectors: np.ndarray | Tensor) -> float:
        """The entropy."""
        return float(spectrum_entropy(_spectrum(vectors, center=False)))


class Loes(RankMe):
    """Label-free LOES with one layer: the highest isotropy, mean over standard deviation of the
    covariance's eigenvalues.

    With more than 512 features its authors take the singular values of the centered vectors, of
    which there are no more than texts; otherwise all eigenvalues. Redundancy counts from the second
    layer on only.
    """

    name = "loes"
    summary = "highest isotropy (LOES without labels, one layer)"

    def value(self, vectors: np.ndarray | Tensor) -> float:
        """Isotropy."""
        rows = torch.as_tensor(vectors, dtype=torch.float64)
        centered = rows - rows.mean(0)
        values = torch.linalg.svdvals(centered).square() / len(rows)
        if vectors.shape[1] <= 512:
            missing = max(0, vectors.shape[1] - len(values))
            values = torch.nn.functional.pad(values, (0, missing)) + 1e-6
        values = values.clamp_min(1e-6)
        return float(values.mean() / (values.std(unbiased=False) + 1e-6))


class FixedDepth:
    """The layer at 80 % of the depth, whatever the texts."""

    name = "fixed-depth"
    summary = "the layer at 80 % depth"
    views: tuple[str, ...] = ()

    def __init__(self, depth: float = 0.8) -> None:
        self.depth = depth

    def judge(self, candidates: Candidates, *, seed: int = 0) -> ScoredCandidates:
        """Minus the distance to that depth."""
        layers = np.asarray(candidates.layers, dtype=np.float64)
        distance = np.abs(layers / max(layers.max(), 1) - self.depth)
        return ScoredCandidates(np.tile(-distance, (len(candidates.readouts), 1)), judge=self.name)
