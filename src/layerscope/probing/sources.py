"""What a model is run on: labelled texts or images, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from layerscope.capture import Batch, make_batch
from layerscope.models import LoadedModel

DEFAULT_MAX_LENGTH = 128


class Source(Protocol):
    """Items of one kind, ready for one model."""

    lengths: list[int]
    """Tokens that are read of each item."""

    has_class_token: bool
    """Whether the first token stands for the whole item."""

    def batch(self, items: Sequence[int]) -> Batch:
        """Some items as one batch on the model's device."""

    def facts(self) -> dict[str, Any]:
        """What the manifest says of reading them."""

    def close(self) -> None:
        """Let go of what was opened."""


class TextSource:
    """Texts, cut to `max_length` tokens. The class token is the first one of models that see both ways and have such a token."""

    def __init__(self, model: LoadedModel, texts: Sequence[str], max_length: int = DEFAULT_MAX_LENGTH) -> None:
        self._model = model
        self.max_length = max_length if model.max_length is None else min(max_length, model.max_length)
        tokens = model.tokenize(list(texts), self.max_length)
        self.truncated = sum(tokens.truncated)
        # a text without a token still needs a state
        self._ids = [ids or [model.pad_id] for ids in tokens.ids]
        self.lengths = [len(ids) for ids in self._ids]
        self.has_class_token = bool(model.identity.get("bidirectional")) and (
            getattr(model.tokenizer, "cls_token_id", None) is not None
        )

    def batch(self, items: Sequence[int]) -> Batch:
        """Padded on the right."""
        return make_batch([self._ids[i] for i in items], self._model.pad_id, self._model.device)

    def facts(self) -> dict[str, Any]:
        """Lengths, and how many texts were cut."""
        return {"max_length": self.max_length, "truncated": self.truncated, "tokens": "all, special tokens included"}

    def close(self) -> None:
        """Nothing to close."""


class ImageSource:
    """Images as the model's own processor prepares them; the patches are its tokens."""

    def __init__(self, model: Any, images: Any, workers: int | None = None) -> None:
        from layerscope.data.images import PixelReader

        self._model, self._images = model, images
        self._reader = PixelReader(model.processor, workers)
        self._reader.__enter__()
        first = self._reader.read(images, [0])
        self.lengths = [int(model.make_batch(first, tokens="patches").lengths[0])] * len(images)
        self.has_class_token = bool(model.anatomy.class_token)

    def batch(self, items: Sequence[int]) -> Batch:
        """Prepared pixels."""
        return self._model.make_batch(self._reader.read(self._images, list(items)), tokens="patches")

    def facts(self) -> dict[str, Any]:
        """How many patches there are, and what was left out."""
        anatomy = self._model.anatomy
        return {
            "patches": self.lengths[0] if self.lengths else 0,
            "tokens": "patches; class and register tokens are left out",
            "class_token": anatomy.class_token,
            "registers": anatomy.registers,
            "dropped": dict(self._images.dropped),
        }

    def close(self) -> None:
        """End the worker processes."""
        self._reader.__exit__(None, None, None)


class PixelSource:
    """Images that are prepared already: pixels (n, C, H, W) as the model takes them, on any device."""

    def __init__(self, model: Any, pixels: torch.Tensor) -> None:
        self._model, self._pixels = model, pixels
        count = int(model.make_batch([pixels[0].float().cpu().numpy()], tokens="patches").lengths[0])
        self.lengths = [count] * len(pixels)
        self.has_class_token = bool(model.anatomy.class_token)

    def batch(self, items: Sequence[int]) -> Batch:
        """A selection."""
        chosen = self._pixels[torch.from_numpy(np.asarray(items)).to(self._pixels.device)]
        chosen = chosen.to(self._model.device, self._model.dtype)
        none = torch.empty((len(chosen), 0), dtype=torch.int64, device=chosen.device)
        return Batch(none, None, [self.lengths[0]] * len(chosen), chosen, self._model.anatomy.leading)

    def facts(self) -> dict[str, Any]:
        """How many patches there are."""
        return {"patches": self.lengths[0], "tokens": "patches; class and register tokens are left out"}

    def close(self) -> None:
        """Nothing to close."""
