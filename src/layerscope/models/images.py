"""Image models: loading them (which family, which processor), their batches and states, and what
the manifest says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from layerscope.capture.batches import Batch
from layerscope.capture.hooks import Capture
from layerscope.core.sites import Site
from layerscope.data.images.imageset import pillow
from layerscope.data.images.pixels import (
    FILE,
    KIND,
    RECIPE,
    PixelPreparation,
    PixelReader,
    default_preparation,
)
from layerscope.data.items import Items
from layerscope.errors import InvalidValueError, LayerscopeError, ModelError, UnknownNameError
from layerscope.models import modules
from layerscope.models.architectures import ATTENTIONS
from layerscope.models.families import FAMILIES
from layerscope.models.families.base import Family
from layerscope.models.inputs import ItemReader, Part, ReadSettings, Row, ViewInputs, ViewSettings
from layerscope.models.loaded import LoadedModel
from layerscope.models.pretrained import read_pretrained
from layerscope.models.settings import quiet
from layerscope.models.source import Source
from layerscope.spectra import to_device

TokensRead = Literal["patches", "all"]
TOKENS_READ: tuple[TokensRead, ...] = get_args(TokensRead)
ImagePooling = Literal["mean", "class"]
_MOST_BYTES = 256 * 2**20  # of prepared images: of more, each is decoded again when it is needed
IMAGE_POOLINGS: tuple[ImagePooling, ...] = get_args(ImagePooling)


@dataclass
class ImageModel(LoadedModel):
    """One image model. `processor` turns images into its input; `tokens` says what is read of each
    image.

    `patches` leaves out the class and register tokens, `all` reads every token. `pooling` is what
    stands for an image: the `mean` over the tokens that are read, or the `class` token.
    """

    processor: Any = None
    tokens: TokensRead = "patches"
    pooling: ImagePooling = "mean"

    @property
    def kind(self) -> str:
        return "images"

    def _reader(self, items: Items, settings: ReadSettings) -> ItemReader:
        return ImageReader(self, items, settings)

    @cached_property
    def reader(self) -> PixelReader:
        """What decodes images and prepares them for this model; its worker processes end with
        it."""
        return PixelReader(self.processor)

    @property
    def item_bytes(self) -> int:
        """About what one prepared image takes."""
        config = getattr(self.module, "config", None)
        height, width = modules.height_and_width(config, "image_size", 32)
        return int(height * width * getattr(config, "num_channels", 3) * 4)

    @property
    def family(self) -> Family:
        return FAMILIES.get(self.anatomy.family)

    @cached_property
    def max_length(self) -> int | None:
        """Images are not cut."""
        return None

    def set_reading(self, tokens: str | None = None, pooling: str | None = None) -> None:
        """Choose which tokens are read and what stands for an image; None keeps what is set."""
        if tokens is not None:
            if tokens not in TOKENS_READ:
                raise UnknownNameError("tokens", tokens, TOKENS_READ)
            self.tokens = tokens
        if pooling is not None:
            if pooling not in IMAGE_POOLINGS:
                raise UnknownNameError("image pooling", pooling, IMAGE_POOLINGS)
            if pooling == "class" and not self.anatomy.class_token:
                raise InvalidValueError(
                    f"{self.name} ({self.anatomy.family}) has no class token; use image_pooling=mean."
                )
            self.pooling = pooling

    def count_tokens(self, row: np.ndarray) -> int:
        """Tokens of one prepared image as the blocks see them, class and register tokens
        included."""
        if row.ndim == 1:  # numbers of a palette: a token each
            return len(row) + self.anatomy.leading
        height, width = modules.height_and_width(getattr(self.module, "config", None), "patch_size")
        return (row.shape[-2] // height) * (row.shape[-1] // width) + self.anatomy.leading

    def check_layout(self, row: np.ndarray) -> None:
        """Run one prepared image and see that the first block gets as many tokens as were
        counted."""
        seen: list[int] = []
        batch = self.make_batch([row])
        with Capture(
            self.anatomy,
            [Site("embed", 0, 0.0)],
            "raw",
            lambda _i, raw, _s: seen.append(raw.shape[1]),
        ) as capture:
            try:
                capture.run(lambda: self.run(batch))
            except (RuntimeError, ValueError, IndexError) as error:
                size = "×".join(map(str, row.shape))
                raise ModelError(
                    f"{self.name} cannot read an image prepared as {size}: {error}"
                ) from error
        if seen != [self.count_tokens(row)]:
            raise ModelError(
                f"{self.name} has {seen} tokens for an image where {self.count_tokens(row)} were expected "
                f"({self.anatomy.leading} of them before the patches): the {self.anatomy.family} family does not describe it."
            )

    def lengths(self, rows: Sequence[Any]) -> list[int]:
        """How many tokens are read of each of some prepared images."""
        skip = self.anatomy.leading if self.tokens == "patches" else 0
        return [self.count_tokens(row) - skip for row in rows]

    def make_batch(self, rows: Sequence[Any], tokens: str | None = None) -> Batch:
        """Prepared images as one batch on the model's device; `tokens` overrides what is read."""
        read = self.tokens if tokens is None else tokens
        if read not in TOKENS_READ:
            raise UnknownNameError("tokens", read, TOKENS_READ)
        skip = self.anatomy.leading if read == "patches" else 0
        count = self.count_tokens(rows[0]) - skip
        sizes = {row.shape for row in rows}
        if len(sizes) > 1:
            shown = ", ".join("×".join(map(str, size)) for size in sorted(sizes)[:3])
            raise LayerscopeError(
                f"the image processor gives images of different sizes ({shown}); it must give one size."
            )
        pixels = torch.from_numpy(np.stack(rows))
        pixels = to_device(
            pixels.to(self.dtype) if pixels.is_floating_point() else pixels, self.device
        )
        no_ids = torch.empty((len(rows), 0), dtype=torch.int64, device=self.device)
        return Batch(no_ids, None, [count] * len(rows), pixels, skip, self.pooling == "class")

    def run(self, batch: Batch) -> Any:
        return self.family.call(self.module, batch.pixel_values)


