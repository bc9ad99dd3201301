"""The common base of image and speech models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from layerscope.capture import Batch
from layerscope.errors import ModelError
from layerscope.models import LoadedModel, Tokens


@dataclass(frozen=True, kw_only=True)
class ValueBatch(Batch):
    """A batch of a model that reads no token ids.

    `values` are pixels, palette indices, samples of sounds or spectrograms. Where sounds are padded
    to one window, `mask` is True for the frames of each sound.
    """

    values: Tensor


@dataclass
class MediaModel(LoadedModel):
    """A model that reads images or sounds, and the processor that prepares its input."""

    processor: Any = None

    @property
    def preparation(self) -> Any:
        return self.processor

    def forward(self, input_ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Any:
        raise self._refusal()

    def tokenize(self, texts: Any, max_length: int | None = None) -> Tokens:
        raise self._refusal()

    def find_shortcuts(self) -> None:
        """Do nothing: shortcuts exist only for models that read texts."""

    def _refusal(self) -> ModelError:
        return ModelError(
            f"{self.name} reads {self.kind}: give {self.kind} (data=) instead of texts."
        )
