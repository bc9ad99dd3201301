"""What a model will cost, from its config alone: parameters, and the time of a block of its shape, with no weights loaded."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import dataclass
from typing import Any

import torch

from layerscope.errors import LayerscopeError
from layerscope.models.catalogue import catalogue
from layerscope.models.settings import pick_device, pick_dtype, quiet
from layerscope.models.source import resolve
from layerscope.sweeps.read import ModelEntry

_BATCH_TOKENS = 512
_REPEATS = 2
_LENGTH = 64


@dataclass(frozen=True)
class Shape:
    """A model's size; `config` is transformers', where it could be had without the weights."""

    parameters: int
    blocks: int
    width: int
    config: Any = None


class UnknownShapeError(LayerscopeError):
    """A model whose size cannot be told without downloading it."""


def shape_of(model: ModelEntry) -> Shape:
    """The shape of a model. Nothing is downloaded but, for a hub model, its config."""
    config = _config(model)
    if config is None:
        entry = catalogue()[model.spec]  # not fetched yet
        return Shape(entry.parameters, entry.blocks, entry.width)
    text = getattr(config, "text_config", None) or config
    blocks, width = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    if blocks is None or width is None:
        raise UnknownShapeError(f"{model.label}: its config names no num_hidden_layers and hidden_size.")
    return Shape(sum(p.numel() for p in _empty(config).parameters()), int(blocks), int(width), config)


def seconds_per_token(shape: Shape, model: ModelEntry) -> float:
    """Time of a forward pass per token on this machine's device, from one timed batch of models with one and two blocks."""
    device = pick_device(model.options.get("device"))
    wanted = pick_dtype(model.options.get("dtype", "float32"))
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.float32
    if shape.config is not None:
        try:
            one, two = (_timed(shape.config, blocks, device, dtype) for blocks in (1, 2))
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError):
            pass  # a shape that cannot be cut down: by its parameters then
        else:
            block = max(two - one, 0.1 * one)
            return (max(one - block, 0.0) + shape.blocks * block) / _BATCH_TOKENS
    return 2 * shape.parameters / _products_per_second(device, dtype)


def _config(model: ModelEntry) -> Any:
    from transformers import AutoConfig

    trusted = bool(model.options.get("trust_remote_code"))
    known: dict[str, Any] = {"revision": model.revision, "allow_pickle": True, "trust_remote_code": trusted}
    try:
        source = resolve(model.spec, True, **known)  # what is on this machine
        if source.gguf is not None:
            raise UnknownShapeError(f"{model.label}: a GGUF file's shape is known only when it is loaded.")
        return AutoConfig.from_pretrained(source.path, trust_remote_code=trusted, local_files_only=True)
    except UnknownShapeError:
        raise
    except (LayerscopeError, OSError, ValueError, json.JSONDecodeError) as error:
        if model.spec in catalogue():
            return None
        try:
            repo, _, revision = model.spec.partition("@")
            return AutoConfig.from_pretrained(repo, revision=model.revision or revision or None, trust_remote_code=trusted)
        except Exception:
            raise UnknownShapeError(f"{model.label}: {' '.join(str(error).split())}") from error


def _empty(config: Any) -> torch.nn.Module:
    from transformers import AutoModel

    with quiet(), torch.device("meta"):
        module: torch.nn.Module = AutoModel.from_config(config)
    return module.eval()


def _timed(config: Any, blocks: int, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds of one batch through a model of this shape with so many blocks and constant weights."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = blocks
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:blocks]
    from transformers import AutoModel

    with quiet(), torch.device(device):
        module = AutoModel.from_config(small).to(dtype).eval()
    ids = torch.ones((_BATCH_TOKENS // _LENGTH, _LENGTH), dtype=torch.long, device=device)
    best = float("inf")
    with torch.inference_mode():
        module(input_ids=ids)
        for _ in range(_REPEATS):
            _wait(device)
            begun = time.perf_counter()
            module(input_ids=ids)
            _wait(device)
            best = min(best, time.perf_counter() - begun)
    return best


def _products_per_second(device: torch.device, dtype: torch.dtype) -> float:
    side = 1024
    one = torch.ones((side, side), device=device, dtype=dtype)
    best = float("inf")
    for _ in range(3):
        _wait(device)
        begun = time.perf_counter()
        one @ one
        _wait(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best * 0.7  # a model's own products are smaller


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
