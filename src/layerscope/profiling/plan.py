"""Which prompts are read, in which parts: sorted by length, so that batches hold little padding and parts are bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np

from layerscope.data.images.imageset import ImageSet
from layerscope.errors import DataError
from layerscope.models import ImageModel, LoadedModel
from layerscope.profiling.tokens import read_tokens

_CHUNK = 2000  # texts tokenised at once while planning
_TOKENS_KEPT = 2_000_000  # 8 MB: more are made again when they are needed
_PIXELS_KEPT = 256 * 2**20  # bytes: of more images, each is decoded again when it is needed
_SHARD_BYTES = {"cpu": 96 * 2**20, "cuda": 256 * 2**20}


@dataclass(frozen=True)
class TokenIds:
    """Token ids of many texts in one array; `ids[i]` are those of text i."""

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.starts[index] : self.starts[index] + self.lengths[index]]


@dataclass(frozen=True)
class Plan:
    """Prompts by number: their keys (hashes of the texts), token counts, which were cut, and the shards they form.

    Of images: `images`, their names in place of texts, and in `ids` what the processor made of them.
    """

    texts: Sequence[str]
    keys: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    no_tokens: int
    max_length: int
    shards: list[np.ndarray]
    # token ids of every text, where they take little memory
    ids: TokenIds | Mapping[int, np.ndarray] | list[np.ndarray] | None = None
    images: ImageSet | None = None

    @property
    def n_prompts(self) -> int:
        """Prompts that are read."""
        return int(sum(len(s) for s in self.shards))


def text_key(text: str) -> int:
    """A number that stands for a text wherever order must not matter."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def make_plan(model: LoadedModel, texts: Sequence[str] | ImageSet, max_length: int, shard_size: int) -> Plan:
    """Tokenise once for the lengths and cut the prompts, longest first, into shards."""
    if isinstance(texts, ImageSet):
        return _plan_images(model, texts, shard_size)
    limit = token_limit(model, max_length)
    return plan_texts(model, texts, limit, shard_size, [read_part(model, texts, np.arange(len(texts)), limit)])


@dataclass(frozen=True)
class Part:
    """Some texts by number, how many tokens each has, which were cut, and their token ids if there are not too many."""

    prompts: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    tokens: np.ndarray | None


def token_limit(model: LoadedModel, max_length: int) -> int:
    """The most tokens that are read of a text."""
    return max_length if model.max_length is None else min(max_length, model.max_length)


def read_part(model: LoadedModel, texts: Sequence[str], prompts: np.ndarray, limit: int, go_on: Event | None = None) -> Part:
    """Tokenise some texts, given by number; in a thread, see `read_tokens` for `go_on`."""
    lengths = np.zeros(len(prompts), dtype=np.int64)
    truncated = np.zeros(len(prompts), dtype=bool)
    kept: list[np.ndarray] | None = []  # one array per chunk: an array per text would cost more than its tokens
    for start in range(0, len(prompts), _CHUNK):
        read = read_tokens(model, [texts[i] for i in prompts[start : start + _CHUNK].tolist()], limit, go_on)
        lengths[start : start + _CHUNK] = read.lengths
        truncated[start : start + _CHUNK] = read.truncated
        if kept is not None:
            kept.append(read.tokens)
            kept = kept if lengths.sum() <= _TOKENS_KEPT else None
    return Part(prompts, lengths, truncated, None if kept is None else np.concatenate([np.empty(0, np.int32), *kept]))


def plan_texts(model: LoadedModel, texts: Sequence[str], limit: int, shard_size: int, parts: Sequence[Part]) -> Plan:
    """The plan of all texts: of two parts, the first is a shard of its own."""
    prompts, lengths, truncated = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("prompts", "lengths", "truncated")
    )
    starts = np.cumsum(lengths) - lengths
    back = np.empty(len(prompts), dtype=np.int64)  # from the order of reading to that of the texts
    back[prompts] = np.arange(len(prompts))
    tokens = [p.tokens for p in parts if p.tokens is not None]
    kept = len(tokens) == len(parts) and lengths.sum() <= _TOKENS_KEPT
    lengths, truncated = lengths[back], truncated[back]
    keys = np.array([text_key(text) for text in texts], dtype=np.uint64)
    usable = np.flatnonzero(lengths > 0)
    if len(usable) == 0:
        raise DataError(f"the tokenizer of {model.name} finds no token in any of the {len(texts)} texts.")
    shards = []
    for part in parts:
        some = part.prompts[part.lengths > 0]
        if part is not parts[-1]:
            shards.append(some)
            continue
        # Longest first: memory that will not do is found out at once. Ties by key, so that order never matters.
        order = some[np.lexsort((keys[some], -lengths[some]))]
        shards += [order[i : i + shard_size] for i in range(0, len(order), shard_size)]
    ids = TokenIds(tokens[0] if len(tokens) == 1 else np.concatenate(tokens), starts[back], lengths) if kept else None
    return Plan(texts, keys, lengths, truncated, len(texts) - len(usable), limit, shards, ids)


def _plan_images(model: LoadedModel, images: ImageSet, shard_size: int) -> Plan:
    """Every image has as many tokens as any other; what the processor makes of them is kept where it takes little memory."""
    if not isinstance(model, ImageModel):
        raise DataError(f"{model.name} reads texts, not images: give texts (--data), or an image model.")
    first = model.reader.read(images, [0])
    model.check_layout(first[0])
    count, n = model.lengths(first)[0], len(images)
    keys = images.keys
    order = np.lexsort((np.arange(n), keys))
    shards = [order[i : i + shard_size] for i in range(0, n, shard_size)]
    kept = model.reader.read(images, range(n)) if first[0].nbytes * n <= _PIXELS_KEPT else None
    return Plan(images.names, keys, np.full(n, count, dtype=np.int64), np.zeros(n, dtype=bool), 0, count, shards, kept, images)


def choose_shard_size(device_type: str, sites: int, views: int, width: int, item_bytes: int = 0) -> int:
    """Prompts per shard: a minute or so of work on a CPU, full batches on a GPU, and a bounded amount of memory.

    `item_bytes` is what one prompt's input takes, where that is more than a few token ids.
    """
    room = _SHARD_BYTES.get(device_type, _SHARD_BYTES["cpu"])
    fits = room // (sites * (1 + views) * width * 4)
    if item_bytes:
        fits = min(fits, room // ((1 + views) * item_bytes))
    return int(max(4, min(32 if device_type == "cpu" else 512, fits)))
