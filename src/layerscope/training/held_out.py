"""The held-out texts, as token ids that do not change during the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import DataError
from layerscope.models import LoadedModel


def read_held_out(model: LoadedModel, given: Any, max_length: int) -> list[np.ndarray]:
    """Token ids of texts, of a batch with `input_ids` (and `attention_mask`), or of a tensor of ids, cut to `max_length`."""
    if isinstance(given, str):
        raise DataError("held-out texts are a list of strings, and one string was given. Wrap it in a list.")
    if isinstance(given, Mapping) or hasattr(given, "input_ids"):
        ids, mask = given["input_ids"], given.get("attention_mask")
        rows = _rows(ids, mask)
    elif isinstance(given, Tensor):
        rows = _rows(given, None)
    else:
        texts = list(given)
        if not all(isinstance(text, str) for text in texts):
            raise DataError("held-out data is a list of strings, a batch with input_ids, or a tensor of token ids.")
        limit = max_length if model.max_length is None else min(max_length, model.max_length)
        rows = [np.asarray(ids, dtype=np.int64) for ids in model.tokenize(texts, limit).ids]
    rows = [row[:max_length] for row in rows if len(row)]
    if not rows:
        raise DataError("the held-out data holds no token. Give some texts that the model is not trained on.")
    return rows


def _rows(ids: Tensor, mask: Tensor | None) -> list[np.ndarray]:
    if ids.ndim != 2:
        raise DataError(f"a batch of token ids has two dimensions (texts, tokens), not {ids.ndim}.")
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return [row[kept].cpu().numpy().astype(np.int64) for row, kept in zip(ids, keep, strict=True)]


def fingerprint(rows: Sequence[np.ndarray]) -> str:
    """What tells these held-out texts from others."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.tobytes() + b"|")
    return digest.hexdigest()
