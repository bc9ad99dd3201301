"""Engines by name, their settings, and what is said about wrong ones."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from layerscope import evaluate, profile
from layerscope.cli.app import app, load_commands
from layerscope.core.options import EngineOptions
from layerscope.engines import LocalEngine, RayEngine, Work, engine_in_use, open_engine
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError
from tests.engines.works import mapped


class Doubling(Work[int, int]):
    """Doubles numbers, and notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def open(self) -> None:
        self.seen.append("open")

    def run(self, item: int, advance: Any) -> int:
        self.seen.append(str(item))
        advance(item)
        return item + item

    def close(self) -> None:
        self.seen.append("close")


def test_the_local_engine_opens_once_and_closes() -> None:
    work, units = Doubling(), []
    assert list(LocalEngine().run(work, [3, 4], units.append)) == [(0, 6), (1, 8)]
    assert work.seen == ["open", "3", "4", "close"]
    assert units == [3, 4]


def test_work_is_closed_when_its_results_are_not_wanted_any_more() -> None:
    work = Doubling()
    results = LocalEngine().run(work, [3, 4])
    next(results)
    results.close()
    assert work.seen == ["open", "3", "close"]


def test_map_keeps_the_order() -> None:
    assert mapped(LocalEngine(), str, [3, 1, 2]) == ["3", "1", "2"]
    assert mapped(LocalEngine(), str, []) == []


def test_an_unknown_engine() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown engine 'rays'. Did you mean 'ray'\? Valid: local, ray"
    ):
        open_engine(EngineOptions("rays"))


@pytest.mark.parametrize("given", [{"address": "auto"}, {"workers": 2}, {"gpus_per_worker": 1}])
def test_settings_of_a_cluster_without_one(given: dict[str, Any]) -> None:
    with pytest.raises(LayerscopeError, match="is for work on a cluster: add engine='ray'"):
        open_engine(EngineOptions("local", **given))
    with pytest.raises(LayerscopeError, match="An engine object has its own"):
        open_engine(EngineOptions(LocalEngine(), **given))


def test_an_engine_that_was_given_stays_open() -> None:
    class Watched(LocalEngine):
        closed = False

        def close(self) -> None:
            self.closed = True

    mine = Watched()
    with engine_in_use(EngineOptions(mine)) as used:
        assert used is mine
    assert not mine.closed


def test_no_cluster_answers() -> None:
    pytest.importorskip("ray")
    with pytest.raises(LayerscopeError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"):
        mapped(RayEngine("127.0.0.1:1"), len, ["a"])


def test_without_the_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "ray":
            raise ImportError(name)
        return real(name, *rest)

    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"\[ray\]'"):
        profile("no-such-model", texts, engine="ray")  # said before anything else is looked at
    with pytest.raises(MissingExtraError, match=r"\[ray\]'"):
        evaluate("no-such-model", "small", out="nowhere", engine="ray")


@pytest.mark.parametrize("command", [["profile", "smollm2-135m"], ["evaluate", "smollm2-135m"]])
def test_commands_take_an_engine(command: list[str]) -> None:
    load_commands()
    wrong = CliRunner().invoke(app, [*command, "--engine", "rays"])
    assert isinstance(wrong.exception, UnknownNameError)
    alone = CliRunner().invoke(app, [*command, "--engine", "local:gpus_per_worker=2"])
    assert "gpus_per_worker= is for work on a cluster: add engine='ray'" in str(alone.exception)
