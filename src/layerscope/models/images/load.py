"""Loading image models: which family, which processor, and what the manifest says about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from layerscope.data.images.preparation import FILE, KIND, PixelPreparation, default_preparation
from layerscope.errors import LayerscopeError, MissingExtraError, ModelError
from layerscope.models.architectures import own_architecture
from layerscope.models.architectures.aim import ATTENTIONS, AttentionMode
from layerscope.models.families import families
from layerscope.models.images.model import ImageModel
from layerscope.models.settings import quiet
from layerscope.models.source import Source, read_config


def image_family(folder: Path) -> str | None:
    """The family of the image model in a folder, "generic" for an image model without one, or None for a text model."""
    config = read_config(folder)
    own = own_architecture(config)
    if own is not None:
        return own
    model_type = config.get("model_type")
    for name, family in families().items():
        if family.modality == "image" and model_type in (*family.model_types, *family.containers):
            return name
    return "generic" if _reads_pixels(model_type) else None


def items_kind(source: Source) -> str:
    """The kind of items that the model of a source reads, without loading it."""
    return "texts" if source.gguf is not None or image_family(source.path) is None else "images"


def _reads_pixels(model_type: Any) -> bool:
    """Whether transformers' base model of a type takes pixels and nothing else."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, MODEL_MAPPING_NAMES

    return model_type in MODEL_MAPPING_NAMES and model_type in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES


def read_image_model(
    source: Source, family: str, options: dict[str, Any], attention: str | None = None
) -> tuple[nn.Module, Any, str]:
    """The image model in a source's folder, its processor, and where that comes from."""
    if family in ("aim", "tiny_vit"):
        module: nn.Module = _read_own(source, family, options, attention)
    else:
        module = _read_transformers(source, family, options)
    processor, where = read_processor(source.path, getattr(module, "config", None), bool(options.get("trust_remote_code")))
    return module, processor, where


def _read_own(source: Source, family: str, options: dict[str, Any], attention: str | None) -> nn.Module:
    """An architecture of `models/architectures`."""
    from layerscope.models.architectures.aim import read_aim
    from layerscope.models.architectures.tiny_vit import read_tiny_vit

    if "device_map" in options:
        raise ModelError(f"device_map is for models that transformers loads; {family} is loaded onto one device.")
    if source.pickled:
        raise ModelError(
            f"{source.name} holds no safetensors; the published AIM models on the hub do (apple/aim-600M and so on)."
        )
    dtype = None if options["dtype"] == "auto" else options["dtype"]
    if family == "tiny_vit":
        return read_tiny_vit(source.path, source.weights, dtype)
    wanted, prefix = _attention(attention)
    return read_aim(source.path, source.weights, dtype=dtype, attention=wanted, prefix=prefix)


def _attention(text: str | None) -> tuple[AttentionMode | None, int | None]:
    """`causal`, `bidirectional` or `prefix:N`."""
    if text is None:
        return None, None
    kind, _, count = text.partition(":")
    found = next((name for name in ATTENTIONS if name == kind), None)
    if found is None or (found == "prefix") != count.isdigit():
        raise ModelError(f"attention must be bidirectional, causal or prefix:N (N patches), not {text!r}.")
    return found, int(count) if count else None


def _read_transformers(source: Source, family: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    loads = families()[family].loads
    known: Any = getattr(transformers, loads) if loads else transformers.AutoModel
    given = dict(options)
    if loads:
        given.pop("trust_remote_code", None)
    try:
        with quiet():
            module, info = known.from_pretrained(
                source.path, output_loading_info=True, local_files_only=True, use_safetensors=not source.pickled, **given
            )
    except LayerscopeError:
        raise
    except Exception as error:
        raise ModelError(f"{source.name} could not be loaded from {source.path}: {error}") from error
    # What pools the last layer is not read, and is often not in the checkpoint.
    for part in ("pooler", "head"):
        if isinstance(getattr(module, part, None), nn.Module):
            _remove(module, part)
    missing = sorted(
        k for k in info.get("missing_keys", ()) if not k.removeprefix("vision_model.").startswith(("pooler.", "head."))
    )
    if missing:
        raise ModelError(
            f"the checkpoint of {source.name} lacks {len(missing)} weights of {type(module).__name__} (e.g. "
            f"{missing[0]}), which would be left random. The files are incomplete or belong to another architecture."
        )
    return module


def _remove(module: Any, part: str) -> None:
    setattr(module, part, None)
    if hasattr(module, "use_head"):  # what asks for it
        module.use_head = False


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
        raise ModelError("ImageGPT reads colors of a palette: pass its ImageGPTImageProcessorPil (with clusters) to wrap().")
    return default_preparation(config)


def describe(processor: Any) -> dict[str, Any]:
    """The processor's settings as plain values, for the manifest."""
    facts = processor.to_dict() if hasattr(processor, "to_dict") else {}
    kept = {key: value for key, value in facts.items() if value is not None and key != "clusters" and not key.startswith("_")}
    return {"type": type(processor).__name__, **json.loads(json.dumps(kept, default=str))}
