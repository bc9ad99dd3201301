"""The base class of image families, and the family of models that no other describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from layerscope.capture import Anatomy
from layerscope.errors import ModelError
from layerscope.models import Family, GenericFamily, Source
from layerscope_media.image_files import Prepared, default_processor, read_image_model
from layerscope_media.image_model import ImageAnatomy, ImageModel, height_and_width


@dataclass(frozen=True)
class ImageFamily(Family):
    """A family of image models.

    `class_token` and `registers` (which may depend on the config) come before the patches.
    `class_norm_only`: the model applies the final norm to the class token alone, and so does
    `applied`. `hf_norms_last` is as in `Anatomy`. `loads` names the class of the image part, for
    model types that also have a text part (`containers`).
    """

    kind: ClassVar[str] = "images"

    class_token: bool = False
    registers: int | Callable[[Any], int] = 0
    class_norm_only: bool = False
    hf_norms_last: bool = True
    loads: str | None = None

    @property
    def has_own_classes(self) -> bool:
        return ":" in (self.loads or "")

    def resolve(self, module: nn.Module) -> ImageAnatomy:
        anatomy = vars(super().resolve(module))
        norm = anatomy["final_norm"]
        if norm is not None and self.class_norm_only:
            norm = ClassTokenNorm(norm)
        config = getattr(module, "config", None)
        settings = {
            "final_norm": norm,
            "class_token": self.class_token,
            "registers": self.registers(config) if callable(self.registers) else self.registers,
            "hf_norms_last": self.hf_norms_last,
        }
        return ImageAnatomy(**{**anatomy, **settings})

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """Run a model on pixels or palette indices, with every patch in its place."""
        return module(pixel_values=pixels)

    def try_model(self, module: nn.Module) -> Any:
        """Run a model on one image of noise."""
        with torch.inference_mode():
            return self.call(module, sample_image(module))

    def own_identity(self, module: nn.Module) -> dict[str, Any]:
        """Return the facts of a model's identity that only this family has."""
        return {}

    def read(self, source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
        return read_image_model(source, self.loads, options)

    def make_model(
        self, module: nn.Module, preparation: Any, anatomy: Anatomy, name: str
    ) -> ImageModel:
        if preparation is None:
            default = default_processor(module)
            preparation = Prepared(default, "none given: layerscope's default")
        if not isinstance(preparation, Prepared):
            preparation = Prepared(preparation, "given")
        assert isinstance(anatomy, ImageAnatomy)
        return ImageModel(
            module,
            None,
            anatomy,
            name,
            processor=preparation.processor,
            family=self,
            processor_from=preparation.origin,
        )

    def sees_ahead(self, module: nn.Module) -> bool:
        """Return True if the last pixels change the first token."""
        if not reads_pixels(module):
            return super().sees_ahead(module)
        image = sample_image(module)
        changed = image.clone()
        changed[..., -1:, -1:] += 1
        with torch.inference_mode():
            states, changed_states = (
                _states(self.call(module, pixels)) for pixels in (image, changed)
            )
        return not torch.equal(states[0, 0], changed_states[0, 0])


class GenericImageFamily(ImageFamily, GenericFamily):
    """The family of image models whose type no other declares; it searches for their parts."""

    def fits(self, model_type: str | None, module: nn.Module | None = None) -> bool:
        """Return True if transformers' base model of a type takes only pixels."""
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            MODEL_MAPPING_NAMES,
        )

        if module is not None:
            return reads_pixels(module)
        mappings = (MODEL_MAPPING_NAMES, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
        return all(model_type in names for names in mappings)

    def resolve(self, module: nn.Module) -> ImageAnatomy:
        anatomy = vars(super().resolve(module))
        leading = _leading_tokens(module, anatomy["blocks"][-1], self)
        settings = {
            "class_token": leading > 0,
            "registers": max(0, leading - 1),
            "hf_norms_last": False,
        }
        return ImageAnatomy(**{**anatomy, **settings})


def _leading_tokens(module: nn.Module, last_block: nn.Module, family: ImageFamily) -> int:
    """Return the number of tokens that are no patches; they are assumed to come first."""
    image = sample_image(module)
    height, width = height_and_width(getattr(module, "config", None), "patch_size")
    patches = (image.shape[-2] // height) * (image.shape[-1] // width)
    counts: list[int] = []
    handle = last_block.register_forward_hook(
        lambda _block, _given, output: counts.append(_states(output).shape[1])
    )
    try:
        family.try_model(module)
    finally:
        handle.remove()
    leading = counts[-1] - patches
    if leading < 0:
        raise ModelError(
            f"{type(module).__name__} has {counts[-1]} tokens for {patches} patches: its parts "
            "cannot be found. Add a family for it (docs/extend.md)."
        )
    return leading


def reads_pixels(module: nn.Module) -> bool:
    """Return True if a module declares pixels as its main input."""
    return getattr(module, "main_input_name", "input_ids") == "pixel_values"


def sample_image(module: nn.Module) -> Tensor:
    """Return one image of noise on a model's device."""
    config = getattr(module, "config", None)
    weight = next(module.parameters())
    channels = int(getattr(config, "num_channels", 3))
    shape = (1, channels, *height_and_width(config, "image_size", 224))
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return noise.to(weight.device, weight.dtype)


def _states(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


class ClassTokenNorm(nn.Module):
    """A norm that a model applies to its class token alone; other tokens are not changed."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: Tensor) -> Tensor:
        """Norm the first token of states (B, T, D), which is the class token."""
        normed = states.clone()
        normed[:, 0] = self.norm(states[:, 0])
        return normed
