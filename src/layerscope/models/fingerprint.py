"""Which weights these are: a sha256, from files without loading them or from a module in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from layerscope.packages import file_sha256


def files_sha256(paths: Iterable[Path]) -> str:
    """One sha256 over several files, by name and content; of a single file, its own."""
    ordered = sorted(paths)
    if len(ordered) == 1:
        return file_sha256(ordered[0])
    digest = hashlib.sha256()
    for path in ordered:
        digest.update(f"{path.name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def module_sha256(module: nn.Module) -> str:
    """One sha256 over the names, types, shapes and bytes of a module's state."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}\0{value!r}\n".encode())
            continue
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
        flat = value.detach().to("cpu").contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def settings_sha256(module: nn.Module, tokenizer: object) -> str:
    """What besides the weights decides a state: the model's configuration and how texts become tokens."""
    config = getattr(module, "config", None)
    facts = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    # where a model was loaded from, and with which library, is not what it computes
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "quantization_config"):
        facts.pop(name, None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "to_dict"):  # an image processor
        text = json.dumps([facts, tokenizer.to_dict()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()
    words = backend.to_str() if backend is not None else json.dumps(sorted(getattr(tokenizer, "get_vocab", dict)().items()))
    text = json.dumps(facts, sort_keys=True, default=str) + "\0" + words
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
