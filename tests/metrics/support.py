"""Random samples for the metric tests, and the reference value of every metric on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics import (
    Estimate,
    Options,
    SiteVectors,
    estimate_prompts,
    get_metric,
    normalized,
)
from layerscope.metrics.registry import measured_values
from layerscope.metrics.tokens import Sink, prepare_tokens, token_entropies
from tests.metrics import reference as ref


@dataclass
class Samples:
    """The same prompts at all three levels: token states of different lengths, pooled vectors,
    pooled views."""

    tokens: list[np.ndarray]
    pooled: np.ndarray
    views: np.ndarray
    keys: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.keys = np.random.default_rng(5).permutation(len(self.pooled)) * 10

    def __len__(self) -> int:
        return len(self.pooled)


def make_samples(n: int, d: int, seed: int = 0, q: int = 4, longest: int = 12) -> Samples:
    """Anisotropic prompts: a common mean, a decaying spectrum, lengths from 3 tokens up."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, d + 1) ** -0.5
    mean = 0.5 * rng.normal(size=d)
    centers = mean + rng.normal(size=(n, d)) * scale
    views = centers[:, None] + 0.4 * rng.normal(size=(n, q, d))
    tokens = [c + rng.normal(size=(int(rng.integers(3, longest + 1)), d)) * scale for c in centers]
    return Samples(tokens, centers, views)


def pad(
    tokens: list[np.ndarray],
    filling: float = math.nan,
    side: str = "right",
    dtype: torch.dtype = torch.float64,
):
    """(states, mask) of prompts of different lengths, padded with a value that no number may depend
    on."""
    longest = max(len(t) for t in tokens)
    states = torch.full((len(tokens), longest, tokens[0].shape[1]), filling, dtype=dtype)
    mask = torch.zeros(len(tokens), longest, dtype=torch.bool)
    for i, t in enumerate(tokens):
        where = slice(0, len(t)) if side == "right" else slice(longest - len(t), longest)
        states[i, where] = torch.from_numpy(t).to(dtype)
        mask[i, where] = True
    return states, mask


