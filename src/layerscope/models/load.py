"""Loading a model by name, folder, file or hub id, and wrapping one that is already in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerscope.errors import ModelError
from layerscope.extras import require
from layerscope.models import modules
from layerscope.models.families import Family, declared_family, family_for
from layerscope.models.loaded import LoadedModel, file_state
from layerscope.models.modules import inner_tokenizer, unwrap
from layerscope.models.pretrained import check_input, locate_adapter, merge_adapter
from layerscope.models.settings import pick_device, pick_dtype, settle_bfloat16
from layerscope.models.source import (
    Source,
    module_sha256,
    read_config,
    resolve,
    settings_sha256,
)

__all__ = ["find_source"]

_OF_A_MODULE: Mapping[str, Any] = {
    "source": "module",
    "revision": None,
    "quantization": None,
    "license": None,
    "normalizes": False,
    "sentence_encoder": False,
    "adapters": [],
}
"""The identity of a model in memory, as far as its source decides it."""


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
    attn_implementation: str | None = None,
    attention: str | None = None,
) -> LoadedModel:
    """Load a model, ready to be read layer by layer.

    - `spec`: a catalogue name, a folder, a .gguf file or a hub id. A model in memory goes to
      `wrap`.
    - `bidirectional`: remove the causal mask.
    - `adapters`: folders or hub ids, merged in order.
    - `device_map`: distribute the model over devices; it cannot be combined with `device`.
    - `attention`: which tokens see which, for families that offer a choice.

    A model that reads no texts is loaded by the package that adds its family.
    """
    if not isinstance(spec, str | Path):
        raise ModelError(
            f"load takes a name, a folder or a file, not {type(spec).__name__}: a model in memory "
            "goes to wrap()."
        )
    # Every option is checked before any weight is read.
    number_type = pick_dtype(dtype)
    options = {
        "dtype": number_type,
        "trust_remote_code": trust_remote_code,
        "attn_implementation": attn_implementation,
        "device_map": device_map,
    }
    if family is not None:
        family_for(nn.Identity(), family)
    if device_map is not None and device is not None:
        raise ModelError("give either device or device_map, not both.")
    target = None if device_map is not None else pick_device(device)
    places = {
        "revision": revision,
        "allow_pickle": allow_pickle,
        "trust_remote_code": trust_remote_code,
    }
    for feature, is_used in (("device map", device_map is not None), ("adapters", bool(adapters))):
        if is_used:
            require(feature)
    located = [locate_adapter(adapter) for adapter in adapters]
    source = find_source(spec, places)
    if source.gguf is not None:
        require("gguf")
    files = {path: file_state(path) for path in source.weights}
    declared = _family_of(source)
    if attention is not None and not declared.attentions:
        raise ModelError(
            f"attention={attention!r} cannot be chosen: {source.name} is read as it was trained."
        )

    chosen = {name: value for name, value in options.items() if value is not None}
    module, preparation = declared.read(source, chosen)
    if attention is not None:
        declared.choose_attention(module, attention)
    for adapter in located:
        module = merge_adapter(module, adapter)
    if target is not None:
        module = settle_bfloat16(module.to(target), number_type, source.name)
    module.eval().requires_grad_(False)
    if bidirectional:
        make_bidirectional(module, family_for(module, family))
    model = _assemble(
        module,
        preparation,
        source.name,
        family,
        source=source.kind,
        revision=source.revision,
        weights_sha256=source.weights_sha256(),
        quantization=source.quantization,
        license=source.license,
        normalizes=source.normalizes(),
        sentence_encoder=source.pipeline is not None,
        exported=source.exported(),
        adapters=[adapter.facts() for adapter in located],
    )
    model.files = files
    model.check_files()
    return model


def wrap(
    module: nn.Module, tokenizer: Any = None, name: str | None = None, family: str | None = None
) -> LoadedModel:
    """Use a model that is already in memory. It is switched to evaluation mode; its weights are not
    changed.

    `tokenizer` is whatever prepares the model's input.
    """
    inner = unwrap(module)
    inner.eval()
    config_name = getattr(getattr(inner, "config", None), "name_or_path", "")
    shown_name = str(name or config_name or type(inner).__name__)
    preparation = inner_tokenizer(module, tokenizer)
    return _assemble(inner, preparation, shown_name, family, weights_sha256=module_sha256(inner))


def open_model(model: Any, tokenizer: Any, model_options: dict[str, Any]) -> LoadedModel:
    """Return the loaded model of a name, a folder, or a model in memory."""
    if isinstance(model, (str, Path)):
        return load(model, **model_options)
    for name, value in model_options.items():
        if name != "family" and value not in (None, (), []):
            raise ModelError(
                f"{name}= is for a model given by its name; {type(model).__name__} in memory is "
                "taken as it is."
            )
    if isinstance(model, LoadedModel):
        return model
    return wrap(model, tokenizer, family=model_options.get("family"))


def kind_read_by(model: Any, model_options: Mapping[str, Any]) -> str:
    """Return the kind of items that a model reads (`texts`, …), without loading it."""
    if isinstance(model, LoadedModel):
        return model.kind
    if not isinstance(model, (str, Path)):
        return "texts"
    return _family_of(find_source(model, model_options)).kind


def _family_of(source: Source) -> Family:
    """Return the family that a source's config.json declares."""
    return declared_family({} if source.gguf is not None else read_config(source.path))


