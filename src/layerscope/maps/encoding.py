"""A map as a page takes it: small enough to be sent.

Both points and neighbors change little from one layer to the next, so that differences are written,
bytes of the same kind lie together, and what deflate makes of them is text (base64). 1,000 texts at
31 layers under two readings take about half a megabyte.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

from layerscope.maps.layer_map import STEPS, LayerMap, Reading, on_grid
from layerscope.maps.layout import NEIGHBORS

_BYTES_PER_TEXT = 300  # on average, on the page
_LETTERS = (600, 300, 150, 80, 40)
_READINGS_PER_TEXT = 1000  # bytes, on average, for points and neighbors


def for_page(given: LayerMap) -> dict[str, Any]:
    """Plain values and text. Where layers have so little in common that it would be large, fewer
    neighbors are told."""
    for shown in (NEIGHBORS, 8, 6, 4):
        readings = [_reading(reading, shown) for reading in given.readings]
        size = sum(len(reading[name]) for reading in readings for name in ("xy", "same", "other"))
        if size <= _READINGS_PER_TEXT * len(given):
            break
    return {
        "model": given.model,
        "about": given.about,
        "kind": given.kind,
        "blocks": given.blocks,
        "n": len(given),
        "total": given.total,
        "texts": None if given.texts is None else _cut(given.texts),
        "columns": [_column(name, values) for name, values in given.columns.items()],
        "readings": readings,
        "pictures": None if given.pictures is None else base64.b64encode(given.pictures).decode(),
    }


def _reading(reading: Reading, shown: int) -> dict[str, Any]:
    layout, near = reading.layout, reading.layout.near[:, :, :shown]
    points = on_grid(layout.points)[0].astype(np.int32)
    moved = np.diff(points, axis=0, prepend=0) % (STEPS + 1)
    symbols, numbers = _by_layer_before(near)
    told = {name: [None if value != value else round(float(value), 4) for value in getattr(layout, name)]
            for name in ("trust", "kept", "changed")}  # fmt: skip
    return {
        "name": reading.name, "says": reading.says, "at": reading.at, "layers": layout.layers, "k": near.shape[2], **told,
        "xy": _packed(_planes(moved)), "same": _packed(symbols.tobytes()), "other": _packed(_planes(numbers)),
    }  # fmt: skip


def _by_layer_before(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every neighbor its place at the layer before, or k where it was none; and, in order, the
    numbers of those."""
    _, n, k = near.shape
    before = np.concatenate([np.full((1, n, k), -1), near[:-1].astype(np.int64)])
    found = near.astype(np.int64)[:, :, :, None] == before[:, :, None, :]
    symbols = np.where(found.any(3), found.argmax(3), k).astype(np.uint8)
    return symbols, near[symbols == k].astype(np.int64)


def _planes(numbers: np.ndarray) -> bytes:
    """Low bytes first, then high ones."""
    flat = numbers.ravel()
    return (flat & 255).astype(np.uint8).tobytes() + (flat >> 8).astype(np.uint8).tobytes()


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _cut(texts: list[str]) -> list[str]:
    """The beginnings of texts, as many letters as there is room for."""
    for most in _LETTERS:
        cut = [text if len(text) <= most else text[: most - 1] + "…" for text in texts]
        if most == _LETTERS[-1] or len(
            json.dumps(cut, ensure_ascii=False).encode()
        ) <= _BYTES_PER_TEXT * len(texts):
            break
    return cut


def _column(name: str, values: list[Any]) -> dict[str, Any]:
    """Numbers as they are; words once, the most frequent first."""
    if any(isinstance(value, int | float) for value in values):
        return {
            "name": name,
            "numbers": [None if value is None else float(f"{value:.5g}") for value in values],
        }
    words = sorted(dict.fromkeys(values), key=lambda word: (-values.count(word), word))
    place = {word: i for i, word in enumerate(words)}
    return {"name": name, "words": words, "at": [place[value] for value in values]}
