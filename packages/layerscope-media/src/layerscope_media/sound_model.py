"""Speech models: loading, batches and frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from layerscope.capture import Anatomy
from layerscope.data import Items
from layerscope.errors import DataError, LayerscopeError
from layerscope.models import (
    Family,
    ItemReader,
    Part,
    ReadSettings,
    Row,
    Source,
    ViewSettings,
    read_pretrained,
    unwrap,
)
from layerscope_media.model import MediaModel, ValueBatch
from layerscope_media.sounds import RATE

_NOISE = 0.1  # as a share of the sound's level: 20 dB below it


@dataclass
class SoundModel(MediaModel):
    """One speech model. Its processor is a feature extractor, and its tokens are the frames that
    the blocks read."""

    @property
    def kind(self) -> str:
        return "sounds"

    def _reader(self, items: Items, settings: ReadSettings) -> ItemReader:
        rate = int(items.source.get("rate", RATE))
        model_rate = int(getattr(self.processor, "sampling_rate", RATE))
        if rate != model_rate:
            raise DataError(
                f"{self.name} reads {model_rate} samples per second, and the sounds have {rate}. "
                "Convert them first."
            )
        return SoundReader(self, items)

    @property
    def has_window(self) -> bool:
        """Return True if every sound is padded to one length, as in Whisper."""
        return self.anatomy.family == "whisper"

    @property
    def input_name(self) -> str:
        """Return the name of the module's input."""
        return "input_features" if self.has_window else "input_values"

    @property
    def one_at_a_time(self) -> bool:
        """Return True for models without a window. Padding would change the states of many of
        them, which norm over time."""
        return not self.has_window

    @cached_property
    def max_length(self) -> int | None:
        """Return the frames of the window; None where sounds may have any length."""
        config: Any = self.module.config
        return int(config.max_source_positions) if self.has_window else None

    def frames(self, samples: int) -> int:
        """Return the number of frames of a sound with this many samples."""
        if self.has_window:
            hop = int(getattr(self.processor, "hop_length", 160))
            return max(1, min(self.max_length or 1, -(-samples // (2 * hop))))
        config: Any = self.module.config
        count = samples
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            count = (count - kernel) // stride + 1
        return max(0, count)

    def lengths(self, rows: Sequence[Any]) -> list[int]:
        return [self.frames(len(row)) for row in rows]

    def make_batch(self, rows: Sequence[Any]) -> ValueBatch:
        """Put sounds, prepared by the feature extractor, into one batch, with a mask for the
        padding to a window."""
        counts = self.lengths(rows)
        if self.one_at_a_time and len({len(row) for row in rows}) > 1:
            raise LayerscopeError(
                f"{self.name} reads sounds of different lengths one at a time; give one."
            )
        waves = [np.asarray(row, dtype=np.float32) for row in rows]
        rate = int(getattr(self.processor, "sampling_rate", RATE))
        inputs = self.processor(waves, sampling_rate=rate, return_tensors="pt")
        values = inputs[self.input_name].to(self.device, self.dtype)
        mask = None
        if self.has_window:
            places = torch.arange(self.max_length or 0, device=self.device)
            mask = places[None] < torch.tensor(counts, device=self.device)[:, None]
        none = torch.empty((len(rows), 0), dtype=torch.int64, device=self.device)
        return ValueBatch(none, mask, counts, values=values)

    def run(self, batch: Any) -> Any:
        with torch.inference_mode():
            return self.module(**{self.input_name: batch.values})


class SoundReader(ItemReader):
    """Reads sounds as samples; the model's feature extractor prepares them batch by batch."""

    most_kept = 256 * 2**20

    def __init__(self, model: SoundModel, items: Items) -> None:
        super().__init__(model, items, model.max_length)

    def survey(self, numbers: np.ndarray) -> Part:
        rows = self.read(numbers)
        lengths = np.array(self.model.lengths(rows), dtype=np.int64)
        window = getattr(self.model.processor, "n_samples", None) if self.model.has_window else None
        truncated = np.array([window is not None and len(row) > window for row in rows], dtype=bool)
        return Part(numbers, lengths, truncated, rows, sum(np.asarray(row).nbytes for row in rows))

    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        return [self.items.waves[int(i)] for i in numbers]

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> Sequence[Row]:
        """Return copies with noise 20 dB below the sound's level and half to twice its loudness;
        the random numbers depend on the sound's content."""
        out: list[Row] = []
        for number, row in zip(numbers, rows, strict=True):
            samples = np.asarray(row, dtype=np.float32)
            level = float(np.sqrt(np.mean(samples**2))) or 1e-4
            for view in range(views.count):
                rng = np.random.default_rng([views.seed, view, int(self.items.keys[int(number)])])
                noisy = samples + _NOISE * level * rng.standard_normal(len(samples))
                out.append((2 ** rng.uniform(-1, 1) * noisy).astype(np.float32))
        return out

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        model = self.model
        padding = "none"
        if model.has_window:
            padding = "to the model's window; its frames beyond the sound are left out"
        recipe = "noise 20 dB below the sound, loudness from half to twice"
        facts: dict[str, Any] = {"augmenter": None, "augmentations": None}
        if settings.count:
            facts = {"augmenter": "builtin (sounds)", "augmentations": recipe}
        return {
            "items": "sounds",
            "pooling": "mean over frames",
            "tokens": "frames, in order of time",
            "padding": padding,
            "max_length": model.max_length,
            **facts,
        }

    def facts(self, survey: Part) -> dict[str, Any]:
        return {**super().facts(survey), "tokens": "frames"}


class SoundFamily(Family):
    """A family of speech models."""

    kind: ClassVar[str] = "sounds"

    def read(self, source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
        return read_sound_model(source, options)

    def make_model(
        self, module: nn.Module, preparation: Any, anatomy: Anatomy, name: str
    ) -> SoundModel:
        processor = preparation if preparation is not None else default_extractor(module)
        return SoundModel(module, None, anatomy, name, processor=processor)


def read_sound_model(source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """Return the speech model in a source's folder, or its encoder if it also has a decoder, and
    the feature extractor."""
    from transformers import AutoFeatureExtractor, AutoModel

    trusted = bool(options.get("trust_remote_code"))

    def read_extractor() -> Any:
        return AutoFeatureExtractor.from_pretrained(
            source.path, local_files_only=True, trust_remote_code=trusted
        )

    # a checkpoint may lack the embedding of masks, which serve training
    loaded, extractor = read_pretrained(
        source, AutoModel, options, r"masked_spec_embed$", read_extractor
    )
    return unwrap(loaded), extractor


def default_extractor(module: Any) -> Any:
    """Return the usual feature extractor of a model that has none."""
    from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

    config: Any = getattr(module, "config", None)
    if getattr(config, "model_type", None) == "whisper":
        seconds = 2 * config.max_source_positions * 160 // RATE
        return WhisperFeatureExtractor(
            feature_size=config.num_mel_bins, chunk_length=max(1, seconds)
        )
    return Wav2Vec2FeatureExtractor(do_normalize=True, sampling_rate=RATE)
