"""What transformers makes of a model's files: complete, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from layerscope.errors import LayerscopeError, ModelError, one_line
from layerscope.models.settings import quiet
from layerscope.models.source import Source


def read_pretrained(
    source: Source,
    known: Any,
    options: dict[str, Any],
    unread: str,
    beside: Callable[[], Any] = lambda: None,
    whole: bool = False,
) -> tuple[Any, Any]:
    """The model of transformers' class `known` in a source's files, and what `beside` reads there,
    such as a tokenizer.

    Weights that match `unread` may be missing: they pool the last layer, or are for training.
    With `whole`, every weight in the files must have a place.
    """
    weights = {"gguf_file": source.gguf} if source.gguf else {"use_safetensors": not source.pickled}
    try:
        with quiet(bars=source.gguf is not None):
            # The files are on this machine by now: nothing may reach for the network behind the
            # user's back.
            given = {"local_files_only": True, **weights, **options}
            module, info = known.from_pretrained(source.path, output_loading_info=True, **given)
            other = beside()
    except LayerscopeError:
        raise
    except Exception as error:
        raise ModelError(
            f"{source.name} could not be loaded from {source.path}: {one_line(str(error))}"
        ) from error
    missing = sorted(key for key in info.get("missing_keys", ()) if not re.search(unread, key))
    if missing:
        raise ModelError(
            f"the checkpoint of {source.name} lacks {len(missing)} weights of {type(module).__name__} (e.g. {missing[0]}), which "
            "would be left random. The files are incomplete or belong to another architecture."
        )
    extra = sorted(info.get("unexpected_keys", ())) if whole else []
    if extra:
        raise ModelError(
            f"{len(extra)} weights in {source.path} have no place in the {type(module).__name__} that its config.json describes "
            f"(e.g. {extra[0]}). The files do not belong together."
        )
    return module, other
