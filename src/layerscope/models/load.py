"""Loading a model by name, folder, file or hub id, and wrapping one that is already in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerscope.errors import ModelError
from layerscope.extras import require
from layerscope.models import adapters as adapting
from layerscope.models import modules
from layerscope.models.families import FAMILIES, declared_family, family_for
from layerscope.models.images import (
    ImageModel,
    default_processor,
    describe_images,
    read_image_model,
)
from layerscope.models.loaded import LoadedModel, file_state
from layerscope.models.modules import inner_tokenizer, unwrap
from layerscope.models.pretrained import read_pretrained
from layerscope.models.settings import pick_device, pick_dtype, settle_bfloat16, without_advice
from layerscope.models.sounds import SoundModel, default_extractor, read_sound_model
from layerscope.models.source import (
    Source,
    files_sha256,
    module_sha256,
    read_config,
    resolve,
    settings_sha256,
)
from layerscope.spectra import faster


def load(
    spec: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    revision: str | None = None,
    family: str | None = None,
    bidirectional: bool = False,
    adapters: Sequence[str | Path] = (),
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    offline: bool = False,
    attn_implementation: str | None = None,
    attention: str | None = None,
) -> LoadedModel:
    """Load a model, ready to be read layer by layer.

    - `spec`: a catalogue name, a folder, a .gguf file or a hub id. A model in memory goes to
      `wrap`.
    - `bidirectional`: remove the causal mask.
    - `adapters`: folders or hub ids, merged in order.
    - `device_map`: distribute the model over devices; it cannot be combined with `device`.
    - `attention`: for AIM only: `bidirectional` (as its authors use it), `causal`, or `prefix:N`.

    An image model is returned as an `ImageModel`, with its image processor, and a speech model as a
    `SoundModel`.
    """
    given = {name: value for name, value in locals().items() if name not in ("spec", "offline")}
    if not isinstance(spec, str | Path):
        usual = signature(load).parameters
        return open_model(
            spec,
            None,
            offline,
            {name: one for name, one in given.items() if one != usual[name].default},
        )
    # Everything that can be refused is refused before any weight is read.
    precision = pick_dtype(dtype)
    if family is not None:
        family_for(nn.Identity(), family)
    if device_map is not None:
        if device is not None:
            raise ModelError("give either device or device_map, not both.")
        require("device map")
    target = None if device_map is not None else pick_device(device)
    if adapters:
        require("adapters")
    located = [adapting.locate(adapter, offline) for adapter in adapters]
    source = resolve(
        spec,
        offline,
        revision=revision,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    if source.gguf is not None:
        require("gguf")
    files = {path: file_state(path) for path in source.weights}

    options: dict[str, Any] = {"dtype": precision, "trust_remote_code": trust_remote_code}
    if device_map is not None:
        options["device_map"] = device_map
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    kind, known = _reads(source)
    if attention is not None and known != "aim":
        raise ModelError(
            f"attention={attention!r} is a choice that AIM offers; {source.name} is read as it was trained."
        )
    if kind == "images":
        module, tokenizer, where = read_image_model(source, known, options, attention)
    elif kind == "sounds":
        module, tokenizer = read_sound_model(source, options)
    else:
        module, tokenizer = _read(source, options, trust_remote_code)
    facts: list[dict[str, Any]] = []
    if located:
        module, facts = adapting.apply(module, located)
    if target is not None:
        module = settle_bfloat16(module.to(target), precision, source.name)
    module.eval().requires_grad_(False)
    if bidirectional:
        make_bidirectional(module)
    model = _assemble(module, tokenizer, source.name, family)
    if kind == "images":
        model.identity["processor_from"] = where
    model.identity.update(
        source=source.kind,
        revision=source.revision,
        weights_sha256=source.weights_sha256(),
        quantization=source.quantization,
        license=source.license,
        normalizes=source.normalizes(),
        sentence_encoder=source.pipeline is not None,
        exported=source.exported(),
        adapters=facts,
        **(
            {"asked": revision or str(spec).partition("@")[2] or "main"}
            if source.kind == "hub"
            else {}
        ),
    )
    model.files = files
    model.check_files()
    return model


def wrap(
    module: nn.Module, tokenizer: Any = None, name: str | None = None, family: str | None = None
) -> LoadedModel:
    """Use a model that is already in memory. It is switched to evaluation mode; its weights are not
    changed.

    For an image model, `tokenizer` is its image processor; without one, images are resized to its
    input size and scaled to −1 … 1. For a speech model, it is its feature extractor; without one,
    the usual extractor of that kind of model is used.
    """
    inner = unwrap(module)
    inner.eval()
    given = (
        name or getattr(getattr(inner, "config", None), "name_or_path", "") or type(inner).__name__
    )
    model = _assemble(inner, inner_tokenizer(module, tokenizer), str(given), family)
    model.identity["weights_sha256"] = module_sha256(inner)
    return model


def open_model(
    model: Any, tokenizer: Any, offline: bool, model_options: dict[str, Any]
) -> LoadedModel:
    """A loaded model from whatever the user gave."""
    if isinstance(model, (str, Path)):
        return load(model, offline=offline, **model_options)
    for name in (
        name
        for name, value in model_options.items()
        if name != "family" and value not in (None, (), [])
    ):
        raise ModelError(
            f"{name}= is for a model given by its name; {type(model).__name__} in memory is taken as it is."
        )
    if isinstance(model, LoadedModel):
        return model
    return wrap(model, tokenizer, family=model_options.get("family"))


def kind_read_by(
    model: Any, offline: bool = False, model_options: Mapping[str, Any] | None = None
) -> str:
    """The kind of items that a model reads (`texts`, `images`, …). A model given by name is not
    loaded for it."""
    if isinstance(model, LoadedModel):
        return model.kind
    if not isinstance(model, (str, Path)):
        return "texts"
    return _reads(find_source(model, offline, model_options or {}))[0]


def _reads(source: Source) -> tuple[str, str]:
    """The kind of items that the model of a source reads, and its family, without loading it."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        MODEL_MAPPING_NAMES,
    )

    config = {} if source.gguf is not None else read_config(source.path)
    known, model_type = declared_family(config), config.get("model_type")
    if known is not None:
        return {"text": "texts", "image": "images", "sound": "sounds"}[known.modality], known.name
    # one without a family reads images where transformers' base model of its type takes pixels and
    # nothing else
    pixels = (
        model_type in MODEL_MAPPING_NAMES
        and model_type in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    )
    return "images" if pixels else "texts", "generic"


