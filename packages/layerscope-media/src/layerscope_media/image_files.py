"""Read an image model and its image processor from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from torch import nn

from layerscope.errors import ModelError
from layerscope.models import Source, quiet, read_pretrained
from layerscope_media.pixels import FILE, KIND, PixelPreparation, default_preparation


class Prepared(NamedTuple):
    """The processor that prepares a model's input, and a text that says where it comes from."""

    processor: Any
    origin: str


def read_image_model(
    source: Source, loads: str | None, options: dict[str, Any]
) -> tuple[nn.Module, Prepared]:
    """Return the image model in a source's folder, and its processor.

    `loads` names the class of the image part: one of transformers, or another as `module:class`.
    """
    settings = dict(options)
    trusted = bool(settings.get("trust_remote_code"))
    if loads:
        settings.pop("trust_remote_code", None)
    own_class = loads is not None and ":" in loads
    class_name = loads or "AutoModel"
    model_class: Any = resolve_name(class_name if own_class else f"transformers:{class_name}")
    module, _ = read_pretrained(
        source, model_class, settings, r"^(vision_model\.)?(pooler|head)\.", whole=own_class
    )
    # The module that pools the last layer is not used, and is often missing in the checkpoint.
    for name in ("pooler", "head"):
        if isinstance(getattr(module, name, None), nn.Module):
            setattr(module, name, None)
            if hasattr(module, "use_head"):
                module.use_head = False
    return module, read_processor(source.path, getattr(module, "config", None), trusted)


def read_processor(folder: Path, config: Any, trust_remote_code: bool = False) -> Prepared:
    """Return the image processor of a folder, or a default one if it has none."""
    file = folder / FILE
    if not file.is_file():
        return Prepared(default_preparation(config), f"none in {FILE}: layerscope's default")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is not readable JSON: {error}.") from error
    if facts.get("image_processor_type") == KIND:
        return Prepared(PixelPreparation.from_dict(facts), FILE)
    if getattr(config, "model_type", None) == "aim" and "image_processor_type" not in facts:
        return Prepared(default_preparation(config), "the evaluation transform of AIM's authors")
    from transformers import AutoImageProcessor

    # the Pillow version of transformers' processors: the other needs torchvision
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust_remote_code, backend="pil"
            )
    except Exception as error:
        raise ModelError(f"the image processor in {file} could not be loaded: {error}") from error
    return Prepared(processor, FILE)


def default_processor(module: Any) -> PixelPreparation:
    """Return the processor for a model without one."""
    config = getattr(module, "config", None)
    if getattr(config, "model_type", None) == "imagegpt":
        raise ModelError(
            "ImageGPT reads palette colors and this model has no processor: pass its "
            "ImageGPTImageProcessorPil (with clusters) to wrap()."
        )
    return default_preparation(config)


def describe(processor: Any) -> dict[str, Any]:
    """Return a processor's settings as plain values, for the manifest."""
    facts = processor.to_dict() if hasattr(processor, "to_dict") else {}
    shown = {
        key: value
        for key, value in facts.items()
        if value is not None and key != "clusters" and not key.startswith("_")
    }
    return {"type": type(processor).__name__, **json.loads(json.dumps(shown, default=str))}
