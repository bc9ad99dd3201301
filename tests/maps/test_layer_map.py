"""What a run keeps of its map, and what a page takes of it."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerscope.errors import LayerscopeError
from layerscope.maps import FILE, LEAST, MOST, clusters, group_names, make_map, pick, read_map
from layerscope.maps.layout import TRUSTED
from layerscope.store import RunFolder
from tests.report.synthetic import synthetic_map, synthetic_run


def test_a_map_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = synthetic_map()
    made.write(RunFolder(tmp_path))
    found = read_map(tmp_path)
    assert found is not None
    names = ("model", "about", "kind", "blocks", "total", "texts", "columns", "groups")
    assert [getattr(found, name) for name in names] == [getattr(made, name) for name in names]
    assert (found.total, len(found)) == (180, 60)
    for one, other in zip(found.readings, made.readings, strict=True):
        assert (one.name, one.says, one.at) == (other.name, other.says, other.at)
        assert one.layers == other.layers == list(range(7))
        for name in ("points", "near", "trust"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert read_map(tmp_path / "other") is None
    assert list(found.table.columns) == ["reading", "layer", "trust"]
    assert len(found.table) == 14


def test_a_damaged_map_is_one_error(tmp_path: Path) -> None:
    synthetic_map().write(RunFolder(tmp_path))
    raw = (tmp_path / FILE).read_bytes()
    for damaged in (b"nothing", raw[:-100], raw[:500] + bytes([raw[500] ^ 1]) + raw[501:]):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(LayerscopeError, match="damaged"):
            read_map(tmp_path)


def test_a_strangers_map_says_nothing_to_a_terminal(tmp_path: Path) -> None:
    made = synthetic_map()
    odd = "\x1b[31m<b>\u202e"
    replace(made, model=odd, texts=[odd] * len(made), columns={odd: [odd] * len(made)}).write(
        RunFolder(tmp_path)
    )
    found = read_map(tmp_path)
    assert found is not None
    assert "\x1b" not in "".join(
        [found.model, *(found.texts or ()), *found.columns, *found.columns.popitem()[1]]
    )


def test_a_run_keeps_its_map(tmp_path: Path) -> None:
    run = synthetic_run()
    with pytest.raises(LayerscopeError, match="--map"):
        run.map()
    run._map = synthetic_map()
    run.save(tmp_path / "run")
    again = type(run).load(tmp_path / "run")
    assert again.map().texts == run._map.texts
    assert FILE in again.manifest["tables"]


def decode(packed: str, kind: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=kind)


def test_a_page_gets_the_points_and_neighbors_that_can_be_trusted() -> None:
    made = synthetic_map()
    packed = made.for_page()
    for held, reading in zip(packed["readings"], made.readings, strict=True):
        shown = [reading.layers.index(layer) for layer in held["layers"]]
        assert (reading.trust[shown] >= TRUSTED).all()
        assert sorted([*held["layers"], *held["hidden"]]) == reading.layers
        near = decode(held["near"], "<u2").reshape(len(shown), 60, held["k"])
        assert (near == reading.near[shown]).all()
        points = decode(held["points"], "<i2").reshape(len(shown), 60, 2) / 32767
        limit = np.abs(reading.points[shown]).max()
        np.testing.assert_allclose(points, reading.points[shown] / limit, atol=1e-4)
    assert 0 in packed["readings"][1]["hidden"]  # where all texts have the same vector
    columns = {column["name"]: column for column in packed["columns"]}
    assert len(columns["topic"]["words"]) == 5


def test_a_reading_without_a_picture_to_trust_is_left_out() -> None:
    made = synthetic_map()
    first, second = made.readings
    poor = replace(first, trust=np.full_like(first.trust, 0.8))
    assert [r["name"] for r in replace(made, readings=[poor, second]).for_page()["readings"]] == [
        "better"
    ]
    assert replace(made, readings=[poor]).for_page()["readings"] == []


def test_a_page_of_a_thousand_texts_stays_small() -> None:
    """The worst case: no neighbor is that of the layer before, and every text is long."""
    draw = np.random.default_rng(0)
    made = synthetic_map(n=LEAST)
    reading = replace(
        made.readings[0],
        points=draw.normal(size=(8, MOST, 2)),
        near=draw.integers(0, MOST, (8, MOST, 10)),
        trust=np.ones(8),
        layers=list(range(8)),
    )
    large = replace(
        made,
        readings=[reading, reading],
        texts=["漢字" * 2000] * MOST,
        groups=["cluster 1"] * MOST,
        columns={"label": ["a"] * MOST, "x": [1.5] * MOST},
    )
    assert len(json.dumps(large.for_page(), ensure_ascii=False).encode()) < 1.3e6


def test_without_texts_nothing_of_them_is_left() -> None:
    many = {
        "said by": [f"name {i % 40}" for i in range(60)],
        "grade": [str(i % 3) for i in range(60)],
    }
    bare = synthetic_map(columns=many).without_texts()
    page = json.dumps(bare.for_page())
    assert bare.texts is None
    assert set(bare.columns) == {"stars", "grade"}
    assert set(bare.groups) <= {f"cluster {k}" for k in range(1, 9)}
    assert not any(word in page for word in ("cats", "name 3", "text 1"))


def test_columns_are_numbers_or_few_words() -> None:
    n = 60
    columns = {
        "id": [f"row {i}" for i in range(n)],
        "one": ["same"] * n,
        "empty": [None] * n,
        "grade": [str(i % 3) for i in range(n)],
        "huge": [10**400 + i for i in range(n)],
        "price": [str(i / 7) for i in range(n)],
        "odd": [None if i % 2 else i / 3 for i in range(n)],
    }
    found = synthetic_map(n, columns=columns).columns
    assert {"id", "one", "empty", "huge"}.isdisjoint(found)
    assert found["grade"][:4] == ["0", "1", "2", "0"]
    assert found["price"][7] == 1.0


def test_too_few_texts_make_no_map() -> None:
    assert make_map("m", "a", 2, [], texts=["a"] * 3, count=3, total=3) is None


def test_a_sample_does_not_depend_on_the_order() -> None:
    keys = [bytes([i * 37 % 251]) for i in range(200)]
    picked = {keys[i] for i in pick(keys, 50)}
    assert len(picked) == 50
    assert picked == {keys[::-1][i] for i in pick(keys[::-1], 50)}
    assert pick(keys, 500) == list(range(200))


def test_groups_find_what_lies_together_and_name_it() -> None:
    draw = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [30, 20, 10])
    rows = draw.normal(size=(3, 16))[truth] * 3 + 0.1 * draw.normal(size=(60, 16))
    found = clusters(rows, 3)
    assert (found == truth).all()  # the largest comes first
    assert (clusters(rows, 3) == found).all()
    names = group_names(found, [f"the {('river', 'stock', 'goal')[t]} rises" for t in truth])
    assert names[0].startswith("cluster 1: river")
    assert group_names(found, None)[0] == "cluster 1"