class ImageReader(ItemReader):
    """Images as the model's own processor prepares them. All have as many tokens."""

    most_kept = _MOST_BYTES

    def __init__(self, model: ImageModel, items: Items, settings: ReadSettings) -> None:
        model.set_reading(settings.tokens, settings.pooling)
        super().__init__(model, items)

    def survey(self, numbers: np.ndarray) -> Part:
        """Count the tokens of one image, and prepare all of them if they take little memory."""
        first = self.read(numbers[:1])
        self.model.check_layout(first[0])
        self.max_length = count = self.model.lengths(first)[0]
        n, size = len(numbers), np.asarray(first[0]).nbytes * len(numbers)
        rows = self.read(numbers) if size <= self.most_kept else None
        return Part(numbers, np.full(n, count, dtype=np.int64), np.zeros(n, dtype=bool), rows, size)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        return self.model.reader.read(self.items, numbers)

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> ViewInputs:
        return ViewInputs(
            list(self.model.reader.views(self.items, numbers, views.count, views.seed))
        )

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        """Which tokens are read, what stands for an image, and how views are made."""
        model, anatomy = self.model, self.model.anatomy
        front = ", ".join(
            [
                *(["class token"] if anatomy.class_token else []),
                *([f"{anatomy.registers} registers"] if anatomy.registers else []),
            ]
        )
        left_out = f", {front} left out" if front and model.tokens == "patches" else ""
        read = (
            "patches"
            if model.tokens == "patches" or not front
            else f"all tokens ({front} and patches)"
        )
        pooled = "the class token" if model.pooling == "class" else f"mean over {read}{left_out}"
        hf = "normed" if anatomy.hf_norms_last else "raw"
        return {
            "pooling": pooled,
            "tokens": f"{read}{left_out}, in raster order",
            "image_tokens": model.tokens,
            "image_pooling": model.pooling,
            "padding": "none: every image has as many tokens",
            "max_length": None,
            "augmenter": "builtin (images)" if settings.count else None,
            "augmentations": RECIPE if settings.count else None,
            "hf": f"output_hidden_states of this family is {hf} at the last layer",
            **({"attention": model.identity["attention"]} if "attention" in model.identity else {}),
            **({"notes": model.family.notes} if model.family.notes else {}),
        }

    @property
    def has_class_token(self) -> bool:
        return bool(self.model.anatomy.class_token)

    def facts(self, part: Part) -> dict[str, Any]:
        """How many patches there are, and what was left out."""
        anatomy = self.model.anatomy
        return {
            "patches": int(part.lengths[0]) if len(part.lengths) else 0,
            "tokens": "patches; class and register tokens are left out",
            "class_token": anatomy.class_token,
            "registers": anatomy.registers,
            "dropped": dict(self.items.dropped),
        }

    def warnings(self) -> list[str]:
        """That the model came without a processor."""
        if "default" not in str(self.model.identity.get("processor_from", "")):
            return []
        return [
            "the model came without an image processor: layerscope's default was used (`processor` in the manifest). "
            "If the model was trained on images prepared otherwise, its states are not what they should be."
        ]

    def close(self) -> None:
        self.model.reader.close()


