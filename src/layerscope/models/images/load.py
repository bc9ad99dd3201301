"""Loading image models: which family a folder holds, its image part, its processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from layerscope.errors import LayerscopeError, ModelError
from layerscope.models.architectures import own_architecture
from layerscope.models.architectures.aim_config import ATTENTIONS, Attention
from layerscope.models.families import families
from layerscope.models.images.model import ImageModel
from layerscope.models.images.processors import describe, read_processor
from layerscope.models.quiet import quiet
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
    from layerscope.models.architectures.aim_files import read_aim
    from layerscope.models.architectures.tiny_vit_files import read_tiny_vit

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


def _attention(text: str | None) -> tuple[Attention | None, int | None]:
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