def _check_remote_code(source: Source) -> None:
    """Refuse a model whose architecture exists only as Python files beside it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = source.path
    config = read_config(path)
    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING or declared_family(config).has_own_classes:
        return
    if config.get("auto_map"):
        raise ModelError(
            f"{path} needs its own Python code to load (model type {model_type!r}), and running it "
            "was not allowed. Read the code, then pass trust_remote_code=True if you trust it."
        )
    raise ModelError(
        f"{path}/config.json has the model type {model_type!r}, which the installed transformers "
        "does not know. A newer transformers may."
    )


def find_source(spec: str | Path, model_options: Mapping[str, Any]) -> Source:
    """Return the files of a model, with those of its options that decide which they are."""
    names = ("revision", "allow_pickle", "trust_remote_code")
    options = {name: model_options[name] for name in names if model_options.get(name)}
    source = resolve(spec, **options)
    if source.gguf is None and not options.get("trust_remote_code"):
        _check_remote_code(source)
    return source


def at_commit(spec: str | Path, loaded: LoadedModel) -> str | Path:
    """Return the spec of a loaded model, of the hub with its commit: a branch may move before the
    model is loaded again."""
    if loaded.identity.get("source") != "hub" or not loaded.identity.get("revision"):
        return spec
    return f"{loaded.name}@{loaded.identity['revision']}"


def source_at_commit(spec: str | Path, loaded: LoadedModel) -> Source:
    """Return the files of a loaded model, those of the hub at its commit."""
    return resolve(at_commit(spec, loaded))


def make_bidirectional(module: nn.Module, family: Family) -> None:
    """Let every token see the later ones, and check that they do."""
    config = getattr(module, "config", None)
    if config is None:
        raise ModelError(
            f"bidirectional=True needs a model with a config, which {type(module).__name__} has "
            "not."
        )
    config.is_causal = False
    # Attention without a mask asks its own module whether it is causal.
    submodule: Any
    for submodule in module.modules():
        if isinstance(getattr(submodule, "is_causal", None), bool):
            submodule.is_causal = False
    if not family.sees_ahead(module):
        raise ModelError(
            f"bidirectional=True has no effect on {type(module).__name__} (model type "
            f"{config.model_type!r}): the first token's state still does not depend on later "
            "tokens. Load it without bidirectional."
        )


def _assemble(
    module: nn.Module, preparation: Any, name: str, family: str | None, **facts: Any
) -> LoadedModel:
    """Return the model with its parts; `preparation` is its tokenizer or processor, and `facts`
    identify it."""
    known_family = family_for(module, family)
    check_input(module, known_family.kind)
    model = known_family.make_model(module, preparation, known_family.resolve(module), name)
    model.identity = {
        "name": name,
        **_OF_A_MODULE,
        "settings_sha256": settings_sha256(module, model.preparation),
        "family": model.anatomy.family,
        "architecture": type(module).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "untrained": modules.is_untrained(module),
        "bidirectional": known_family.is_bidirectional(module),
        "n_blocks": model.n_blocks,
        "width": model.width,
        "parameters": sum(p.numel() for p in module.parameters()),
        "context_length": model.max_length,
        **model.own_identity(),
        **facts,
    }
    return model