def find_source(model: str | Path, offline: bool, model_options: Mapping[str, Any]) -> Source:
    """Where a model given by name is, with those of its options that decide it."""
    names = ("revision", "allow_pickle", "trust_remote_code")
    return resolve(
        model, offline, **{name: model_options[name] for name in names if model_options.get(name)}
    )


def decisive_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a model that change its states, besides files; the default precision whether
    it was given or not.

    >>> decisive_options({"device": "cpu", "bidirectional": True})
    {'dtype': 'float32', 'bidirectional': 'True'}
    """
    elsewhere = ("device", "device_map", "adapters", "revision")
    return {"dtype": "float32"} | {
        k: str(v) for k, v in options.items() if k not in elsewhere and v not in (None, False)
    }


def identify_files(model: str | Path, offline: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a model given by name from others before it is loaded: its files, its adapters'
    and its options."""
    source = find_source(model, offline, options)
    return {
        "options": decisive_options(options),
        "weights_sha256": source.weights_sha256(),
        "settings_sha256": source.settings_files_sha256(),
        "adapters": [
            files_sha256(adapting.locate(adapter, offline).path.glob("*"))
            for adapter in options.get("adapters") or ()
        ],
    }


def at_commit(given: str | Path, loaded: LoadedModel) -> str | Path:
    """What the user gave, of a hub model with the commit that was loaded: a branch may move before
    it is read again."""
    if loaded.identity.get("source") != "hub" or not loaded.identity.get("revision"):
        return given
    return f"{loaded.name}@{loaded.identity['revision']}"


