"""Prefix entropies of every prompt at every layer of one model, prompt by prompt on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Capture, Site, expand_sites, make_batch
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store import atomic
from layerscope.studies.base import Request
from layerscope.studies.reasoning_parts.prefixes import entropies_of_prefixes
from layerscope.studies.shared.profiles import folder_name
from layerscope.studies.shared.specs import Spec

SINKS = ("keep", "drop")
_FEWEST_TOKENS = 3  # a shorter prompt has no prefix worth the name


@dataclass
class Measured:
    """One model: `values` by sink setting (prompts, layers, positions), NaN where a prompt is shorter or a value undefined."""

    label: str
    identity: dict[str, Any]
    sites: list[Site]
    positions: np.ndarray
    values: dict[str, np.ndarray]
    tokenizer: str
    warnings: list[str] = field(default_factory=list)


def measure(request: Request, spec: Spec, bar: Progress) -> Measured:
    """Run one model over all prompts."""
    assert request.texts is not None
    model = spec.open(request)
    sites = expand_sites(None, model.anatomy)
    tokens = model.tokenize(list(request.texts.texts), request.max_length)
    longest = max((len(ids) for ids in tokens.ids), default=0)
    if longest < _FEWEST_TOKENS:
        raise LayerscopeError(f"every text has fewer than {_FEWEST_TOKENS} tokens: there is nothing to follow.")
    positions = _positions(longest, request.options["stride"])
    values = {sink: np.full((len(tokens.ids), len(sites), len(positions)), np.nan) for sink in SINKS}
    folder = request.work / folder_name(spec.label)
    folder.mkdir(parents=True, exist_ok=True)
    bar.begin(f"{spec.label}|prompts", len(tokens.ids))
    for i, ids in enumerate(tokens.ids):
        if len(ids) >= _FEWEST_TOKENS:
            held = folder / f"{i:06d}.npy"
            if not held.exists():
                atomic.write_array(held, _prompt(model, sites, ids, positions[positions <= len(ids)], request))
            block = np.load(held)
            for k, sink in enumerate(SINKS):
                values[sink][i, :, : block.shape[2]] = block[k]
        bar.advance(1)
    short = sum(len(ids) < _FEWEST_TOKENS for ids in tokens.ids)
    notes = [f"{spec.label}: {short} texts with fewer than {_FEWEST_TOKENS} tokens are left out."] if short else []
    if any(tokens.truncated):
        notes.append(f"{spec.label}: {sum(tokens.truncated)} of {len(tokens.ids)} texts were cut to {request.max_length} tokens.")
    cut = hashlib.sha256(str(tokens.ids[:8]).encode()).hexdigest()
    return Measured(spec.label, model.identity, sites, positions, values, cut, notes)


def _positions(longest: int, stride: int) -> np.ndarray:
    """Lengths that are looked at: every stride-th from 2 on, and the longest."""
    return np.unique([*range(max(2, stride), longest + 1, stride), longest])


def _prompt(model: LoadedModel, sites: list[Site], ids: list[int], lengths: np.ndarray, request: Request) -> np.ndarray:
    """(sink settings, layers, lengths) of one prompt. Each layer's states are let go before the next."""
    out = np.full((len(SINKS), len(sites), len(lengths)), np.nan)

    def follow(index: int, raw: Tensor, state: Tensor) -> None:
        rows = state[0].double()
        sink = int(torch.linalg.vector_norm(raw[0].double(), dim=-1).argmax())
        others = torch.cat([rows[:sink], rows[sink + 1 :]])
        fewer = np.where(lengths > sink, lengths - 1, lengths)  # what is left of each prefix
        options = request.options
        for k, (kept, counts) in enumerate(((rows, lengths), (others, fewer))):
            distinct, back = np.unique(counts, return_inverse=True)
            found = entropies_of_prefixes(kept, distinct.tolist(), options["rows"], options["center"], options["alpha"])
            out[k, index] = found.cpu().numpy()[back]

    batch = make_batch([ids], model.pad_id, model.device)
    with Capture(model.anatomy, sites, request.final_norm, follow) as capture:  # type: ignore[arg-type]
        capture.run(lambda: model.run(batch))
    return out
