"""Adapters (LoRA and kin): read from safetensors, checked to fit, merged into the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from layerscope.core.files import exists, file_sha256
from layerscope.errors import ModelError
from layerscope.models.source import hub_snapshot

__all__ = ["locate"]

_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder on this machine; of one from the hub also its repository and commit."""

    path: Path
    name: str
    revision: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what identifies it."""
        commit = {"revision": self.revision} if self.revision else {}
        return {"name": self.name, **commit, "sha256": file_sha256(self.path / _WEIGHTS)}


def locate(spec: str | Path) -> Adapter:
    """Find an adapter: a folder, or a hub id org/name[@revision], which is downloaded where that is
    allowed."""
    path = Path(spec).expanduser()
    adapter = Adapter(path, path.name)
    if not exists(path) and re.fullmatch(r"[\w.-]+/[\w.-]+(@[^@\s]+)?", str(spec)):
        repo, _, revision = str(spec).partition("@")
        path, commit = hub_snapshot(repo, revision or None)
        adapter = Adapter(path, repo, commit)
    if not (path / "adapter_config.json").is_file():
        raise ModelError(f"{spec} is not an adapter folder: it holds no adapter_config.json.")
    if not (path / _WEIGHTS).is_file():
        raise ModelError(f"{path} holds no {_WEIGHTS}. Save the adapter again as safetensors.")
    return adapter


def merge(module: nn.Module, adapter: Adapter) -> nn.Module:
    """Return the module with the adapter merged into its weights."""
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    folder = adapter.path
    misfit = f"the adapter {folder} does not fit {type(module).__name__}"
    config = PeftConfig.from_pretrained(str(folder))
    config.task_type = None  # the base model has no head for a task
    config.inference_mode = True
    try:
        adapted = get_peft_model(module, config)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{misfit}: {error}") from error
    state = _rename(load_file(folder / _WEIGHTS), module)
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
        raise ModelError(
            f"the adapter {folder} ({config.peft_type}) cannot be merged into the weights."
        )
    merged: nn.Module = adapted.merge_and_unload()
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def _rename(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the base model's names: those of adapters trained under a head have
    one more level (`model.` or the like)."""
    level = getattr(module, "base_model_prefix", "") or "model"
    children = {name for name, _ in module.named_children()}
    renamed = {}
    for key, value in state.items():
        name = key.removeprefix(_PREFIX)
        if level not in children:
            name = name.removeprefix(f"{level}.")
        renamed[_PREFIX + name] = value
    return renamed
