"""Options are keywords, sorted into groups."""

from __future__ import annotations

import importlib

import pytest

import layerscope
from layerscope import command
from layerscope.core.options import DataOptions, EngineOptions, ModelOptions
from layerscope.errors import LayerscopeError
from tests.tiny import tiny_model


def test_keywords_go_where_they_belong() -> None:
    keywords = {"limit": 5, "dtype": "float16", "temperature": 0.1, "bidirectional": False}
    assert DataOptions.take(keywords) == DataOptions(limit=5)
    assert ModelOptions.take(keywords).given() == {"dtype": "float16", "bidirectional": False}
    assert keywords == {"temperature": 0.1}
    assert EngineOptions.take({"engine": "ray", "workers": 2}) == EngineOptions("ray", workers=2)


def test_a_batch_has_an_item() -> None:
    with pytest.raises(LayerscopeError, match="batch_size must be at least 1, not 0"):
        EngineOptions.take({"batch_size": 0})


@pytest.mark.parametrize("name", ["profile", "evaluate", "probe", "improve", "export"])
def test_every_command_takes_flat_model_options_and_names_an_unknown_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dtype=` works everywhere, and a misspelled option is told before anything is read."""
    seen: dict[str, object] = {}

    class Reached(Exception):
        """The model is about to be opened."""

    def open_model(
        model: object, tokenizer: object, options: dict[str, object], *_: object
    ) -> None:
        seen.update(options)
        raise Reached

    function = getattr(layerscope, name)
    module = importlib.import_module(function.__module__)
    monkeypatch.setattr(module if name == "export" else command, "open_model", open_model)
    if name == "evaluate":  # its tasks would be fetched
        monkeypatch.setattr(module, "resolve_tasks", lambda *_, **__: [])
    texts = [f"text number {n}" for n in range(30)]
    given: dict[str, list[object]] = {
        "profile": [texts], "evaluate": ["LeeSimilarity"], "probe": [["a", "b"]],
        "improve": [texts], "export": [1],
    }  # fmt: skip
    more = {"labels": [0, 1]} if name == "probe" else {}
    model = tiny_model("llama")
    with pytest.raises(LayerscopeError, match=r"'dtyp'.*dtype"):
        function(model, *given[name], dtyp="bfloat16", **more)
    with pytest.raises(Reached):
        function(model, *given[name], dtype="bfloat16", **more)
    assert seen["dtype"] == "bfloat16"
