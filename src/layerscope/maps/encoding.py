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


def for_page(layer_map: LayerMap) -> dict[str, Any]:
    """Return plain values and text. Where layers have so little in common that it would be large,
    fewer neighbors are given."""
    for shown in (NEIGHBORS, 8, 6, 4):
        readings = [_encode_reading(reading, shown) for reading in layer_map.readings]
        size = sum(len(reading[name]) for reading in readings for name in ("xy", "same", "other"))
        if size <= _READINGS_PER_TEXT * len(layer_map):
            break
    texts = layer_map.texts
    pictures = layer_map.pictures
    return {
        "model": layer_map.model,
        "about": layer_map.about,
        "kind": layer_map.kind,
        "blocks": layer_map.blocks,
        "n": len(layer_map),
        "total": layer_map.total,
        "texts": None if texts is None else _cut(texts),
        "columns": [_encode_column(name, values) for name, values in layer_map.columns.items()],
        "readings": readings,
        "pictures": None if pictures is None else base64.b64encode(pictures).decode(),
    }


def _encode_reading(reading: Reading, shown: int) -> dict[str, Any]:
    layout = reading.layout
    near = layout.near[:, :, :shown]
    points = on_grid(layout.points)[0].astype(np.int32)
    moved = np.diff(points, axis=0, prepend=0) % (STEPS + 1)
    symbols, numbers = _by_layer_before(near)
    return {
        "name": reading.name,
        "says": reading.says,
        "at": reading.at,
        "layers": layout.layers,
        "k": near.shape[2],
        "trust": _rounded(layout.trust),
        "kept": _rounded(layout.kept),
        "changed": _rounded(layout.changed),
        "xy": _packed(_planes(moved)),
        "same": _packed(symbols.tobytes()),
        "other": _packed(_planes(numbers)),
    }


def _rounded(shares: np.ndarray) -> list[float | None]:
    """Return shares with four digits; None where they are undefined."""
    return [None if np.isnan(share) else round(float(share), 4) for share in shares]


def _by_layer_before(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for every neighbor its place at the layer before, or k where it was none; and, in
    order, the numbers of those."""
    _, n, k = near.shape
    before = np.concatenate([np.full((1, n, k), -1), near[:-1].astype(np.int64)])
    is_same = near.astype(np.int64)[:, :, :, None] == before[:, :, None, :]
    symbols = np.where(is_same.any(3), is_same.argmax(3), k).astype(np.uint8)
    return symbols, near[symbols == k].astype(np.int64)


def _planes(numbers: np.ndarray) -> bytes:
    """Return the low bytes of numbers, then the high ones."""
    flat = numbers.ravel()
    return (flat & 255).astype(np.uint8).tobytes() + (flat >> 8).astype(np.uint8).tobytes()


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def _cut(texts: list[str]) -> list[str]:
    """Return the beginnings of texts, as many letters as there is room for."""
    for most in _LETTERS:
        cut = [text if len(text) <= most else text[: most - 1] + "…" for text in texts]
        size = len(json.dumps(cut, ensure_ascii=False).encode())
        if size <= _BYTES_PER_TEXT * len(texts):
            break
    return cut


def _encode_column(name: str, values: list[Any]) -> dict[str, Any]:
    """Return numbers as they are; words once, the most frequent first."""
    if any(isinstance(value, int | float) for value in values):
        numbers = [None if value is None else float(f"{value:.5g}") for value in values]
        return {"name": name, "numbers": numbers}
    words = sorted(dict.fromkeys(values), key=lambda word: (-values.count(word), word))
    place = {word: i for i, word in enumerate(words)}
    return {"name": name, "words": words, "at": [place[value] for value in values]}
