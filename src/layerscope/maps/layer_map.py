"""A map of texts at every layer: what a run keeps of it, and what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.json import parse_json
from layerscope.core.runs import view
from layerscope.errors import (
    InvalidValueError,
    LayerscopeError,
    RunFolderError,
    UnknownNameError,
    printable,
)
from layerscope.maps.groups import clusters, group_names
from layerscope.maps.layout import LEAST, MOST, Layout, lay_out
from layerscope.store import RunFolder, checked

FILE = f"map{checked.ARRAYS}"
STEPS = 4095
"""Points are kept on a grid of so many steps a side."""
_MOST_LETTERS = 2000  # of a text that are kept
_MOST_WORDS = 50  # different values of a column that can be told apart
_CLUSTER = "cluster"
_LENGTH = "length"
_SHARES = ("trust", "kept", "changed")


@dataclass(frozen=True)
class Reading:
    """One way to read the texts (`today`, `better`), in words (`says`), laid out; `at` is the layer
    that it is used at."""

    name: str
    says: str
    layout: Layout
    at: int


@dataclass(frozen=True)
class LayerMap:
    """Up to 2,000 texts as points at every layer of a model, under one reading or two.

    `texts` are None where they were left out. `columns` are what points can be colored by. `total`
    is how many texts there were. In a notebook it is drawn; `save("map.html")` writes the page.

        run = layerscope.load_run("better")
        run.map().table  # how far the picture can be trusted, and how many neighbors change, layer by layer
    """

    model: str
    about: str
    kind: str
    blocks: int
    total: int
    texts: list[str] | None
    columns: dict[str, list[Any]]
    readings: list[Reading]
    pictures: bytes | None = None

    def __len__(self) -> int:
        return self.readings[0].layout.points.shape[1]

    @property
    def table(self) -> pd.DataFrame:
        """A row per reading and layer: trustworthiness, the share of neighbors that the picture
        keeps, and that change."""
        parts = [
            pd.DataFrame(
                {
                    "reading": reading.name,
                    "layer": reading.layout.layers,
                    "trust": reading.layout.trust,
                    "kept": reading.layout.kept,
                    "changed": reading.layout.changed,
                }
            )
            for reading in self.readings
        ]
        return pd.concat(parts, ignore_index=True)

    def neighbors(
        self, text: int | str, layer: int | None = None, reading: str | None = None
    ) -> list[int]:
        """Return the numbers of the texts nearest to one (given by its number, or itself) at a
        layer under a reading."""
        readings = {known.name: known for known in self.readings}
        if reading is not None and reading not in readings:
            raise UnknownNameError("reading of this map", reading, list(readings))
        chosen = self.readings[0] if reading is None else readings[reading]
        layers = chosen.layout.layers
        wanted_layer = chosen.at if layer is None else layer
        if wanted_layer not in layers:
            raise InvalidValueError(
                f"this map has no layer {wanted_layer}; it has {layers[0]} to {layers[-1]}."
            )
        if isinstance(text, str):
            if text not in (self.texts or ()):
                raise InvalidValueError("this text is not on the map.")
            text = (self.texts or []).index(text)
        return [int(i) for i in chosen.layout.near[layers.index(wanted_layer), text]]

    def without_texts(self) -> LayerMap:
        """Return the map with nothing of what the items say: columns of numbers, and clusters
        without their words."""
        columns = {name: values for name, values in self.columns.items() if _all_numbers(values)}
        clusters = [name for name in self.columns if name.startswith(_CLUSTER)]
        for name in clusters[-1:]:  # ours comes after the user's
            order = {value: i for i, value in enumerate(dict.fromkeys(self.columns[name]), 1)}
            columns[name] = [f"cluster {order[value]}" for value in self.columns[name]]
        return replace(self, texts=None, pictures=None, columns=columns)

    def save(self, out: str | Path = "map.html") -> Path:
        """Write the map as a page."""
        return view("map", "write")([self], out)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return view("map", "html")(self)

    def write(self, folder: RunFolder) -> None:
        """Write the map into a run's folder."""
        facts = {
            "model": self.model,
            "about": self.about,
            "kind": self.kind,
            "blocks": self.blocks,
            "total": self.total,
            "texts": self.texts,
            "columns": self.columns,
            "readings": [
                {"name": r.name, "says": r.says, "layers": r.layout.layers, "at": r.at}
                for r in self.readings
            ],
        }
        text = json.dumps(facts, ensure_ascii=True, allow_nan=False).encode()
        arrays: dict[str, np.ndarray] = {"facts": np.frombuffer(text, dtype=np.uint8)}
        if self.pictures is not None:
            arrays["pictures"] = np.frombuffer(self.pictures, dtype=np.uint8)
        for i, reading in enumerate(self.readings):
            layout = reading.layout
            points, limit = on_grid(layout.points)
            arrays[f"points{i}"] = points
            arrays[f"limit{i}"] = np.array(limit)
            arrays[f"near{i}"] = layout.near.astype(np.uint16)
            for name in _SHARES:
                arrays[f"{name}{i}"] = getattr(layout, name)
        content = checked.array_bytes(arrays)
        folder.write_file(FILE, lambda stream: stream.write(content))


