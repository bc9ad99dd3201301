"""Options as objects, mappings and flat keywords."""

from __future__ import annotations

import importlib

import pytest

import layerscope
from layerscope import command
from layerscope.core.options import DataOptions, EngineOptions, ModelOptions, take_options
from layerscope.errors import LayerscopeError, UnknownNameError
from tests.tiny import tiny_model


def test_an_object_a_mapping_and_keywords_mean_the_same() -> None:
    whole = ModelOptions(dtype="bfloat16", device="cpu")
    assert ModelOptions.of(whole) == ModelOptions.of({"dtype": "bfloat16"}, device="cpu") == whole
    assert ModelOptions.of(None).given() == {}
    assert ModelOptions.of({"bidirectional": False}).given() == {
        "bidirectional": False
    }  # False is not "not given"


def test_what_is_unknown_or_given_twice_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown model option 'dtyp'"):
        ModelOptions.of({"dtyp": "float16"})
    with pytest.raises(LayerscopeError, match="limit is given twice: 3 and 4"):
        DataOptions.of(DataOptions(limit=3), limit=4)
    assert DataOptions.of(DataOptions(limit=3), limit=3).limit == 3
    with pytest.raises(
        LayerscopeError, match="model options are a ModelOptions or a mapping, not str"
    ):
        ModelOptions.of("float16")  # type: ignore[arg-type]


def test_an_engine_may_be_given_by_name() -> None:
    assert EngineOptions.of("ray", workers=2) == EngineOptions(engine="ray", workers=2)
    with pytest.raises(LayerscopeError, match="batch_size must be at least 1, not 0"):
        EngineOptions.of(None, batch_size=0)


def test_flat_keywords_go_where_they_belong() -> None:
    keywords = {"limit": 5, "dtype": "float16", "temperature": 0.1}
    assert take_options(DataOptions, {"column": "body"}, keywords) == DataOptions("body", 5)
    assert take_options(ModelOptions, None, keywords) == ModelOptions(dtype="float16")
    assert keywords == {"temperature": 0.1}


@pytest.mark.parametrize("name", ["profile", "evaluate", "probe", "improve", "export"])
def test_every_command_takes_flat_model_options_and_names_an_unknown_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dtype=` works everywhere, and a misspelled option is told before anything is read."""
    seen: dict[str, object] = {}

    class Reached(Exception):
        """The model is about to be opened."""

    def open_model(
        model: object, tokenizer: object, offline: bool, options: dict[str, object], *_: object
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
        function(model, *given[name], dtype="bfloat16", offline=True, **more)
    assert seen["dtype"] == "bfloat16"
