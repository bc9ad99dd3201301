"""What a profile of images does otherwise than one of texts: what is given, and what is said about it."""

from __future__ import annotations

from typing import Any

from layerscope.data.images import ImageSet
from layerscope.data.images.augment import RECIPE
from layerscope.data.images.load import load_images
from layerscope.errors import DataError, LayerscopeError
from layerscope.models import ImageModel, LoadedModel
from layerscope.profiling.config import PRESETS, ProfileConfig

DEFAULTS = {"tokens": "patches", "image_pooling": "mean"}


def wants_images(model: Any, texts: Any, images: Any) -> bool:
    """Whether a request is about images: they are given as such, or to a model that reads them."""
    if images is not None and not (isinstance(texts, str) and texts == "lee"):
        raise LayerscopeError("give either texts or images, not both.")
    return images is not None or isinstance(texts, ImageSet) or (isinstance(model, ImageModel) and texts != "lee")


def image_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a profile of images, as `make_config` takes them: what is not given has its default."""
    settings = {**given, **{name: given.get(name) or value for name, value in DEFAULTS.items()}}
    if given.get("max_length") is not None:
        raise LayerscopeError("max_length cuts texts; images are not cut. Leave it out.")
    if given.get("augmenter") not in (None, "builtin"):
        raise LayerscopeError(f"augmenter {given['augmenter']!r} is for texts; views of images are made by builtin.")
    if PRESETS.get(str(given.get("preset")), {}).get("augmenter") is not None:
        settings["augmenter"] = "builtin"  # the preset's is for texts
    return settings


def open_image_set(images: Any, reading: dict[str, Any], offline: bool) -> ImageSet:
    """The images of a profile."""
    given = {name: value for name, value in reading.items() if value is not None}
    if "text_filter" in given:
        raise DataError("text_filter is for texts; leave it out.")
    if isinstance(images, ImageSet):
        if given:
            raise DataError(f"{next(iter(given))} goes with images that are yet to be read: pass it to load_images instead.")
        return images
    return load_images(images, offline=offline, progress=None, **given)


def image_conventions(model: LoadedModel, config: ProfileConfig) -> dict[str, Any]:
    """What the manifest says of images in place of what it says of texts."""
    if not isinstance(model, ImageModel):
        return {}
    front = ", ".join(
        [*(["class token"] if model.anatomy.class_token else []),
         *([f"{model.anatomy.registers} registers"] if model.anatomy.registers else [])]
    )  # fmt: skip
    left_out = f", {front} left out" if front and config.tokens == "patches" else ""
    read = "patches" if config.tokens == "patches" or not front else f"all tokens ({front} and patches)"
    pooled = "the class token" if config.image_pooling == "class" else f"mean over {read}{left_out}"
    hf = "normed" if model.anatomy.hf_norms_last else "raw"
    return {
        "pooling": pooled,
        "tokens": f"{read}{left_out}, in raster order",
        "image_tokens": config.tokens,
        "image_pooling": config.image_pooling,
        "padding": "none: every image has as many tokens",
        "max_length": None,
        "augmenter": "builtin (images)" if config.n_views else None,
        "augmentations": RECIPE if config.n_views else None,
        "hf": f"output_hidden_states of this family is {hf} at the last layer",
        **({"attention": model.identity["attention"]} if "attention" in model.identity else {}),
        **({"notes": model.family.notes} if model.family.notes else {}),
    }


def image_warnings(model: LoadedModel, images: Any, used: int) -> list[str]:
    """What a reader of a profile of images must be told."""
    if not isinstance(images, ImageSet):
        return []
    out = []
    if "corrupt" in images.dropped:
        named = "; ".join(images.source.get("corrupt", [])[:3])
        out.append(f"{images.dropped['corrupt']} images could not be decoded and were left out: {named}.")
    if "null" in images.dropped:
        out.append(f"{images.dropped['null']} rows without an image were left out.")
    if "default" in str(model.identity.get("processor_from", "")):
        out.append(
            "the model came without an image processor: layerscope's default was used (`processor` in the manifest). "
            "If the model was trained on images prepared otherwise, its states are not what they should be."
        )
    return out
