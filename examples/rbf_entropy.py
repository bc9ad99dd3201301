"""Entropies with a kernel that is not linear: S_α of a Gaussian (RBF) Gram matrix, of a prompt's
tokens and of all prompts.

K_ij = exp(−‖x_i − x_j‖² / 2σ²), with σ² the median squared distance between rows (of one prompt, or
of all prompts). The linear entropies see directions: rows on a line have no spread but one. This
one sees clusters and distances: it is about the logarithm of how many rows lie apart by more than
the typical distance. Rows are prepared as for the linear entropies.

    python examples/rbf_entropy.py             # both by layer, of a small model on news texts
    run = layerscope.profile(model, texts, metrics=[PROMPT_ENTROPY_RBF, DATASET_ENTROPY_RBF])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import layerscope
from layerscope.metrics import Estimate, Metric, MetricInfo, Options, SiteVectors, prepare_rows
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.spectral import equal_folds, equal_folds_error
from layerscope.metrics.vectors import n_folds

_SOURCE = "Giraldo, Rao & Príncipe 2014"


def rbf_gram(rows: Tensor) -> Tensor:
    """The Gaussian Gram matrix (n, n), float64, of prepared rows (n, D); all ones where all rows
    are equal.

    >>> import torch
    >>> rbf_gram(torch.eye(2, dtype=torch.float64))[0].round(decimals=4).tolist()  # one distance, the median: e^(−1/2)
    [1.0, 0.6065]
    """
    n = len(rows)
    squares = rows.double().square().sum(-1)
    distances = (squares[:, None] + squares - 2 * rows.double() @ rows.double().T).clamp(min=0)
    distances.fill_diagonal_(0.0)
    apart = distances[torch.triu(torch.ones(n, n, dtype=torch.bool, device=rows.device), 1)]
    if not len(apart) or float(apart.max()) <= 1e-12 * float(squares.max().clamp(min=1e-300)):
        return torch.ones_like(distances)
    # more than half of the rows may be equal: then the smallest distance between different ones
    middle = apart.quantile(0.5) if len(apart) <= 2**24 else apart.median()
    width = middle if float(middle) > 0 else apart[apart > 0].min()
    return torch.exp(-distances / (2 * width))


def entropies_without(gram: Tensor, members: Tensor, alpha: float) -> Tensor:
    """S_α of a matrix (n, n) without the rows of each fold (folds, size)."""
    stay = torch.ones(len(members), len(gram), dtype=torch.bool, device=gram.device).scatter_(
        1, members, False
    )
    return torch.cat([gram_entropy(gram[some][:, some].unsqueeze(0), alpha) for some in stay])


def measure_prompt_entropy(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return S_α of the Gaussian Gram matrix of each prompt's token states; NaN without a token, or
    where no row has a direction."""
    values = []
    for state, real in zip(states, mask, strict=True):
        rows = prepare_rows(state[real].double(), options.rows)
        if not bool(rows.any()):
            values.append(torch.tensor(math.nan, dtype=torch.float64, device=states.device))
            continue
        values.append(gram_entropy(rbf_gram(rows), options.alpha))
    return torch.stack(values)


PROMPT_ENTROPY_RBF = Metric(
    MetricInfo(
        name="prompt_entropy_rbf",
        title="Prompt entropy (RBF)",
        level="tokens",
        unit="nats",
        higher_means="more tokens of a prompt lie apart from each other",
        bounds="0 to log tokens",
        citation=_SOURCE,
        normalizations=("raw", "logN"),
        sinks=("keep", "drop"),
        order=15,
        heading="prompt entropy\n(RBF)",
        compare_sinks=True,
        by_default=False,
        main=False,
    ),
    measure=measure_prompt_entropy,
)


def estimate_dataset_entropy(site: SiteVectors, options: Options) -> Estimate:
    """Return S_α of the Gaussian Gram matrix of the pooled vectors and its standard error.

    The matrix is N×N for any N, so at most `dime_samples` prompts are used: the first in the order
    of their keys, which is random. The standard error leaves out folds of prompts. Undefined (NaN)
    where no vector has a direction, as for a single prompt.
    """
    n = min(len(site), options.dime_samples)
    rows = prepare_rows(site.rows[:n].double(), options.pooled_rows)
    if not bool(rows.any()):
        return Estimate(math.nan, n, site.width, undefined=n)
    gram = rbf_gram(rows)
    members = equal_folds(n, gram.device)
    se = math.nan
    if members is not None:
        se = equal_folds_error(entropies_without(gram, members, options.alpha), n)
    value = float(gram_entropy(gram, options.alpha))
    return Estimate(value, n, site.width, se=se, df=max(1, n_folds(n) - 1))


DATASET_ENTROPY_RBF = Metric(
    MetricInfo(
        name="dataset_entropy_rbf",
        title="Dataset entropy (RBF)",
        level="pooled",
        unit="nats",
        higher_means="more prompts lie apart from each other",
        bounds="0 to log N",
        citation=_SOURCE,
        normalizations=("raw", "logN"),
        order=35,
        heading="dataset entropy\n(RBF)",
        by_default=False,
        main=False,
    ),
    estimate=estimate_dataset_entropy,
)


if __name__ == "__main__":
    run = layerscope.profile(
        "controlled-ar",
        "lee",
        limit=50,
        max_length=64,
        metrics=[PROMPT_ENTROPY_RBF, DATASET_ENTROPY_RBF],
    )
    print(run.wide().to_string(float_format="%.3f"))
