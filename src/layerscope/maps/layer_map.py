"""A map of texts at several layers: how it is made, kept in a run's folder and put on a page."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.files import parse_json
from layerscope.core.runs import view
from layerscope.errors import LayerscopeError, RunFolderError, printable
from layerscope.maps.layout import (
    LEAST,
    MOST,
    TRUSTED,
    Reading,
    clusters,
    group_names,
    lay_out,
    spread,
)
from layerscope.store import RunFolder, checked

FILE = f"map{checked.ARRAYS}"
_MOST_LETTERS = 2000  # of a text that are kept
_MOST_WORDS = 50  # different values of a column that can be told apart
_BYTES_PER_TEXT = 700  # on average, on the page
_STORED = ("model", "about", "kind", "blocks", "total", "texts", "columns", "groups")
_GRID = 32767  # steps from the middle of a page's map to its edge


@dataclass(frozen=True)
class LayerMap:
    """Up to 1,000 texts as points at up to eight layers of a model, under one reading or two.

    `texts` are None where they were left out. `columns` are what points can be colored by, and
    `groups` the name of each text's cluster. `total` is the number of texts that these were drawn
    from. In a notebook the map is drawn; `save("map.html")` writes its page.
    """

    model: str
    about: str
    kind: str
    blocks: int
    total: int
    texts: list[str] | None
    columns: dict[str, list[Any]]
    groups: list[str]
    readings: list[Reading]
    pictures: bytes | None = None

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def table(self) -> pd.DataFrame:
        """The trustworthiness of the picture: a row per reading and layer."""
        frames = [
            pd.DataFrame({"reading": r.name, "layer": r.layers, "trust": r.trust})
            for r in self.readings
        ]
        return pd.concat(frames, ignore_index=True)

    def without_texts(self) -> LayerMap:
        """Return the map with nothing of what the items say: columns of numbers, and clusters
        without their words."""
        columns = {
            name: values
            for name, values in self.columns.items()
            if all(value is None or value == "" or _is_number(value) for value in values)
        }
        groups = [name.partition(":")[0] for name in self.groups]
        return replace(self, texts=None, pictures=None, columns=columns, groups=groups)

    def save(self, out: str | Path = "map.html") -> Path:
        """Write the map as a page."""
        return view("map", "write")([self], out)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return view("map", "html")(self)

    def write(self, folder: RunFolder) -> None:
        """Write the map into a run's folder."""
        facts = {name: getattr(self, name) for name in _STORED}
        facts["readings"] = [
            {"name": r.name, "says": r.says, "at": r.at, "layers": r.layers} for r in self.readings
        ]
        text = json.dumps(facts, allow_nan=False).encode()
        arrays: dict[str, np.ndarray] = {"facts": np.frombuffer(text, dtype=np.uint8)}
        if self.pictures is not None:
            arrays["pictures"] = np.frombuffer(self.pictures, dtype=np.uint8)
        for i, reading in enumerate(self.readings):
            arrays[f"points{i}"] = reading.points.astype(np.float32)
            arrays[f"near{i}"] = reading.near.astype(np.uint16)
            arrays[f"trust{i}"] = reading.trust
        content = checked.array_bytes(arrays)
        folder.write_file(FILE, lambda stream: stream.write(content))

    def for_page(self) -> dict[str, Any]:
        """Return plain values for a page. Only pictures that can be trusted are shown."""
        columns = [_pack_column(name, values) for name, values in self.columns.items()]
        columns.append(_pack_column("cluster", self.groups))
        pictures = self.pictures
        return {
            "model": self.model,
            "about": self.about,
            "kind": self.kind,
            "blocks": self.blocks,
            "n": len(self),
            "total": self.total,
            "texts": None if self.texts is None else _shorten(self.texts),
            "columns": columns,
            "readings": [_pack_reading(r) for r in self.readings if r.is_trusted],
            "pictures": None if pictures is None else base64.b64encode(pictures).decode(),
        }


def read_map(path: Path | None) -> LayerMap | None:
    """Return the map in a run's folder; None where it kept none."""
    if path is None:
        return None
    file = Path(path) / FILE
    if not file.is_file() or file.is_symlink():
        return None
    arrays = checked.read_arrays(file)
    facts = parse_json(arrays["facts"].tobytes(), file, RunFolderError)
    readings = [
        Reading(
            _clean(reading["name"]),
            _clean(reading["says"]),
            reading["at"],
            reading["layers"],
            arrays[f"points{i}"],
            arrays[f"near{i}"],
            arrays[f"trust{i}"],
        )
        for i, reading in enumerate(facts["readings"])
    ]
    stored = {name: _clean_all(facts[name]) for name in _STORED}
    pictures = arrays["pictures"].tobytes() if "pictures" in arrays else None
    return LayerMap(**stored, readings=readings, pictures=pictures)


