"""Registries: built-in files and what other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from layerscope.core import plugins
from layerscope.core.plugins import PluginError, Registry
from layerscope.errors import UnknownNameError


def _numbers() -> Registry[int]:
    return Registry("number", "tests.numbers", name=str, check=lambda thing: isinstance(thing, int))


def _offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [p for p in points if p.group == group]
    )


def test_an_unknown_name_suggests_the_nearest() -> None:
    numbers = _numbers()
    numbers.add(17)
    with pytest.raises(UnknownNameError, match="Did you mean '17'"):
        numbers.get("177")


def test_what_an_entry_point_offers_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(
        monkeypatch,
        EntryPoint("big", "sys:maxsize", "tests.numbers"),
        EntryPoint("other", "sys:maxsize", "tests.letters"),
    )
    import sys

    assert _numbers().all() == {str(sys.maxsize): sys.maxsize}


@pytest.mark.parametrize(
    ("value", "says"),
    [("sys:version", "is not a number"), ("no_such_module_at_all:x", "No module named")],
)
def test_a_broken_entry_point_is_told_when_it_is_asked_for_and_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    _offer(
        monkeypatch,
        EntryPoint("bad", value, "tests.numbers"),
        EntryPoint("good", "sys:maxsize", "tests.numbers"),
    )
    numbers = _numbers()
    assert len(numbers.all()) == 1
    with pytest.raises(PluginError, match=says):
        numbers.get("bad")
    assert says in numbers._broken["bad"]


def test_two_things_of_one_name_are_refused() -> None:
    letters: Registry[object] = Registry(
        "letter", "tests.letters", name=lambda thing: "a", check=lambda thing: True
    )
    letters.add("first")
    with pytest.raises(PluginError, match="two letters are called 'a'"):
        letters.add(1)
