"""RankMe, a published way to choose a layer without labels, as a judge: it looks at the vectors of
the texts alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from layerscope.core.candidates import ScoredCandidates
from layerscope.metrics.ranks import rankme
from layerscope.selection.judges.base import Candidates


class RankMe:
    """The largest effective rank of the vectors as they are (Garrido et al. 2023)."""

    name = "rankme"
    summary = "highest RankMe (Garrido et al. 2023)"
    views: tuple[str, ...] = ()

    def judge(self, candidates: Candidates, *, seed: int = 0) -> ScoredCandidates:
        """Every candidate's score; it gives no intervals."""
        rows = []
        for readout in candidates.readouts:
            layers = candidates.vectors(readout)
            rows.append(
                [
                    self.value(one) if torch.isfinite(torch.as_tensor(one)).all() else np.nan
                    for one in layers
                ]
            )
        return ScoredCandidates(np.array(rows, dtype=np.float64), judge=self.name)

    def value(self, vectors: np.ndarray | Tensor) -> float:
        """Of one candidate's vectors (texts, D), in double precision."""
        return float(
            rankme(torch.linalg.svdvals(torch.as_tensor(vectors, dtype=torch.float64)).square())
        )
