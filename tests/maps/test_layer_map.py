"""What a run keeps of its map, and what a page takes of it."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.maps import FILE, LEAST, read_map
from layerscope.maps.encoding import for_page
from layerscope.maps.groups import clusters, group_names
from layerscope.maps.layer_map import make_map, pick
from layerscope.store import RunFolder
from tests.report.synthetic import synthetic_map, synthetic_run


def test_a_map_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = synthetic_map()
    made.write(RunFolder(tmp_path))
    found = read_map(tmp_path)
    assert found is not None
    assert (found.texts, found.columns, found.total, len(found)) == (
        made.texts,
        made.columns,
        180,
        60,
    )
    for one, other in zip(found.readings, made.readings, strict=True):
        assert (one.name, one.says, one.at, one.layout.layers) == (
            other.name,
            other.says,
            other.at,
            other.layout.layers,
        )
        assert (one.layout.near == other.layout.near).all()
        limit = np.abs(one.layout.points).max()
        np.testing.assert_allclose(
            one.layout.points, np.clip(other.layout.points, -limit, limit), atol=1e-3
        )
    assert read_map(tmp_path / "other") is None
    table = found.table
    assert list(table.columns) == ["reading", "layer", "trust", "kept", "changed"]
    assert len(table) == 14


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


def test_neighbors_are_asked_for_by_text_or_number() -> None:
    made = synthetic_map()
    assert made.texts is not None
    near = made.neighbors(3)
    assert near == made.neighbors(made.texts[3], layer=6, reading="today")
    assert len(set(near)) == 10
    assert 3 not in near
    with pytest.raises(UnknownNameError, match="today"):
        made.neighbors(3, reading="worse")
    with pytest.raises(InvalidValueError, match="0 to 6"):
        made.neighbors(3, layer=9)
    with pytest.raises(InvalidValueError, match="not on the map"):
        made.neighbors("elsewhere")


def test_a_run_keeps_its_map(tmp_path: Path) -> None:
    run = synthetic_run()
    with pytest.raises(LayerscopeError, match="--map"):
        run.map()
    run._map = synthetic_map()
    run.save(tmp_path / "run")
    again = type(run).load(tmp_path / "run")
    assert again.map().texts == run._map.texts
    assert FILE in again.manifest["tables"]


def decode(reading: dict, n: int) -> tuple[np.ndarray, np.ndarray]:
    """As the page does it."""
    raw = {
        name: np.frombuffer(zlib.decompress(base64.b64decode(reading[name])), dtype=np.uint8)
        for name in ("xy", "same", "other")
    }
    both = {
        name: raw[name][: len(raw[name]) // 2] + 256 * raw[name][len(raw[name]) // 2 :].astype(int)
        for name in ("xy", "other")
    }
    points = np.cumsum(both["xy"].reshape(len(reading["layers"]), n, 2), axis=0) % 4096
    k, near, others = reading["k"], [], iter(both["other"])
    for at, symbol in enumerate(raw["same"]):
        near.append(near[(at // k - n) * k + int(symbol)] if symbol < k else next(others))
    return points, np.array(near).reshape(len(reading["layers"]), n, k)


def test_a_page_gets_the_same_points_and_neighbors() -> None:
    made = synthetic_map()
    told = for_page(made)
    for reading, kept in zip(told["readings"], made.readings, strict=True):
        points, near = decode(reading, 60)
        assert (near == kept.layout.near).all()
        limit = 1.15 * np.median(
            [np.quantile(np.abs(layer), 0.995) for layer in kept.layout.points if layer.any()]
        )
        np.testing.assert_allclose(
            points / 4095 * 2 - 1, np.clip(kept.layout.points / limit, -1, 1), atol=1e-3
        )
    assert told["readings"][1]["trust"][0] is None
    assert {column["name"]: len(column.get("words", ())) for column in told["columns"]}[
        "topic"
    ] == 5


@pytest.mark.parametrize(("n", "limit"), [(1000, 1.5e6), (2000, 3e6)])
def test_even_unrelated_layers_fit_into_a_page(n: int, limit: float) -> None:
    """The worst case: no neighbor and no place is that of the layer before, and every text is
    long."""
    draw = np.random.default_rng(0)
    told = synthetic_map(n=LEAST, texts=["<" * 5000] * LEAST)
    near = draw.integers(0, n, (31, n, 10)).astype(np.uint16)
    points = draw.normal(size=(31, n, 2))
    flat = np.zeros(31)
    reading = replace(
        told.readings[0], layout=replace(told.readings[0].layout, layers=list(range(31)), points=points, near=near, trust=flat,
                                         kept=flat, changed=flat)
    )  # fmt: skip
    large = replace(
        told,
        readings=[reading, reading],
        texts=["漢字" * 2000] * n,
        columns={"label": ["a"] * n, "x": [1.5] * n},
    )
    size = len(json.dumps(for_page(large), ensure_ascii=False).encode())
    assert size < limit - 1.5e5  # the page itself takes the rest


def test_without_texts_nothing_of_them_is_left() -> None:
    many = {
        "said by": [f"name {i % 40}" for i in range(60)],
        "grade": [str(i % 3) for i in range(60)],
    }
    bare = synthetic_map(columns=many).without_texts()
    told = json.dumps(for_page(bare))
    assert bare.texts is None
    assert "about" not in told.replace('"about"', "")
    assert set(bare.columns["cluster"]) <= {f"cluster {k}" for k in range(1, 9)}
    assert set(bare.columns) == {"stars", "grade", "cluster", "length"}
    assert not any(
        word in told for word in ("cats", "name 3")
    )  # a column of words may say who wrote a text, or the text


def test_columns_are_numbers_or_few_words() -> None:
    n = 60
    columns = {
        "id": [f"row {i}" for i in range(n)], "one": ["same"] * n, "empty": [None] * n, "grade": [str(i % 3) for i in range(n)],
        "huge": [10**400 + i for i in range(n)], "price": [str(i / 7) for i in range(n)],
        "odd": [None if i % 2 else i / 3 for i in range(n)],
    }  # fmt: skip
    made = synthetic_map(n, columns=columns)
    found = made.columns
    assert {"id", "one", "empty", "huge"}.isdisjoint(found)
    assert found["grade"][:4] == ["0", "1", "2", "0"]
    assert found["price"][7] == 1.0
    assert found["length"] == [len(text) for text in made.texts or ()]


def test_a_users_own_columns_keep_their_names_and_values(tmp_path: Path) -> None:
    mine = {
        "cluster": ["north", "south"] * 30,
        "length": ["short", "long", "long"] * 20,
        "cluster on the map": ["a", "b"] * 30,
    }
    made = synthetic_map(columns=mine)
    assert {name: made.columns[name] for name in mine} == mine
    assert made.columns["cluster on the map on the map"][0].startswith("cluster ")
    assert made.columns["length on the map"] == [len(text) for text in made.texts or ()]
    made.write(RunFolder(tmp_path))
    found = read_map(tmp_path)
    assert found is not None
    bare = found.without_texts()
    assert set(bare.columns) == {"stars", "cluster on the map on the map", "length on the map"}
    assert set(bare.columns["cluster on the map on the map"]) <= {
        f"cluster {k}" for k in range(1, 9)
    }


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
