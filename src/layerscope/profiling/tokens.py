"""Token ids of many texts in one array, straight from a fast tokenizer's core where that alone gives the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Event
from typing import Any

import numpy as np

from layerscope.models import LoadedModel

_TRIED = 4  # texts whose tokens are compared
_FEWEST = 32  # texts: of fewer, nothing is gained
# what a tokenizer may do beside its core: one that has its own of these is asked itself
_AROUND_THE_CORE = ("__call__", "_call_one", "_encode_plus", "_batch_encode_plus", "set_truncation_and_padding")


@dataclass(frozen=True)
class ReadTokens:
    """Token ids of some texts, one after the other (int32), how many each has, and which texts were cut."""

    tokens: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray


def read_tokens(model: LoadedModel, texts: Sequence[str], limit: int, go_on: Event | None = None) -> ReadTokens:
    """What `model.tokenize` gives, without an object of Python's per token and without offsets, which nobody reads.

    A thread that makes tokens while others work holds them up only with what Python does: with that it waits for `go_on`.
    """
    texts = list(texts)
    core = _core(model, texts, limit) if len(texts) >= _FEWEST else None
    if core is None:
        made = model.tokenize(texts, limit)
        ids, cut = made.ids, made.truncated
    else:
        encodings = core.encode_batch_fast(texts)
        if go_on is not None:
            go_on.wait()
        ids, cut = [encoding.ids for encoding in encodings], [bool(encoding.overflowing) for encoding in encodings]
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum()))
    return ReadTokens(tokens, lengths, np.array(cut, dtype=bool))


def _core(model: LoadedModel, texts: Sequence[str], limit: int) -> Any:
    """The core of a model's tokenizer, set to cut at `limit`; None where it is not known to give the same tokens."""
    tokenizer = model._tokenizer
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or not hasattr(core, "encode_batch_fast") or not _is_plain(model, tokenizer):
        return None
    some = list(texts[:_TRIED])
    made = model.tokenize(some, limit)  # this also sets the core's truncation, which stays
    tried = core.encode_batch_fast(some)
    same = [e.ids for e in tried] == made.ids and [bool(e.overflowing) for e in tried] == made.truncated
    return core if same else None


def _is_plain(model: LoadedModel, tokenizer: Any) -> bool:
    """Whether nothing around a tokenizer's core changes what it is given or what it gives."""
    from transformers import PreTrainedTokenizerFast as Plain

    def own(thing: Any, kind: type, name: str) -> bool:
        return getattr(type(thing), name, None) is not getattr(kind, name, None) or name in vars(thing)

    if own(model, LoadedModel, "tokenize") or not getattr(tokenizer, "is_fast", False):
        return False
    return not any(own(tokenizer, Plain, name) for name in _AROUND_THE_CORE)
