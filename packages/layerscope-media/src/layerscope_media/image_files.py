"""An image model's files: which class reads them, and which processor prepares its images."""

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
    """What makes a model's input, and in words where it is from."""

    processor: Any
    origin: str


def read_image_model(
    source: Source, loads: str | None, options: dict[str, Any]
) -> tuple[nn.Module, Prepared]:
    """The image model in a source's folder, and its processor.

    `loads` names the class of the image part: transformers' own, or another as `module:class`.
    """
    import transformers

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
    return module, read_processor(source.path, getattr(module, "config", None), trusted)


def read_processor(folder: Path, config: Any, trust_remote_code: bool = False) -> Prepared:
    """The image processor of a folder."""
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

    # transformers' processors come in two kinds; the one that needs torchvision is never asked for
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust_remote_code, backend="pil"
            )
    except Exception as error:
        raise ModelError(f"the image processor in {file} could not be loaded: {error}") from error
    return Prepared(processor, FILE)


def default_processor(module: Any) -> PixelPreparation:
    """For a model that came without one."""
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