def make_bidirectional(module: nn.Module) -> None:
    """Let every token see the later ones, and check that they do."""
    config = getattr(module, "config", None)
    if config is None:
        raise ModelError(
            f"bidirectional=True needs a model with a config, which {type(module).__name__} has not."
        )
    config.is_causal = False
    # Attention without a mask asks its own module whether it is causal.
    for part in module.modules():
        if isinstance(getattr(part, "is_causal", None), bool):
            part.is_causal = False  # type: ignore[assignment]
    if not modules.sees_ahead(module):
        raise ModelError(
            f"bidirectional=True has no effect on {type(module).__name__} (model type {config.model_type!r}): the "
            "first token's state still does not depend on later tokens. Load it without bidirectional."
        )


def _read(
    source: Source, options: dict[str, Any], trust_remote_code: bool
) -> tuple[nn.Module, Any]:
    """The base model and the tokenizer from files."""
    from transformers import AutoModel, AutoTokenizer

    extra = {"gguf_file": source.gguf} if source.gguf else {}
    tokenizer_options = {"local_files_only": True, "trust_remote_code": trust_remote_code, **extra}
    without_advice()
    loaded, tokenizer = read_pretrained(
        source,
        AutoModel,
        options,
        r"^pooler\.",
        lambda: AutoTokenizer.from_pretrained(source.path, **tokenizer_options),
    )
    module = unwrap(loaded)
    if isinstance(getattr(module, "pooler", None), nn.Module):
        setattr(module, "pooler", None)  # noqa: B010 - the type of a module's attribute is not known; it reads the last layer only, and is often not in the checkpoint
    return module, tokenizer


def _assemble(module: nn.Module, tokenizer: Any, name: str, family: str | None) -> LoadedModel:
    anatomy = family_for(module, family).resolve(module)
    config = getattr(module, "config", None)
    known = FAMILIES.get(anatomy.family)
    model: LoadedModel
    if known.modality == "image" or modules.reads_pixels(module):
        processor = tokenizer if tokenizer is not None else default_processor(module)
        model = ImageModel(module, None, anatomy, name, processor=processor)
    elif known.modality == "sound":
        model = SoundModel(
            module,
            None,
            anatomy,
            name,
            processor=tokenizer if tokenizer is not None else default_extractor(module),
        )
    else:
        model = LoadedModel(module, tokenizer, anatomy, name)
    gpu = faster.on(model.device)
    if (
        gpu is not None
    ):  # compiled while the model is being read: the first texts would wait half a second
        gpu.ahead.compile_kernels(gpu.ahead.reading_kernels(model.width, model.dtype), model.device)
    if anatomy.family == "generic":
        ahead = modules.sees_ahead(module)
    else:
        ahead = known.bidirectional or getattr(config, "is_causal", None) is False
        if anatomy.family == "aim":
            ahead = getattr(config, "attention", None) == "bidirectional"
    model.identity = {
        "name": name,
        "source": "module",
        "revision": None,
        "weights_sha256": None,
        "settings_sha256": settings_sha256(module, getattr(model, "processor", tokenizer)),
        "family": anatomy.family,
        "architecture": type(module).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": None,
        "license": None,
        "normalizes": False,
        "sentence_encoder": False,
        "untrained": modules.is_untrained(module),
        "bidirectional": ahead,
        "adapters": [],
        "n_blocks": model.n_blocks,
        "width": model.width,
        "parameters": sum(p.numel() for p in module.parameters()),
        "context_length": model.max_length,
    }
    if isinstance(model, ImageModel):
        model.identity.update(
            describe_images(
                model, "given" if tokenizer is not None else "none given: layerscope's default"
            )
        )
    return model
