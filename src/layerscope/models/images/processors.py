"""Which processor an image model comes with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layerscope.data.images.preparation import FILE, KIND, PixelPreparation, default_preparation
from layerscope.errors import MissingExtraError, ModelError
from layerscope.models.quiet import quiet


def require_pillow() -> None:
    """Images are read with Pillow."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtraError("reading images", "vision") from None


def read_processor(folder: Path, config: Any, trust_remote_code: bool = False) -> tuple[Any, str]:
    """The image processor of a folder, and in words where it comes from."""
    require_pillow()
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
    require_pillow()
    config = getattr(module, "config", None)
    if getattr(config, "model_type", None) == "imagegpt":
        raise ModelError("ImageGPT reads colours of a palette: pass its ImageGPTImageProcessorPil (with clusters) to wrap().")
    return default_preparation(config)


def describe(processor: Any) -> dict[str, Any]:
    """The processor's settings as plain values, for the manifest."""
    facts = processor.to_dict() if hasattr(processor, "to_dict") else {}
    kept = {key: value for key, value in facts.items() if value is not None and key != "clusters" and not key.startswith("_")}
    return {"type": type(processor).__name__, **json.loads(json.dumps(kept, default=str))}