def read_image_model(
    source: Source, family: str, options: dict[str, Any], attention: str | None = None
) -> tuple[nn.Module, Any, str]:
    """The image model in a source's folder, its processor, and where that comes from."""
    import transformers

    loads = FAMILIES.get(family).loads
    known: Any = (
        transformers.AutoModel
        if loads is None
        else resolve_name(loads if ":" in loads else f"transformers:{loads}")
    )
    given = dict(options)
    trusted = bool(
        given.pop("trust_remote_code", None) if loads else given.get("trust_remote_code")
    )
    own = loads is not None and ":" in loads
    module, _ = read_pretrained(
        source, known, given, r"^(vision_model\.)?(pooler|head)\.", whole=own
    )
    # What pools the last layer is not read, and is often not in the checkpoint.
    for part in ("pooler", "head"):
        if isinstance(getattr(module, part, None), nn.Module):
            setattr(module, part, None)
            if hasattr(module, "use_head"):  # what asks for it
                module.use_head = False
    if attention is not None:
        module.config.set_attention(*_attention(attention))
    processor, where = read_processor(source.path, getattr(module, "config", None), trusted)
    return module, processor, where


def _attention(text: str) -> tuple[str, int | None]:
    """`causal`, `bidirectional` or `prefix:N`."""
    kind, _, count = text.partition(":")
    if kind not in ATTENTIONS or (kind == "prefix") != count.isdigit():
        raise InvalidValueError(
            f"attention must be bidirectional, causal or prefix:N (N patches), not {text!r}."
        )
    return kind, int(count) if count else None


def describe_images(model: ImageModel, where: str) -> dict[str, Any]:
    """What of an image model's identity a text model has not."""
    anatomy = model.anatomy
    facts: dict[str, Any] = {
        "modality": "image",
        "processor": describe(model.processor),
        "processor_from": where,
        "class_token": anatomy.class_token,
        "registers": anatomy.registers,
    }
    if anatomy.family == "aim":
        config: Any = model.module.config
        prefix = f":{config.prefix}" if config.attention == "prefix" else ""
        facts["attention"] = f"{config.attention}{prefix}"
    return facts


def read_processor(folder: Path, config: Any, trust_remote_code: bool = False) -> tuple[Any, str]:
    """The image processor of a folder, and in words where it comes from."""
    pillow()
    file = folder / FILE
    if not file.is_file():
        return default_preparation(config), f"none in {FILE}: layerscope's default"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is not readable JSON: {error}.") from error
    if facts.get("image_processor_type") == KIND:
        return PixelPreparation.from_dict(facts), FILE
    if getattr(config, "model_type", None) == "aim" and "image_processor_type" not in facts:
        return default_preparation(config), "the evaluation transform of AIM's authors"
    from transformers import AutoImageProcessor

    # transformers' processors come in two kinds; the one that needs torchvision is never asked for
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust_remote_code, backend="pil"
            )
    except Exception as error:
        raise ModelError(f"the image processor in {file} could not be loaded: {error}") from error
    return processor, FILE


def default_processor(module: Any) -> PixelPreparation:
    """For a model that came without one."""
    pillow()
    config = getattr(module, "config", None)
    if getattr(config, "model_type", None) == "imagegpt":
        raise ModelError(
            "ImageGPT reads colors of a palette: pass its ImageGPTImageProcessorPil (with clusters) to wrap()."
        )
    return default_preparation(config)


def describe(processor: Any) -> dict[str, Any]:
    """The processor's settings as plain values, for the manifest."""
    facts = processor.to_dict() if hasattr(processor, "to_dict") else {}
    shown = {
        key: value
        for key, value in facts.items()
        if value is not None and key != "clusters" and not key.startswith("_")
    }
    return {"type": type(processor).__name__, **json.loads(json.dumps(shown, default=str))}
