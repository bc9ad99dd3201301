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
_CLUSTER, _LENGTH = "cluster", "length"


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
    is how many texts there were; `keys` (n, 32) find their vectors in the embedding store. In a
    notebook it is drawn; `save("map.html")` writes the page.

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
    keys: np.ndarray
    pictures: bytes | None = None

    def __len__(self) -> int:
        return self.readings[0].layout.points.shape[1]

    @property
    def table(self) -> pd.DataFrame:
        """A row per reading and layer: trustworthiness, the share of neighbors that the picture
        keeps, and that change."""
        parts = [
            pd.DataFrame({"reading": r.name, "layer": r.layout.layers, "trust": r.layout.trust, "kept": r.layout.kept,
                          "changed": r.layout.changed})
            for r in self.readings
        ]  # fmt: skip
        return pd.concat(parts, ignore_index=True)

    def neighbors(
        self, text: int | str, layer: int | None = None, reading: str | None = None
    ) -> list[int]:
        """The numbers of the texts nearest to one (given by its number, or itself) at a layer under
        a reading."""
        chosen = next((r for r in self.readings if reading in (None, r.name)), None)
        if chosen is None:
            raise UnknownNameError(
                "reading of this map", str(reading), [r.name for r in self.readings]
            )
        at = chosen.at if layer is None else layer
        if at not in chosen.layout.layers:
            raise InvalidValueError(
                f"this map has no layer {at}; it has {chosen.layout.layers[0]} to {chosen.layout.layers[-1]}."
            )
        if isinstance(text, str):
            if text not in (self.texts or ()):
                raise InvalidValueError("this text is not on the map.")
            text = (self.texts or []).index(text)
        return [int(i) for i in chosen.layout.near[chosen.layout.layers.index(at), text]]

    def without_texts(self) -> LayerMap:
        """The same with nothing of what the items say: columns of numbers, and
        clusters without their words."""
        columns = {name: values for name, values in self.columns.items() if _all_numbers(values)}
        found = [name for name in self.columns if name.startswith(_CLUSTER)][
            -1:
        ]  # ours comes after the user's
        for name in found:
            order = {value: i for i, value in enumerate(dict.fromkeys(self.columns[name]), 1)}
            columns[name] = [f"cluster {order[value]}" for value in self.columns[name]]
        return replace(
            self, texts=None, pictures=None, columns=columns, keys=self.keys[:, :0]
        )  # a hash tells a short text

    def save(self, out: str | Path = "map.html") -> Path:
        """Write the map as a page."""
        return view("map", "write")([self], out)

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame."""
        return view("map", "html")(self)

    def write(self, folder: RunFolder) -> None:
        """Into a run's folder."""
        facts = {
            "model": self.model, "about": self.about, "kind": self.kind, "blocks": self.blocks, "total": self.total,
            "texts": self.texts, "columns": self.columns,
            "readings": [{"name": r.name, "says": r.says, "layers": r.layout.layers, "at": r.at} for r in self.readings],
        }  # fmt: skip
        told = json.dumps(facts, ensure_ascii=True, allow_nan=False).encode()
        arrays: dict[str, np.ndarray] = {
            "facts": np.frombuffer(told, dtype=np.uint8),
            "keys": self.keys,
        }
        if self.pictures is not None:
            arrays["pictures"] = np.frombuffer(self.pictures, dtype=np.uint8)
        for i, r in enumerate(self.readings):
            points, limit = on_grid(r.layout.points)
            arrays |= {
                f"points{i}": points,
                f"limit{i}": np.array(limit),
                f"near{i}": r.layout.near.astype(np.uint16),
            }
            arrays |= {
                f"{name}{i}": getattr(r.layout, name) for name in ("trust", "kept", "changed")
            }
        content = checked.array_bytes(arrays)
        folder.write_file(FILE, lambda stream: stream.write(content))


