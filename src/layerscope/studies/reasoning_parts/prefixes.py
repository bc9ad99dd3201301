"""Entropies of the prefixes of one prompt's states, by whichever way is exact and cheap for its row preparation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from layerscope.metrics.entropy import matrix_entropy
from layerscope.metrics.rows import RowPreparation, prepare_rows
from layerscope.studies.reasoning_parts.growing import growing_entropies
from layerscope.studies.reasoning_parts.nested import prefix_entropies

_FEWEST = 48  # fewer prefixes than this are solved one by one as fast


def entropies_of_prefixes(
    states: Tensor,
    lengths: Sequence[int],
    rows: RowPreparation = "centered-unit",
    center: str = "prefix",
    alpha: float = 1.0,
) -> Tensor:
    """S_α of the first n rows of `states` (N, D) for each n of `lengths`, float64; NaN where undefined.

    Rows that are not centred, or centred on the whole prompt's mean, do not change as the prefix grows: `nested` gives all
    prefixes at once. Centred on the prefix's own mean and scaled to length 1 (the prompt entropy of a text cut to n tokens), all
    rows change with every token: `growing` follows them. The rest is computed anew for every prefix.
    """
    x = states.double()
    fixed = center == "prompt" or not rows.startswith("centered")
    index = torch.as_tensor(list(lengths), dtype=torch.long) - 1
    if len(lengths) < _FEWEST or alpha not in (1, 2) or (not fixed and (rows, alpha) != ("centered-unit", 1.0)):
        return anew(prepare_rows(x, rows) if fixed else x, lengths, "raw" if fixed else rows, alpha)
    if fixed:
        prepared = prepare_rows(x, rows)
        return prefix_entropies(prepared @ prepared.mT, alpha)[index]
    return growing_entropies(x)[index]


def anew(states: Tensor, lengths: Sequence[int], rows: RowPreparation, alpha: float = 1.0) -> Tensor:
    """The direct way: each prefix's rows prepared, its smaller Gram matrix formed and its eigenvalues solved from scratch."""
    values = [matrix_entropy(states[:n], alpha, rows) for n in lengths]
    return torch.stack(values) if values else torch.empty(0, dtype=torch.float64)
