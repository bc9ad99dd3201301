"""A random sample of a stream of texts, in one pass and little memory, however many texts there
are."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from layerscope.data.items import content_key


@dataclass(frozen=True)
class Draw:
    """Distinct texts of a stream in random order, at most as many as were asked for.

    `read` counts all usable texts, `distinct` those that differ. `fingerprint` says which texts the
    stream holds, whatever their order.
    """

    texts: tuple[str, ...]
    read: int
    distinct: int
    fingerprint: str


def draw_texts(stream: Iterable[str], size: int, seed: int = 0) -> Draw:
    """Return the `size` distinct texts whose hash with the seed is lowest, lowest first.

    The draw depends on the seed and on which texts there are, not on their order or their copies,
    and a smaller draw is the beginning of a larger one.

    >>> draw_texts(["b", "a", "b", "c"], 2).texts == draw_texts(["c", "b", "a"], 3).texts[:2]
    True
    """
    lowest: list[tuple[int, str]] = []  # a heap with the highest of the lowest hashes first
    members: set[str] = set()
    keys = array("Q")
    total = 0
    for text in stream:
        keys.append(content_key(text))
        content = text.encode("utf-8", "surrogatepass")
        # a sum does not depend on the order of the texts, and needs no memory
        total += int.from_bytes(hashlib.sha256(content).digest(), "big")
        rank = -int.from_bytes(hashlib.sha256(f"{seed}|0|".encode() + content).digest(), "big")
        if len(lowest) == size and rank <= lowest[0][0]:
            continue
        if text in members:
            continue
        members.add(text)
        if len(lowest) < size:
            heapq.heappush(lowest, (rank, text))
        else:
            members.remove(heapq.heapreplace(lowest, (rank, text))[1])
    distinct = (
        np.unique(np.frombuffer(keys, dtype=np.uint64)) if keys else np.empty(0, dtype=np.uint64)
    )
    fingerprint = hashlib.sha256(f"{len(keys)}|{total % 2**256:x}".encode()).hexdigest()
    ordered = tuple(text for _, text in sorted(lowest, reverse=True))
    return Draw(ordered, len(keys), len(distinct), fingerprint)
