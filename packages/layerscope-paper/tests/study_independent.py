"""What studies measure, once more: states from transformers' own calls, one text at a time, float64
numpy throughout."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.metrics.reference import prepare
from tests.profiling.reference import raw_layers

from layerscope.models import LoadedModel


def spectrum(states: np.ndarray) -> np.ndarray:
    """Singular values of centered rows of length 1."""
    return np.linalg.svd(prepare(states, "centered-unit"), compute_uv=False)


def shannon(weights: np.ndarray) -> float:
    total = weights.sum()
    if total <= 0:
        return math.nan
    p = weights[weights > 1e-12 * weights.max()] / total
    return float(-(p * np.log(p)).sum())


def entropy(states: np.ndarray, sink: str) -> float:
    """S_1 of token states, with the largest token or without it."""
    return shannon(spectrum(_kept(states, sink)) ** 2)


def rank(states: np.ndarray, sink: str) -> float:
    """Effective rank of token states."""
    s = spectrum(_kept(states, sink))
    return math.exp(shannon(np.where(s > 1e-6 * s.max(), s, 0.0)))


def _kept(states: np.ndarray, sink: str) -> np.ndarray:
    if sink == "keep":
        return states
    return np.delete(states, int(np.argmax(np.linalg.norm(states, axis=1))), axis=0)


def layer_entropies(model: LoadedModel, ids: list[int], sink: str) -> np.ndarray:
    """Of layers 0 … L, states without the final norm."""
    return np.array([entropy(states, sink) for states in raw_layers(model, ids)])


def inside_llama(model: LoadedModel, ids: list[int]) -> dict[str, np.ndarray]:
    """Every state inside every block, by calling the block's parts one after the other: no
    hooks."""
    module = model.module
    layers = raw_layers(model, ids)
    positions = torch.arange(len(ids)).unsqueeze(0)
    out = {"embed": layers[0]}
    with torch.no_grad():
        for k, block in enumerate(module.layers):  # type: ignore[arg-type, union-attr]
            x = torch.from_numpy(layers[k]).float().unsqueeze(0)
            norm1 = block.input_layernorm(x)
            turned = module.rotary_emb(x, positions)  # type: ignore[operator]
            attn = block.self_attn(
                hidden_states=norm1, position_embeddings=turned, attention_mask=None
            )[0]
            mid = x + attn
            norm2 = block.post_attention_layernorm(mid)
            mlp = block.mlp(norm2)
            assert np.allclose((mid + mlp)[0].numpy(), layers[k + 1], atol=1e-4)
            parts = {"norm1": norm1, "attn": attn, "mid": mid, "norm2": norm2, "mlp": mlp}
            out |= {f"block.{k}.{name}": state[0].double().numpy() for name, state in parts.items()}
            out[f"block.{k}"] = layers[k + 1]
    return out


def inside_parallel(model: LoadedModel, ids: list[int]) -> dict[str, np.ndarray]:
    """The same for GPT-NeoX, whose branches read the same input; attention is what is left of the
    sum."""
    layers = raw_layers(model, ids)
    out = {"embed": layers[0]}
    with torch.no_grad():
        for k, block in enumerate(model.module.layers):  # type: ignore[arg-type]
            x = torch.from_numpy(layers[k]).float().unsqueeze(0)
            norm1, norm2 = block.input_layernorm(x), block.post_attention_layernorm(x)
            mlp = block.mlp(norm2)
            attn = torch.from_numpy(layers[k + 1]).float().unsqueeze(0) - x - mlp
            parts = {"norm1": norm1, "attn": attn, "norm2": norm2, "mlp": mlp}
            out |= {f"block.{k}.{name}": state[0].double().numpy() for name, state in parts.items()}
            out[f"block.{k}"] = layers[k + 1]
    return out
