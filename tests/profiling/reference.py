"""The seven metrics of a model, once more: own forward pass, text by text and without padding,
float64 numpy throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.data import make_views
from layerscope.data.items import content_key
from layerscope.models import LoadedModel
from tests.metrics import reference as formulas

PAPER = [
    "prompt_entropy",
    "dataset_entropy",
    "curvature",
    "effective_rank",
    "infonce",
    "lidar",
    "dime",
]

Layers = list[np.ndarray]  # one (tokens, D) array per layer


def raw_layers(model: LoadedModel, ids: Sequence[int]) -> Layers:
    """Layers 0 … L of one text, never normed: `output_hidden_states`, with what the final norm is
    given for the last one."""
    row = torch.tensor([list(ids)])
    before_norm: list[Tensor] = []
    norm = model.anatomy.final_norm
    handle = (
        None
        if norm is None
        else norm.register_forward_pre_hook(lambda _m, args: before_norm.append(args[0].clone()))
    )
    with torch.no_grad():
        out: Any = model.module(
            input_ids=row, attention_mask=torch.ones_like(row), output_hidden_states=True
        )
    states = list(out.hidden_states)
    if handle is not None:
        handle.remove()
        states[-1] = before_norm[-1]
    return [state[0].double().numpy() for state in states]


def rms_norm(model: LoadedModel) -> Callable[[np.ndarray], np.ndarray]:
    """Llama's final norm from its weights: x / √(mean x² + ε) · w."""
    norm: Any = model.anatomy.final_norm
    weight, epsilon = norm.weight.detach().double().numpy(), float(model.module.config.rms_norm_eps)
    return lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def lidar(views: np.ndarray, delta: float = 1e-4) -> float:
    """S_1 of the spectrum of (Σ_w + δ)⁻¹ Σ_b, which is that of Bᵀ (Σ_w + δ)⁻¹ B with B Bᵀ = Σ_b;
    views (N, Q, D)."""
    n, q, d = views.shape
    centers = views.mean(1)
    b = (centers - centers.mean(0)).T / np.sqrt(n)
    inner = (views - centers[:, None]).reshape(n * q, d)
    within = inner.T @ inner / (n * q) + delta * np.eye(d)
    spectrum = np.clip(np.linalg.eigvalsh(b.T @ np.linalg.solve(within, b)), 0, None)
    return formulas.renyi(np.where(spectrum > 1e-14 * spectrum.max(), spectrum, 0.0), 1.0)


def seven(
    prompts: list[np.ndarray], raw: list[np.ndarray], pooled_views: np.ndarray, seed: int
) -> dict[tuple[str, str], float]:
    """Every metric of one layer, by (metric, sink).

    `prompts` are token states in canonical order, `raw` the same without the final norm (the sink
    is found there), `pooled_views` (N, Q, D).
    """
    drop = [formulas.sink(tokens)[0] for tokens in raw]
    pairs = list(zip(prompts, drop, strict=True))
    pooled = np.stack([tokens.mean(0) for tokens in prompts])
    a, b = (formulas.prepare(pooled_views[:, i], "unit") for i in (0, 1))
    permutations = formulas.permutations(len(prompts), 10, seed)
    return {
        ("prompt_entropy", "keep"): float(np.mean([formulas.prompt_entropy(t) for t in prompts])),
        ("prompt_entropy", "drop"): float(
            np.mean([formulas.prompt_entropy(t, drop=i) for t, i in pairs])
        ),
        ("curvature", "keep"): float(np.mean([formulas.curvature(t) for t in prompts])),
        ("curvature", "drop"): float(np.mean([formulas.curvature(t, drop=i) for t, i in pairs])),
        ("dataset_entropy", "keep"): formulas.dataset_entropy(pooled),
        ("effective_rank", "keep"): formulas.effective_rank(pooled),
        ("infonce", "keep"): formulas.infonce(a, b),
        ("lidar", "keep"): lidar(pooled_views),
        ("dime", "keep"): formulas.dime(a, b, permutations),
    }


class Independent:
    """Own forward passes over the prompts and their views, in the canonical order of the prompts'
    keys."""

    def __init__(
        self, model: LoadedModel, texts: Sequence[str], tokens: int, views: int, seed: int
    ) -> None:
        ordered = sorted(texts, key=content_key)
        ids = model.tokenizer(ordered, truncation=True, max_length=tokens)["input_ids"]
        self.prompts = [raw_layers(model, row) for row in ids]
        self.views = []
        for made in make_views(ordered, views, seed, "builtin"):
            rows = model.tokenizer(made, truncation=True, max_length=tokens)["input_ids"]
            self.views.append([raw_layers(model, row) for row in rows])
        self.norm = rms_norm(model) if model.anatomy.final_norm is not None else None
        self.n_layers, self.seed = model.n_blocks + 1, seed
        self._memo: dict[tuple[int, bool], dict[tuple[str, str], float]] = {}

    def layer(self, k: int, normed: bool) -> dict[tuple[str, str], float]:
        normed = normed and self.norm is not None
        if (k, normed) not in self._memo:
            change = self.norm if normed else lambda x: x
            assert change is not None
            raw = [layers[k] for layers in self.prompts]
            views = np.array(
                [[change(layers[k]).mean(0) for layers in views] for views in self.views]
            )
            self._memo[k, normed] = seven([change(x) for x in raw], raw, views, self.seed)
        return self._memo[k, normed]

    def table(self, final_norm: str) -> dict[tuple[str, str, int], float]:
        out = {}
        for k in range(self.n_layers):
            normed = final_norm == "applied" or (final_norm == "hf" and k == self.n_layers - 1)
            out.update({(*key, k): value for key, value in self.layer(k, normed).items()})
        return out


def assert_agrees(
    table: pd.DataFrame, want: dict[tuple[str, str, int], float], tolerance: float = 1e-5
) -> None:
    """Every metric at every layer, relative or absolute, whichever is larger."""
    held = table[table["normalization"] == "raw"]
    got = {
        (m, s, k): v
        for m, s, k, v in held[["metric", "sink", "layer", "value"]].itertuples(index=False)
    }
    assert set(got) == set(want)
    off = {
        key: (got[key], want[key])
        for key in want
        if not abs(got[key] - want[key]) <= tolerance * max(1.0, abs(want[key]))
    }
    assert not off
