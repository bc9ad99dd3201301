"""A model's files as transformers reads them, complete or refused; and adapters (LoRA and kin),
merged into its weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from layerscope.core.files import exists, file_sha256
from layerscope.errors import LayerscopeError, ModelError, one_line
from layerscope.extras import missing
from layerscope.models.modules import unwrap
from layerscope.models.settings import quiet
from layerscope.models.source import Source, hub_snapshot

__all__ = ["locate_adapter"]

_OTHER_INPUTS = ("pixel_values", "input_values", "input_features")
_PREPROCESSOR = "preprocessor_config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_ADAPTER_PREFIX = "base_model.model."


def read_pretrained(
    source: Source,
    model_class: Any,
    options: dict[str, Any],
    unread: str,
    read_beside: Callable[[], Any] = lambda: None,
    whole: bool = False,
) -> tuple[Any, Any]:
    """Return the model of a class of transformers in a source's files, and what `read_beside`
    reads there, such as a tokenizer.

    Weights that match `unread` may be missing: they pool the last layer, or are for training.
    With `whole`, every weight in the files must have a place.
    """
    weights = {"gguf_file": source.gguf} if source.gguf else {"use_safetensors": not source.pickled}
    # The files are on this machine by now: nothing may reach for the network.
    settings = {"local_files_only": True, "output_loading_info": True, **weights, **options}
    try:
        with quiet(bars=source.gguf is not None):
            module, info = model_class.from_pretrained(source.path, **settings)
            preparation = read_beside()
    except LayerscopeError:
        raise
    except Exception as error:
        raise ModelError(
            f"{source.name} could not be loaded from {source.path}: {one_line(str(error))}"
        ) from error
    absent = sorted(key for key in info["missing_keys"] if not re.search(unread, key))
    extra = sorted(info["unexpected_keys"]) if whole else []
    if absent or extra:
        raise ModelError(
            f"the checkpoint of {source.name} lacks {len(absent)} weights of "
            f"{type(module).__name__}, and {len(extra)} of its own have no place there (e.g. "
            f"{[*absent, *extra][0]}). The files are incomplete or belong to another architecture."
        )
    return module, preparation


def check_input(module: nn.Module, kind: str) -> None:
    """Refuse to read texts with a module that takes another input."""
    name = getattr(module, "main_input_name", "input_ids")
    if kind == "texts" and name in _OTHER_INPUTS:
        raise ModelError(f"{type(module).__name__} takes {name}, not texts: {missing('media')}")


def read_text_model(source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """Return the base model and the tokenizer from files."""
    from transformers import AutoModel, AutoTokenizer

    has_tokenizer = source.gguf or any(any(source.path.glob(name)) for name in _TOKENIZERS)
    if not has_tokenizer and (source.path / _PREPROCESSOR).is_file():
        raise ModelError(
            f"{source.name} has no tokenizer but a {_PREPROCESSOR}: {missing('media')}"
        )
    tokenizer_options: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": bool(options.get("trust_remote_code")),
    }
    if source.gguf:
        tokenizer_options["gguf_file"] = source.gguf
    loaded, tokenizer = read_pretrained(
        source,
        AutoModel,
        options,
        r"^pooler\.",
        lambda: AutoTokenizer.from_pretrained(source.path, **tokenizer_options),
    )
    module: Any = unwrap(loaded)
    if isinstance(getattr(module, "pooler", None), nn.Module):
        module.pooler = None  # it reads the last layer only, and is often not in the checkpoint
    return module, tokenizer


# Adapters


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder on this machine; of one from the hub also its repository and commit."""

    path: Path
    name: str
    revision: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what identifies it."""
        commit = {"revision": self.revision} if self.revision else {}
        return {"name": self.name, **commit, "sha256": file_sha256(self.path / _ADAPTER_WEIGHTS)}


def locate_adapter(spec: str | Path) -> Adapter:
    """Find an adapter: a folder, or a hub id org/name[@revision], which is downloaded where that is
    allowed."""
    path = Path(spec).expanduser()
    adapter = Adapter(path, path.name)
    if not exists(path) and re.fullmatch(r"[\w.-]+/[\w.-]+(@[^@\s]+)?", str(spec)):
        repo, _, revision = str(spec).partition("@")
        path, commit = hub_snapshot(repo, revision or None)
        adapter = Adapter(path, repo, commit)
    for name in ("adapter_config.json", _ADAPTER_WEIGHTS):
        if not (path / name).is_file():
            raise ModelError(
                f"{spec} holds no {name}. Give an adapter's folder, saved as safetensors."
            )
    return adapter


def merge_adapter(module: nn.Module, adapter: Adapter) -> nn.Module:
    """Return the module with the adapter merged into its weights."""
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    misfit = f"the adapter {adapter.path} does not fit {type(module).__name__}"
    config = PeftConfig.from_pretrained(str(adapter.path))
    config.task_type = None  # the base model has no head for a task
    config.inference_mode = True
    try:
        adapted = get_peft_model(module, config)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{misfit}: {error}") from error
    state = _base_names(load_file(adapter.path / _ADAPTER_WEIGHTS), module)
    result = set_peft_model_state_dict(adapted, state)
    # peft ignores weights whose names do not match
    unused = [key for key in result.unexpected_keys if "lm_head" not in key]
    absent = [key for key in result.missing_keys if "lora_" in key or "modules_to_save" in key]
    if unused or absent or not state:
        example = (unused or absent or ["no weights"])[0]
        raise ModelError(
            f"{misfit}: {len(unused)} of its {len(state)} weights have no place and {len(absent)} "
            f"places have no weights (e.g. {example}). Check that it was trained on this model."
        )
    if not hasattr(adapted, "merge_and_unload"):
        raise ModelError(f"{misfit}: {config.peft_type} cannot be merged into the weights.")
    merged: nn.Module = adapted.merge_and_unload()
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def _base_names(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the base model's names: those of adapters trained under a head have
    one more level (`model.` or the like)."""
    level = getattr(module, "base_model_prefix", "") or "model"
    is_child = level in {name for name, _ in module.named_children()}
    prefix = "" if is_child else f"{level}."
    return {
        _ADAPTER_PREFIX + name.removeprefix(_ADAPTER_PREFIX).removeprefix(prefix): value
        for name, value in state.items()
    }