def on_grid(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Points as whole numbers from 0 to `STEPS`, and what the ends stand for. The few that lie far
    out are put at the edge."""
    limit = 1.15 * float(
        np.median([np.quantile(np.abs(layer), 0.995) for layer in points if layer.any()] or [1.0])
    )
    return np.rint((np.clip(points / limit, -1, 1) + 1) / 2 * STEPS).astype(np.uint16), limit


def read_map(path: Path | None) -> LayerMap | None:
    """The map in a run's folder; None where it kept none."""
    file = None if path is None else Path(path) / FILE
    if path is None or file is None or not file.is_file() or file.is_symlink():
        return None
    arrays = checked.read_arrays(file)
    facts, readings = parse_json(arrays["facts"].tobytes(), file, RunFolderError), []
    for i, told in enumerate(facts.pop("readings")):
        points = (arrays[f"points{i}"] / STEPS * 2 - 1) * float(arrays[f"limit{i}"])
        shares = {name: arrays[f"{name}{i}"] for name in ("trust", "kept", "changed")}
        layout = Layout(told["layers"], points, arrays[f"near{i}"], **shares)
        readings.append(Reading(_shown(told["name"]), _shown(told["says"]), layout, told["at"]))
    texts, columns = facts.pop("texts"), facts.pop("columns")
    words: dict[str, Any] = {name: _shown(facts.pop(name)) for name in ("model", "about", "kind")}
    return LayerMap(
        **words,
        **facts,
        texts=None if texts is None else [_shown(text) for text in texts],
        columns={_shown(name): _printable(values) for name, values in columns.items()},
        readings=readings,
        keys=arrays["keys"],
        pictures=arrays["pictures"].tobytes() if "pictures" in arrays else None,
    )


def _printable(values: list[Any]) -> list[Any]:
    """A column whose words a terminal can show."""
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
    texts: Sequence[str] | None,
    keys: Sequence[bytes],
    total: int,
    columns: Mapping[str, Sequence[Any]] | None = None,
    kind: str = "texts",
    pictures: bytes | None = None,
) -> LayerMap | None:
    """Lay out the readings of some items; None where they are too few for a map."""
    if len(keys) < LEAST:
        return None
    made: list[Reading] = []
    groups = np.zeros(len(keys), dtype=int)
    for reading in readings:
        kept: list[np.ndarray] = []

        def passing(
            reading: Vectors = reading, kept: list[np.ndarray] = kept
        ) -> Iterator[np.ndarray]:
            for layer, vectors in zip(reading.layers, reading.by_layer, strict=True):
                if layer == reading.at:
                    kept.append(vectors)
                yield vectors

        points = lay_out(passing(), reading.layers, made[0].layout if made else None)
        made.append(Reading(reading.name, reading.says, points, reading.at))
        groups = clusters(kept[0])
    shown = None if texts is None else [_shown(text) for text in texts]
    usable = {
        str(name): found
        for name, values in (columns or {}).items()
        if (found := _column(values)) is not None
    }
    said = kind == "texts"  # names of files tell nothing of what is in them
    usable[_free(_CLUSTER, usable)] = group_names(groups, shown if said else None)
    if texts is not None and said:
        usable[_free(_LENGTH, usable)] = [len(text) for text in texts]
    where = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)
    return LayerMap(model, about, kind, blocks, total, shown, usable, made, where, pictures)


def _free(name: str, taken: Container[str]) -> str:
    """A name for a column of ours that is none of the user's."""
    while name in taken:
        name += " on the map"
    return name


def pick(keys: Sequence[bytes], most: int = MOST) -> list[int]:
    """Which items are on a map: all, or as many at random, whatever their order (by their keys,
    which are hashes)."""
    return sorted(sorted(range(len(keys)), key=lambda i: keys[i])[:most])


def _shown(text: str) -> str:
    """A text as a map keeps it: its beginning, without what a terminal or a page obeys."""
    whole = printable(
        text[: _MOST_LETTERS + 1].replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
    )
    return whole[:_MOST_LETTERS] + "…" if len(text) > _MOST_LETTERS else whole


def _column(values: Sequence[Any]) -> list[Any] | None:
    """A column as numbers, or as words if there are few enough to tell apart; None where coloring
    by it says nothing."""
    empty = [value is None or value == "" or value != value for value in values]
    if all(empty):
        return None
    numbers: list[float | None] = []
    try:
        for value, none in zip(values, empty, strict=True):
            numbers.append(None if none else float(value))
        if len(set(numbers) - {None}) > _MOST_WORDS and all(
            n is None or abs(n) < 1e300 for n in numbers
        ):
            return numbers
    except (TypeError, ValueError, OverflowError):
        pass
    words = [
        "" if none else _shown(str(value))[:60] for value, none in zip(values, empty, strict=True)
    ]
    return words if 1 < len(set(words)) <= _MOST_WORDS else None


def _all_numbers(values: Sequence[Any]) -> bool:
    """Whether a column holds nothing but numbers; few different ones are kept as words."""
    try:
        return all(value is None or value == "" or math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def map_of(run: Any) -> LayerMap:
    """The map that a run kept."""
    found = run.find_map()
    if found is None:
        raise LayerscopeError(
            f"{run.name}: this run kept no map. `improve` keeps one of at least {LEAST} texts; "
            "for a profile ask for it: profile(…, map=True), `layerscope profile --map`."
        )
    return found
