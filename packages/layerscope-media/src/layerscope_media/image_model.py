"""Image models: their anatomy, their batches and their facts for the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from layerscope.capture import Anatomy, Capture, Site
from layerscope.data import Items
from layerscope.errors import InvalidValueError, LayerscopeError, ModelError, UnknownNameError
from layerscope.models import ItemReader, Part, ReadSettings, Row, ViewSettings
from layerscope.spectra import to_device
from layerscope_media.image_files import describe
from layerscope_media.model import MediaModel, ValueBatch
from layerscope_media.pixels import RECIPE, PixelReader, as_pair

if TYPE_CHECKING:
    from layerscope_media.image_family import ImageFamily

TokensRead = Literal["patches", "all"]
TOKENS_READ: tuple[TokensRead, ...] = get_args(TokensRead)
ImagePooling = Literal["mean", "class"]
_MOST_BYTES = 256 * 2**20  # of prepared images in memory; more are decoded when needed
IMAGE_POOLINGS: tuple[ImagePooling, ...] = get_args(ImagePooling)


@dataclass(frozen=True)
class ImageAnatomy(Anatomy):
    """The anatomy of an image model; `class_token` and `registers` come before the patches."""

    class_token: bool = False
    registers: int = 0

    @property
    def leading(self) -> int:
        """Return the number of tokens before the patches: the class token and the registers."""
        return int(self.class_token) + self.registers


@dataclass
class ImageModel(MediaModel):
    """One image model, with the processor that turns images into its input.

    `tokens` is `patches`, which leaves out class and register tokens, or `all`. `pooling` is the
    `mean` over these tokens or the `class` token.
    """

    anatomy: ImageAnatomy
    family: ImageFamily = None  # type: ignore[assignment]  # after fields with defaults
    processor_from: str = ""
    tokens: TokensRead = "patches"
    pooling: ImagePooling = "mean"

    @property
    def kind(self) -> str:
        return "images"

    def _reader(self, items: Items, settings: ReadSettings) -> ItemReader:
        return ImageReader(self, items, settings)

    @cached_property
    def reader(self) -> PixelReader:
        """Return the reader that decodes and prepares images for this model."""
        return PixelReader(self.processor)

    @property
    def item_bytes(self) -> int:
        """Return the approximate bytes of one prepared image."""
        config = getattr(self.module, "config", None)
        height, width = height_and_width(config, "image_size", 32)
        return int(height * width * getattr(config, "num_channels", 3) * 4)

    def try_model(self) -> Any:
        return self.family.try_model(self.module)

    @cached_property
    def max_length(self) -> int | None:
        """Return None: images are not truncated."""
        return None

    def set_reading(self, tokens: str | None = None, pooling: str | None = None) -> None:
        """Set the tokens that are read and the pooling; None keeps the present value."""
        if tokens is not None:
            if tokens not in TOKENS_READ:
                raise UnknownNameError("tokens", tokens, TOKENS_READ)
            self.tokens = tokens
        if pooling is not None:
            if pooling not in IMAGE_POOLINGS:
                raise UnknownNameError("image pooling", pooling, IMAGE_POOLINGS)
            if pooling == "class" and not self.anatomy.class_token:
                raise InvalidValueError(f"{self.name} has no class token; use image_pooling=mean.")
            self.pooling = pooling

    def count_tokens(self, row: np.ndarray) -> int:
        """Return the number of tokens of one prepared image, with class and register tokens."""
        if row.ndim == 1:  # palette indices: a token each
            return len(row) + self.anatomy.leading
        height, width = height_and_width(getattr(self.module, "config", None), "patch_size")
        return (row.shape[-2] // height) * (row.shape[-1] // width) + self.anatomy.leading

    def check_layout(self, row: np.ndarray) -> None:
        """Run one prepared image, and raise an error unless the first block gets the expected
        number of tokens."""
        counts: list[int] = []
        batch = self.make_batch([row])
        with Capture(self.anatomy, [Site("embed", 0, 0.0)], "raw") as capture:
            try:
                capture.run(
                    lambda: self.run(batch), lambda _site, raw, _norm: counts.append(raw.shape[1])
                )
            except (RuntimeError, ValueError, IndexError) as error:
                size = "×".join(map(str, row.shape))
                raise ModelError(
                    f"{self.name} cannot read an image prepared as {size}: {error}"
                ) from error
        expected = self.count_tokens(row)
        if counts != [expected]:
            raise ModelError(
                f"{self.name} has {counts} tokens for an image where {expected} were expected "
                f"({self.anatomy.leading} of them before the patches): the "
                f"{self.anatomy.family} family does not describe it."
            )

    def lengths(self, rows: Sequence[Any]) -> list[int]:
        """Return the number of tokens that are read of each prepared image."""
        skip = self._skipped(self.tokens)
        return [self.count_tokens(row) - skip for row in rows]

    def _skipped(self, tokens: str) -> int:
        """Return the number of leading tokens that are not read."""
        return self.anatomy.leading if tokens == "patches" else 0

    def make_batch(self, rows: Sequence[Any], tokens: str | None = None) -> ValueBatch:
        """Put prepared images into one batch on the model's device; `tokens` overrides the
        model's."""
        read = self.tokens if tokens is None else tokens
        if read not in TOKENS_READ:
            raise UnknownNameError("tokens", read, TOKENS_READ)
        skip = self._skipped(read)
        count = self.count_tokens(rows[0]) - skip
        sizes = {row.shape for row in rows}
        if len(sizes) > 1:
            shown = ", ".join("×".join(map(str, size)) for size in sorted(sizes)[:3])
            raise LayerscopeError(
                f"the image processor gives images of different sizes ({shown}); it must give one "
                "size."
            )
        pixels = torch.from_numpy(np.stack(rows))
        if pixels.is_floating_point():
            pixels = pixels.to(self.dtype)
        pixels = to_device(pixels, self.device)
        no_ids = torch.empty((len(rows), 0), dtype=torch.int64, device=self.device)
        counts = [count] * len(rows)
        class_only = self.pooling == "class"
        return ValueBatch(no_ids, None, counts, skip, class_only, values=pixels)

    def run(self, batch: Any) -> Any:
        return self.family.call(self.module, batch.values)

    def own_identity(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "modality": "image",
            "processor": describe(self.processor),
            "processor_from": self.processor_from,
            "class_token": self.anatomy.class_token,
            "registers": self.anatomy.registers,
        }
        return {**facts, **self.family.own_identity(self.module)}


