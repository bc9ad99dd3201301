"""A third kind of items, added from outside the package: sequences of floats, read by a small
module."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerscope.capture import Anatomy, Batch
from layerscope.core import plugins
from layerscope.data.items import ItemKind, Items, content_key, item_kinds
from layerscope.errors import DataError, LayerscopeError
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Part, ReadSettings, Row, ViewSettings
from layerscope.profiling import profile
from tests.tiny import tiny_model

WIDTH, BLOCKS = 8, 2


@dataclass(frozen=True)
class Series(Items):
    """Sequences of floats."""

    rows: tuple[np.ndarray, ...]

    name = "series"
    kind = "series"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(sorted(row.tobytes() for row in self.rows))).hexdigest()

    @property
    def keys(self) -> np.ndarray:
        return np.array([content_key(row.tobytes()) for row in self.rows], dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.rows)


class SeriesReader(ItemReader):
    """A value of a series is a token."""

    most_kept = 10**6

    def survey(self, numbers: np.ndarray) -> Part:
        rows = self.read(numbers)
        lengths = np.array([len(row) for row in rows])
        return Part(numbers, lengths, np.zeros(len(numbers), dtype=bool), rows, int(lengths.sum()))

    def read(self, numbers: Any) -> Sequence[Row]:
        return [self.items.rows[int(i)] for i in numbers]  # type: ignore[attr-defined]

    def read_views(self, numbers: Any, rows: Sequence[Row], views: ViewSettings) -> Sequence[Row]:
        random = [
            np.random.default_rng([views.seed, int(self.items.keys[int(i)])]) for i in numbers
        ]
        noisy = [
            (np.asarray(row) + rng.normal(size=len(row)) / 10).astype(np.float32)
            for row, rng in zip(rows, random, strict=True)
            for _ in range(views.count)
        ]
        return list(noisy)

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        return {"tokens": "the values of a series"}


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)
        )

    def forward(self, values: Tensor) -> Tensor:
        states = self.enter(values[..., None])
        for block in self.blocks:
            states = block(states)
        return states


class SeriesModel(LoadedModel):
    """A model of series."""

    width = WIDTH
    max_length = None

    @property
    def kind(self) -> str:
        return "series"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def open_items(self, items: Items, settings: ReadSettings | None = None) -> ItemReader:
        return SeriesReader(self, items)

    def make_batch(self, rows: Sequence[Any]) -> Batch:
        lengths = [len(row) for row in rows]
        values = torch.zeros(len(rows), max(lengths))
        mask = torch.zeros(len(rows), max(lengths), dtype=torch.bool)
        for i, row in enumerate(rows):
            values[i, : len(row)], mask[i, : len(row)] = torch.from_numpy(np.asarray(row)), True
        return Batch(values, mask, lengths)

    def run(self, batch: Batch) -> Any:
        with torch.no_grad():
            return self.module(batch.input_ids)


def make_model() -> SeriesModel:
    module = Module().eval()
    anatomy = Anatomy("generic", list(module.blocks), None)
    model = SeriesModel(module, None, anatomy, "series-model")
    model.identity = {"name": "series-model", "n_blocks": BLOCKS, "width": WIDTH}
    return model


SERIES = Series(
    tuple(np.random.default_rng(i).normal(size=5 + i % 4).astype(np.float32) for i in range(12))
)


def test_a_profile_of_another_kind_of_items(tmp_path: Path) -> None:
    model = make_model()
    run = profile(model, SERIES, views=2, final_norm="raw", progress=False, out=tmp_path / "run")
    assert run.manifest["counts"]["tokens"] == {"shortest": 5, "median": 6.5, "longest": 8}
    assert run.manifest["conventions"]["tokens"] == "the values of a series"
    assert np.isfinite(run.curve("infonce")["value"]).all()
    pooled = []
    for row in SERIES.rows:
        state = model.module.enter(torch.from_numpy(row)[:, None])
        pooled.append(model.module.blocks[0](state).mean(0).detach().double().numpy())
    centered = np.stack(pooled) - np.mean(pooled, axis=0)
    spectrum = np.linalg.svd(centered, compute_uv=False) ** 2
    share = spectrum[spectrum > 0] / spectrum.sum()
    wanted = -(share * np.log(share)).sum()
    rows = profile(
        model,
        SERIES,
        metrics=["dataset_entropy"],
        pooled_rows="centered",
        progress=False,
        final_norm="raw",
    )
    assert float(rows.curve("dataset_entropy")["value"].iloc[1]) == pytest.approx(wanted, rel=1e-3)


def open_series(data: str, limit: int | None = None) -> Series:
    """The series that a name means: so many of them."""
    return Series(SERIES.rows[: limit or int(data)])


KIND = ItemKind("series", open_series, ("limit",), refused={"max_length": "series are read whole."})


def test_a_kind_that_another_package_adds_is_opened_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("series", f"{__name__}:KIND", item_kinds.group)
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == point.group else []
    )
    monkeypatch.setattr(item_kinds, "_things", dict(item_kinds.all()))
    monkeypatch.setattr(item_kinds, "_loaded", False)
    settings = {"metrics": ["prompt_entropy"], "progress": False}
    by_name = profile(make_model(), "9", **settings)
    assert by_name.table.equals(profile(make_model(), Series(SERIES.rows[:9]), **settings).table)
    assert profile(make_model(), "9", limit=7, **settings).manifest["counts"]["prompts"] == 7
    with pytest.raises(LayerscopeError, match="series are read whole"):
        profile(make_model(), "9", max_length=4, **settings)
    with pytest.raises(DataError, match="column does not go with series"):
        profile(make_model(), "9", column="x", **settings)


def test_the_order_of_the_items_does_not_matter() -> None:
    one = profile(make_model(), SERIES, metrics=["prompt_entropy"], progress=False)
    other = profile(
        make_model(), Series(SERIES.rows[::-1]), metrics=["prompt_entropy"], progress=False
    )
    np.testing.assert_array_equal(one.table["value"], other.table["value"])


def test_a_model_of_texts_does_not_read_them() -> None:
    with pytest.raises(DataError, match="reads texts, not series"):
        profile(tiny_model("gpt2"), SERIES, progress=False)


def test_kinds_without_views_say_so() -> None:
    class Plain(SeriesReader):
        read_views = ItemReader.read_views

    class Model(SeriesModel):
        def open_items(self, items: Items, settings: ReadSettings | None = None) -> ItemReader:
            return Plain(self, items)

    model = make_model()
    model.__class__ = Model
    with pytest.raises(
        DataError, match="views of series cannot be made: choose metrics that compare no views"
    ):
        profile(model, SERIES, metrics=["infonce"], progress=False)
