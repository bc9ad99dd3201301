"""A model's files as transformers reads them: complete, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from layerscope.errors import LayerscopeError, ModelError, one_line
from layerscope.extras import missing
from layerscope.models.modules import unwrap
from layerscope.models.settings import quiet, without_advice
from layerscope.models.source import Source

_OTHER_INPUTS = ("pixel_values", "input_values", "input_features")
_PREPROCESSOR = "preprocessor_config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")


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
    class_name = type(module).__name__
    absent = sorted(key for key in info["missing_keys"] if not re.search(unread, key))
    if absent:
        raise ModelError(
            f"the checkpoint of {source.name} lacks {len(absent)} weights of {class_name} (e.g. "
            f"{absent[0]}), which would be left random. The files are incomplete or belong to "
            "another architecture."
        )
    extra = sorted(info["unexpected_keys"]) if whole else []
    if extra:
        raise ModelError(
            f"{len(extra)} weights in {source.path} have no place in the {class_name} that its "
            f"config.json describes (e.g. {extra[0]}). The files do not belong together."
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

    if _lacks_tokenizer(source):
        raise ModelError(
            f"{source.name} has no tokenizer but a {_PREPROCESSOR}: {missing('media')}"
        )
    tokenizer_options: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": bool(options.get("trust_remote_code")),
    }
    if source.gguf:
        tokenizer_options["gguf_file"] = source.gguf
    without_advice()
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


def _lacks_tokenizer(source: Source) -> bool:
    if source.gguf is not None or not (source.path / _PREPROCESSOR).is_file():
        return False
    return not any(any(source.path.glob(name)) for name in _TOKENIZERS)