class ImageReader(ItemReader):
    """Reads images as the model's processor prepares them, all with the same number of tokens."""

    most_kept = _MOST_BYTES

    def __init__(self, model: ImageModel, items: Items, settings: ReadSettings) -> None:
        model.set_reading(settings.own.get("tokens"), settings.own.get("image_pooling"))
        super().__init__(model, items)

    def survey(self, numbers: np.ndarray) -> Part:
        """Count the tokens of one image, and prepare all images if they take little memory."""
        sample = self.read(numbers[:1])
        self.model.check_layout(sample[0])
        self.max_length = count = self.model.lengths(sample)[0]
        n = len(numbers)
        total_bytes = np.asarray(sample[0]).nbytes * len(numbers)
        rows = self.read(numbers) if total_bytes <= self.most_kept else None
        return Part(
            numbers, np.full(n, count, dtype=np.int64), np.zeros(n, dtype=bool), rows, total_bytes
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        return self.model.reader.read(self.items, numbers)

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> Sequence[Row]:
        return list(self.model.reader.views(self.items, numbers, views.count, views.seed))

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        """Return facts about the tokens that are read, the pooling and the views."""
        model = self.model
        anatomy = model.anatomy
        leading = ["class token"] if anatomy.class_token else []
        if anatomy.registers:
            leading.append(f"{anatomy.registers} registers")
        front = ", ".join(leading)
        read = "patches"
        left_out = ""
        if front and model.tokens == "patches":
            left_out = f", {front} left out"
        elif front:
            read = f"all tokens ({front} and patches)"
        pooled = "the class token" if model.pooling == "class" else f"mean over {read}{left_out}"
        hf = "normed" if anatomy.hf_norms_last else "raw"
        facts: dict[str, Any] = {"augmenter": None, "augmentations": None}
        if settings.count:
            facts = {"augmenter": "builtin (images)", "augmentations": RECIPE}
        if "attention" in model.identity:
            facts["attention"] = model.identity["attention"]
        if model.family.notes:
            facts["notes"] = model.family.notes
        return {
            "items": "images",
            "pooling": pooled,
            "tokens": f"{read}{left_out}, in raster order",
            "image_tokens": model.tokens,
            "image_pooling": model.pooling,
            "padding": "none: all images have the same number of tokens",
            "max_length": None,
            "hf": f"output_hidden_states of this family is {hf} at the last layer",
            **facts,
        }

    @property
    def has_class_token(self) -> bool:
        return bool(self.model.anatomy.class_token)

    def facts(self, survey: Part) -> dict[str, Any]:
        """Return the number of patches and the images that were left out."""
        anatomy = self.model.anatomy
        return {
            "patches": int(survey.lengths[0]) if len(survey.lengths) else 0,
            "tokens": "patches; class and register tokens are left out",
            "class_token": anatomy.class_token,
            "registers": anatomy.registers,
            "dropped": dict(self.items.dropped),
        }

    def warnings(self) -> list[str]:
        """Return a warning if the model has no processor of its own."""
        if "default" not in str(self.model.identity.get("processor_from", "")):
            return []
        return [
            "the model has no image processor: layerscope's default was used (`processor` in the "
            "manifest). If the model was trained with another preparation, its states are wrong."
        ]

    def close(self) -> None:
        self.model.reader.close()


def height_and_width(config: Any, name: str, default: int | None = None) -> tuple[int, int]:
    """Return a height and a width from a configuration, which may give one number for both."""
    side = getattr(config, name, None) or default
    if side is None:
        raise ModelError(f"the model's config has no {name}, which image models need. Add it.")
    return as_pair(side)