def compute(
    name: str,
    data: Any,
    options: Options | None = None,
    *,
    mask: Any = None,
    keys: Any = None,
    normalization: Any = "raw",
) -> Estimate:
    """A metric of token states (prompts, tokens, width), pooled vectors or views."""
    metric, options = get_metric(name), options or Options()
    data = torch.as_tensor(data)
    keys = np.arange(len(data)) if keys is None else np.asarray(keys)
    if metric.measure is not None:
        mask = torch.ones(data.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        order = np.argsort(keys)
        values = measured_values(metric, data, mask, options).numpy()[order]
        tokens = mask.sum(-1).numpy()[order]
        return estimate_prompts(metric, values, tokens, data.shape[-1], normalization)
    views = data if metric.info.level == "views" else None
    site = SiteVectors.of(data if views is None else data[:, 0], views, keys)
    raw = metric.estimate(site, options)
    return raw if normalization == "raw" else normalized(raw, normalization)


def of_samples(
    name: str,
    samples: Samples,
    options: Options | None = None,
    normalization: Any = "raw",
    order: np.ndarray | None = None,
) -> Estimate:
    """A metric of samples, which arrive in an order."""
    order = np.arange(len(samples)) if order is None else order
    level = get_metric(name).info.level
    more = {"keys": samples.keys[order], "normalization": normalization}
    if level == "tokens":
        states, mask = pad([samples.tokens[i] for i in order])
        return compute(name, states, options, mask=mask, **more)
    data = samples.pooled if level == "pooled" else samples.views
    return compute(name, data[order], options, **more)


def by_key(samples: Samples) -> np.ndarray:
    """Positions of the samples in canonical order."""
    return np.argsort(samples.keys)


def pooled_prepared(samples: Samples, o: Options) -> np.ndarray:
    """The pooled vectors, prepared in groups of their order of arrival if the options say so."""
    return ref.prepare_in_groups(samples.pooled, o.pooled_rows, o.group or len(samples))


def views_prepared(samples: Samples, o: Options) -> tuple[np.ndarray, np.ndarray]:
    """The first two views in canonical order, each prepared in groups of its order of arrival."""
    group, order = o.group or len(samples), by_key(samples)
    one, other = (
        ref.prepare_in_groups(samples.views[:, i], o.view_rows, group)[order] for i in (0, 1)
    )
    return one, other


def _prompt_entropy(tokens: np.ndarray, o: Options) -> float:
    if o.clamp_gram:
        return ref.clamped_entropy(ref.prepare(tokens, o.rows), o.alpha)
    return ref.prompt_entropy(tokens, o.alpha, o.rows)


def _dataset_entropy(s: Samples, o: Options) -> float:
    entropy = ref.clamped_entropy if o.clamp_gram else ref.matrix_entropy
    return entropy(pooled_prepared(s, o), o.alpha)


def _infonce(s: Samples, o: Options) -> float:
    loss = ref.infonce_one_way if o.infonce_one_way else ref.infonce
    return loss(*views_prepared(s, o), o.temperature)


def _lidar(s: Samples, o: Options) -> float:
    group, count = o.group or len(s), s.views.shape[1]
    views = [ref.prepare_in_groups(s.views[:, i], o.lidar_rows, group) for i in range(count)]
    return ref.lidar(np.stack(views, axis=1), o.delta, o.alpha)


def _dime(s: Samples, o: Options) -> float:
    a, b = views_prepared(s, o)
    feature_side = o.dime_feature_side and len(a) > a.shape[1]
    permutations = ref.permutations(
        min(a.shape) if feature_side else len(a), o.permutations, o.seed
    )
    return ref.dime(a, b, permutations, o.alpha, feature_side)


def _over_prompts(
    function: Callable[[np.ndarray, Options], float],
) -> Callable[[Samples, Options], float]:
    return lambda s, o: float(np.mean([function(t, o) for t in s.tokens]))


# The value of every metric on Samples. A new metric needs an entry here, and in
# tests/metrics/harness.py.
REFERENCES: dict[str, Callable[[Samples, Options], float]] = {
    "prompt_entropy": _over_prompts(_prompt_entropy),
    "curvature": _over_prompts(lambda t, o: ref.curvature(t, o.curvature_absolute)),
    "sink_ratio": _over_prompts(lambda t, o: ref.sink(t)[1]),
    "sink_first": _over_prompts(lambda t, o: float(ref.sink(t)[0] == 0)),
    "dataset_entropy": _dataset_entropy,
    "effective_rank": lambda s, o: math.exp(
        ref.renyi(ref.singular_values(pooled_prepared(s, o)), 1.0)
    ),
    "entropy_rank": lambda s, o: ref.entropy_rank(s.pooled, o.pooled_rows),
    "rankme": lambda s, o: ref.rankme(s.pooled),
    "alpha_req": lambda s, o: ref.alpha_req(s.pooled),
    "nesum": lambda s, o: ref.nesum(s.pooled),
    "anisotropy": lambda s, o: ref.anisotropy(s.pooled),
    "intrinsic_dimension": lambda s, o: ref.intrinsic_dimension(s.pooled),
    "infonce": _infonce,
    "infonce_mi": lambda s, o: math.log(len(s)) - _infonce(s, o),
    "lidar": _lidar,
    "lidar_rank": lambda s, o: math.exp(_lidar(s, o)),
    "dime": _dime,
    "state_norm": _over_prompts(lambda t, o: float(np.mean(np.sqrt((t**2).sum(1))))),
}


def tensor(values: Any) -> Tensor:
    """A float64 tensor."""
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


@dataclass(frozen=True)
class TokenMeasures:
    """Per prompt (B,), by sink; `flat` counts differences of length zero."""

    entropy: dict[str, Tensor]
    curvature: dict[str, Tensor]
    flat: Tensor


def measure_tokens(
    states: Tensor, mask: Tensor | None, sink: Sink | None, options: Options, **what: Any
) -> TokenMeasures:
    """The token measures of one site, eigenvalues and all."""
    prepared = prepare_tokens(
        states, mask, None if sink is None else sink.position, options, **what
    )
    return TokenMeasures(token_entropies(prepared, options), prepared.curvature, prepared.flat)