def _clean_all(value: Any) -> Any:
    """Return a value with every text in it made harmless."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, list):
        return [_clean_all(member) for member in value]
    if isinstance(value, dict):
        return {_clean(name): _clean_all(member) for name, member in value.items()}
    return value


def map_of(run: Any) -> LayerMap:
    """Return the map that a run kept."""
    layer_map: LayerMap | None = run.find_map()
    if layer_map is None:
        raise LayerscopeError(
            f"{run.name}: this run kept no map. `improve` keeps one of at least {LEAST} texts; "
            "for a profile ask for it: profile(…, map=True), `layerscope profile --map`."
        )
    return layer_map


@dataclass(frozen=True)
class Vectors:
    """One reading before it is laid out: vectors (texts, D) come layer by layer."""

    name: str
    says: str
    layers: Sequence[int]
    at: int
    by_layer: Iterable[np.ndarray]


def make_map(
    model: str,
    about: str,
    blocks: int,
    readings: Sequence[Vectors],
    *,
    count: int,
    texts: Sequence[str] | None,
    total: int,
    columns: Mapping[str, Sequence[Any]] | None = None,
    kind: str = "texts",
    pictures: bytes | None = None,
) -> LayerMap | None:
    """Lay out the readings of `count` items of `total`; return None where they are too few."""
    if count < LEAST:
        return None
    used = [reading.at for reading in readings]
    laid_out: list[Reading] = []
    groups = np.zeros(count, dtype=int)
    for reading in readings:
        layers = spread(reading.layers, used)
        pairs = zip(reading.layers, reading.by_layer, strict=True)
        vectors = {layer: rows for layer, rows in pairs if layer in layers}
        start = laid_out[0].points[0] if laid_out and laid_out[0].points[0].any() else None
        drawn = lay_out(vectors.values(), start)
        laid_out.append(Reading(reading.name, reading.says, reading.at, layers, *drawn))
        groups = clusters(vectors[reading.at])
    words = None if texts is None else [_clean(text) for text in texts]
    usable = {str(name): _usable_column(values) for name, values in (columns or {}).items()}
    return LayerMap(
        model,
        about,
        kind,
        blocks,
        total,
        words,
        {name: values for name, values in usable.items() if values is not None},
        # names of files tell nothing of what is in them
        group_names(groups, words if kind == "texts" else None),
        laid_out,
        pictures,
    )


def pick(keys: Sequence[bytes], most: int = MOST) -> list[int]:
    """Return the places of the items on a map: all, or as many at random, whatever their order.

    Their keys, which are hashes, decide.
    """
    return sorted(sorted(range(len(keys)), key=lambda i: keys[i])[:most])


def _clean(text: str) -> str:
    """Return the beginning of a text, without what a terminal or a page obeys."""
    beginning = text[: _MOST_LETTERS + 1].replace("\r\n", "\n")
    harmless = printable(beginning.encode("utf-8", "replace").decode("utf-8"))
    return harmless[:_MOST_LETTERS] + "…" if len(text) > _MOST_LETTERS else harmless


def _usable_column(values: Sequence[Any]) -> list[Any] | None:
    """Return a column as numbers, or as words if there are few enough to tell apart; None where
    coloring by it says nothing."""
    empty = [value is None or value == "" or value != value for value in values]
    if all(empty):
        return None
    pairs = list(zip(values, empty, strict=True))
    if all(blank or _is_number(value) for value, blank in pairs):
        numbers = [None if blank else float(value) for value, blank in pairs]
        if len(set(numbers) - {None}) > _MOST_WORDS:
            return numbers
    words = ["" if blank else _clean(str(value))[:60] for value, blank in pairs]
    return words if 1 < len(set(words)) <= _MOST_WORDS else None


def _is_number(value: Any) -> bool:
    """Return whether a page can hold a value as a number."""
    try:
        return abs(float(value)) < 1e300
    except (TypeError, ValueError, OverflowError):
        return False


def _pack_column(name: str, values: list[Any]) -> dict[str, Any]:
    """Return numbers as they are; words once, the most frequent first."""
    if any(isinstance(value, int | float) for value in values):
        numbers = [None if value is None else float(f"{value:.5g}") for value in values]
        return {"name": name, "numbers": numbers}
    words = [str(word) for word in pd.Series(values).value_counts().index]
    places = {word: place for place, word in enumerate(words)}
    return {"name": name, "words": words, "at": [places[value] for value in values]}


def _pack_reading(reading: Reading) -> dict[str, Any]:
    """Return a reading at the layers whose picture can be trusted."""
    shown = np.flatnonzero(reading.trust >= TRUSTED)
    shown_layers = [reading.layers[place] for place in shown]
    points = reading.points[shown]
    scaled = np.rint(points / max(1e-30, np.abs(points).max()) * _GRID)
    return {
        "name": reading.name,
        "says": reading.says,
        "at": reading.at,
        "layers": shown_layers,
        "hidden": [layer for layer in reading.layers if layer not in shown_layers],
        "trust": [round(float(reading.trust[place]), 4) for place in shown],
        "k": reading.near.shape[2],
        "points": _pack_array(scaled.astype("<i2")),
        "near": _pack_array(reading.near[shown].astype("<u2")),
    }


def _pack_array(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 9)).decode()


def _shorten(texts: list[str]) -> list[str]:
    """Return the texts, shortened as far as the page has to stay small."""
    for letters in (_MOST_LETTERS, 1000, 500, 250, 120):
        short = [text if len(text) <= letters else text[: letters - 1] + "…" for text in texts]
        if len(json.dumps(short, ensure_ascii=False).encode()) <= _BYTES_PER_TEXT * len(texts):
            break
    return short
