"""Models as mteb sees them: one layer under one readout, whose vectors are looked up, and one that
only notes the texts.

Scoring alone needs mteb: this file is imported where scores are computed, so that the rest works
without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from layerscope.extras import missing

__all__ = ["LayerView", "model_meta"]

try:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder
except ImportError:
    raise missing("mteb") from None


def model_meta(
    name: str, revision: str | None, width: int, experiment: dict[str, Any] | None
) -> ModelMeta:
    """Return what mteb files a result under, with the experiment's settings (layer, readout)."""
    fields = ModelMeta.model_fields.items()
    unknown = dict.fromkeys(field for field, facts in fields if facts.is_required())
    settings = {
        "name": name if "/" in name else f"layerscope/{name}",
        "revision": revision or "unknown",
        "embed_dim": width,
        "experiment_kwargs": experiment,
        "framework": ["PyTorch"],
        "similarity_fn_name": "cosine",
        "open_weights": True,
        "use_instructions": False,
    }
    return ModelMeta(**{**unknown, **settings})


def texts_of(inputs: Iterable[dict[str, Any]]) -> list[str]:
    """Return the texts that mteb asks to be encoded, in its order."""
    return [text for batch in inputs for text in batch["text"]]


class LayerView(AbsEncoder):
    """A model that is one layer under one readout: encoding is looking up."""

    def __init__(self, lookup: Callable[[list[str]], np.ndarray], meta: ModelMeta) -> None:
        self.lookup = lookup
        self.mteb_model_meta = meta

    def encode(self, inputs: Any, **kwargs: Any) -> np.ndarray:
        """Return the stored vectors of the texts."""
        return self.lookup(texts_of(inputs))


class TextCollector(AbsEncoder):
    """A model that records every text that a task encodes.

    Its vectors are two numbers that depend on the text: enough to be scored.
    """

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.mteb_model_meta = model_meta("collector", None, 2, None)

    def encode(self, inputs: Any, **kwargs: Any) -> np.ndarray:
        """Return two numbers per text."""
        texts = texts_of(inputs)
        self.texts.update(dict.fromkeys(texts))
        digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        return np.array([[1 + d[0], 1 + d[1]] for d in digests], dtype=np.float32)
