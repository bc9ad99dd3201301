"""Readouts: what names mean, what is refused, the grid of a model, and what must be stored."""

from __future__ import annotations

import pandas as pd
import pytest

from layerscope.core.readout import (
    READOUT_COLUMNS,
    Readout,
    all_readouts,
    kinds_of,
    parse_readouts,
    readout_names,
    readouts_of,
)
from layerscope.errors import LayerscopeError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain", "plain/mean/applied/keep/none"),
        (" echo ", "echo/mean/applied/keep/none"),
        ("one-word", "one-word/last/applied/keep/none"),
        ("one-word/last/raw", "one-word/last/raw/keep/none"),
        ("plain/cls", "plain/cls/applied/keep/none"),
        ("plain/wmean/raw/drop", "plain/wmean/raw/drop/none"),
        ("echo/max/raw/drop/corpus", "echo/max/raw/drop/corpus"),
        ("Say: {text}", "Say: {text}/mean/applied/keep/none"),
        ("yes/no: {text}", "yes/no: {text}/mean/applied/keep/none"),
        ("{text} and/or?/last/raw", "{text} and/or?/last/raw/keep/none"),
        (
            "a/max {text} b/mean c/wmean/raw/drop/corpus",
            "a/max {text} b/mean c/wmean/raw/drop/corpus",
        ),
        ("{text}\n{text}/mean", "{text}\n{text}/mean/applied/keep/none"),
        ("{text}/mean/last/raw", "{text}/mean/last/raw/keep/none"),
    ],
)
def test_names(text: str, name: str) -> None:
    readout = Readout.parse(text)
    assert readout.name == name
    assert Readout.parse(readout.name) == readout


def test_a_pattern_of_ones_own_is_the_whole_template() -> None:
    readout = Readout.parse("a/max {text} b/mean c/wmean/raw")
    assert (readout.template, readout.pooling, readout.final_norm) == (
        "a/max {text} b/mean c",
        "wmean",
        "raw",
    )


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("eco", ["unknown template 'eco'", "'echo'", "one-word", "{text}"]),
        ("plain/maen", ["unknown pooling 'maen'", "'mean'", "cls, last, max, mean, wmean"]),
        ("plain/mean/norm", ["'norm'", "applied, raw"]),
        ("plain/mean/raw/no", ["unknown sink 'no'", "drop, keep"]),
        ("plain/mean/raw/drop/mean", ["unknown centering 'mean'", "corpus, none"]),
        ("plain/mean/raw/drop/none/x", ["6 parts", "template/pooling/norm/sink/centering"]),
        ("one-word/mean", ["'one-word' supports pooling last", "'mean'"]),
        ("echo/cls", ["'echo' supports pooling mean, wmean, last, max"]),
        ("plain/last/raw/drop", ["'last' reads a single token"]),
        ("plain/cls/raw/drop", ["'cls' reads a single token"]),
        ("plain//raw", ["unknown pooling ''"]),
    ],
)
def test_impossible_ones_are_refused_with_what_is_valid(text: str, phrases: list[str]) -> None:
    with pytest.raises(LayerscopeError) as caught:
        Readout.parse(text)
    for phrase in phrases:
        assert phrase in str(caught.value)


def test_cls_is_refused_where_the_model_has_none() -> None:
    assert parse_readouts("plain/cls/raw", has_cls=True, has_norm=False)[0].pooling == "cls"
    with pytest.raises(LayerscopeError, match=r"no CLS token.*mean, wmean, last, max\."):
        parse_readouts("plain/cls", has_cls=False, has_norm=True)


@pytest.mark.parametrize(
    ("has_cls", "has_norm", "count"),
    [(False, True, 60), (True, True, 64), (False, False, 30), (True, False, 32)],
)
def test_the_grid_of_a_model(has_cls: bool, has_norm: bool, count: int) -> None:
    # per template and norm: (mean, wmean, max) x (keep, drop) x (none, corpus), and (last, cls) x
    # (none, corpus)
    grid = parse_readouts("all", has_cls, has_norm)
    assert len(grid) == len(set(grid)) == count
    assert {r.template for r in grid} == {"plain", "echo", "one-word"}
    assert any(r.pooling == "cls" for r in grid) == has_cls
    assert {r.final_norm for r in grid} == ({"applied", "raw"} if has_norm else {"applied"})
    assert Readout() in grid  # what everything else is compared with
    assert {r.pooling for r in grid if r.template == "one-word"} == {"last"}
    assert all(Readout.parse(r.name) == r for r in grid)


def test_lists_templates_and_repeats() -> None:
    echo = parse_readouts("echo/all", has_cls=True, has_norm=True)
    assert echo == all_readouts(["echo"], True, True)
    assert len(echo) == 28
    own = parse_readouts(["Q/A, {text}/all"], False, True)
    assert {r.template for r in own} == {"Q/A, {text}"}
    assert parse_readouts(None, False, True) == [Readout()]
    assert parse_readouts("one-word, default,plain,one-word", False, True) == [
        Readout("one-word", "last"),
        Readout(),
    ]
    with pytest.raises(UnknownNameError, match="template 'nothing'"):
        parse_readouts("nothing/all", False, True)
    for empty in ("", " , ", []):
        with pytest.raises(LayerscopeError, match="no readouts"):
            parse_readouts(empty, False, True)


def test_a_mean_without_the_sink_is_not_stored() -> None:
    assert Readout.parse("plain/mean/raw").kinds == ("mean/raw",)
    assert Readout.parse("plain/mean/raw/drop").kinds == ("mean/raw", "sink/raw")
    assert Readout.parse("plain/wmean/applied/drop").kinds == ("wmean/applied", "sink/applied")
    assert Readout.parse("plain/max/raw/drop").kinds == ("max-drop/raw",)
    assert (
        Readout.parse("plain/mean/raw/drop/corpus").kinds
        == Readout.parse("plain/mean/raw/drop").kinds
    )
    assert set(kinds_of(all_readouts(["plain"], True))) == {
        f"{what}/{norm}"
        for what in ("mean", "wmean", "last", "cls", "max", "max-drop", "sink")
        for norm in ("applied", "raw")
    }
    assert kinds_of(
        [Readout.parse("plain"), Readout.parse("plain/mean/applied/drop"), Readout.parse("plain")]
    ) == [
        "mean/applied",
        "sink/applied",
    ]


def test_rows_of_tables() -> None:
    readouts = [Readout(), Readout("{text} and/or that", "last", "raw", "keep", "corpus")]
    table = pd.DataFrame([readout.columns for readout in readouts])
    assert list(table.columns) == READOUT_COLUMNS
    assert readouts_of(table) == readouts
    assert readout_names(table) == [readout.name for readout in readouts]
    assert [Readout.from_row(row) for row in table.to_dict("records")] == readouts