def on_grid(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return points as whole numbers from 0 to `STEPS`, and what the ends stand for. The few that
    lie far out are put at the edge."""
    extents = [np.quantile(np.abs(layer), 0.995) for layer in points if layer.any()]
    limit = 1.15 * float(np.median(extents or [1.0]))
    scaled = (np.clip(points / limit, -1, 1) + 1) / 2
    return np.rint(scaled * STEPS).astype(np.uint16), limit


def read_map(path: Path | None) -> LayerMap | None:
    """Return the map in a run's folder; None where it kept none."""
    if path is None:
        return None
    file = Path(path) / FILE
    if not file.is_file() or file.is_symlink():
        return None
    arrays = checked.read_arrays(file)
    facts = parse_json(arrays["facts"].tobytes(), file, RunFolderError)
    readings = []
    for i, reading in enumerate(facts["readings"]):
        points = (arrays[f"points{i}"] / STEPS * 2 - 1) * float(arrays[f"limit{i}"])
        shares = {name: arrays[f"{name}{i}"] for name in _SHARES}
        layout = Layout(reading["layers"], points, arrays[f"near{i}"], **shares)
        name, says = _shown(reading["name"]), _shown(reading["says"])
        readings.append(Reading(name, says, layout, reading["at"]))
    texts = facts["texts"]
    return LayerMap(
        model=_shown(facts["model"]),
        about=_shown(facts["about"]),
        kind=_shown(facts["kind"]),
        blocks=facts["blocks"],
        total=facts["total"],
        texts=None if texts is None else [_shown(text) for text in texts],
        columns={_shown(name): _printable(values) for name, values in facts["columns"].items()},
        readings=readings,
        pictures=arrays["pictures"].tobytes() if "pictures" in arrays else None,
    )


def _printable(values: list[Any]) -> list[Any]:
    """Return a column whose words a terminal can show."""
    return [_shown(value)[:60] if isinstance(value, str) else value for value in values]


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
    """Lay out the readings of `count` items of `total`; return None where they are too few for a
    map."""
    if count < LEAST:
        return None
    laid_out: list[Reading] = []
    groups = np.zeros(count, dtype=int)
    for reading in readings:
        chosen: list[np.ndarray] = []  # the vectors at the layer that the reading is used at

        def passing(
            reading: Vectors = reading, chosen: list[np.ndarray] = chosen
        ) -> Iterator[np.ndarray]:
            for layer, vectors in zip(reading.layers, reading.by_layer, strict=True):
                if layer == reading.at:
                    chosen.append(vectors)
                yield vectors

        start = laid_out[0].layout if laid_out else None
        layout = lay_out(passing(), reading.layers, start)
        laid_out.append(Reading(reading.name, reading.says, layout, reading.at))
        groups = clusters(chosen[0])
    shown = None if texts is None else [_shown(text) for text in texts]
    usable = {}
    for name, values in (columns or {}).items():
        column = _column(values)
        if column is not None:
            usable[str(name)] = column
    says_something = kind == "texts"  # names of files tell nothing of what is in them
    names = group_names(groups, shown if says_something else None)
    usable[_free(_CLUSTER, usable)] = names
    if texts is not None and says_something:
        usable[_free(_LENGTH, usable)] = [len(text) for text in texts]
    return LayerMap(model, about, kind, blocks, total, shown, usable, laid_out, pictures)


def _free(name: str, taken: Container[str]) -> str:
    """Return a name for a column of ours that is none of the user's."""
    while name in taken:
        name += " on the map"
    return name


def pick(keys: Sequence[bytes], most: int = MOST) -> list[int]:
    """Return which items are on a map: all, or as many at random, whatever their order (by their
    keys, which are hashes)."""
    return sorted(sorted(range(len(keys)), key=lambda i: keys[i])[:most])


def _shown(text: str) -> str:
    """Return a text as a map keeps it: its beginning, without what a terminal or a page obeys."""
    beginning = text[: _MOST_LETTERS + 1].replace("\r\n", "\n")
    harmless = printable(beginning.encode("utf-8", "replace").decode("utf-8"))
    return harmless[:_MOST_LETTERS] + "…" if len(text) > _MOST_LETTERS else harmless


def _column(values: Sequence[Any]) -> list[Any] | None:
    """Return a column as numbers, or as words if there are few enough to tell apart; None where
    coloring by it says nothing."""
    present = [None if _is_empty(value) else value for value in values]
    if all(value is None for value in present):
        return None
    numbers = _as_numbers(present)
    if numbers is not None and len(set(numbers) - {None}) > _MOST_WORDS:
        return numbers
    words = ["" if value is None else _shown(str(value))[:60] for value in present]
    return words if 1 < len(set(words)) <= _MOST_WORDS else None


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value != value


def _as_numbers(values: Sequence[Any]) -> list[float | None] | None:
    """Return a column as numbers that a page can hold; None where it has others."""
    try:
        numbers = [None if value is None else float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return None
    fits = all(number is None or abs(number) < 1e300 for number in numbers)
    return numbers if fits else None


def _all_numbers(values: Sequence[Any]) -> bool:
    """Return whether a column holds nothing but numbers; few different ones are kept as words."""
    try:
        return all(value is None or value == "" or math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def map_of(run: Any) -> LayerMap:
    """Return the map that a run kept."""
    layer_map: LayerMap | None = run.find_map()
    if layer_map is None:
        raise LayerscopeError(
            f"{run.name}: this run kept no map. `improve` keeps one of at least {LEAST} texts; "
            "for a profile ask for it: profile(…, map=True), `layerscope profile --map`."
        )
    return layer_map
