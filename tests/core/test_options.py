"""Options as objects, mappings and flat keywords."""

from __future__ import annotations

import pytest

from layerscope.core.options import DataOptions, EngineOptions, ModelOptions, take_options, take_renamed
from layerscope.errors import LayerscopeError, UnknownNameError


def test_an_object_a_mapping_and_keywords_mean_the_same() -> None:
    whole = ModelOptions(dtype="bfloat16", device="cpu")
    assert ModelOptions.of(whole) == ModelOptions.of({"dtype": "bfloat16"}, device="cpu") == whole
    assert ModelOptions.of(None).given() == {}
    assert ModelOptions.of({"bidirectional": False}).given() == {"bidirectional": False}  # False is not "not given"


def test_what_is_unknown_or_given_twice_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown model option 'dtyp'"):
        ModelOptions.of({"dtyp": "float16"})
    with pytest.raises(LayerscopeError, match="limit is given twice: 3 and 4"):
        DataOptions.of(DataOptions(limit=3), limit=4)
    assert DataOptions.of(DataOptions(limit=3), limit=3).limit == 3
    with pytest.raises(LayerscopeError, match="model options are a ModelOptions or a mapping, not str"):
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


def test_an_old_name_still_works_and_says_so() -> None:
    keywords = {"texts": ["one"], "images": None, "views": 2}
    with pytest.warns(DeprecationWarning, match="texts= is now called data="):
        assert take_renamed(keywords, "data", ["texts", "images"], "lee", "lee") == ["one"]
    assert keywords == {"views": 2}
    with pytest.raises(LayerscopeError, match="either data or texts"):
        take_renamed({"texts": ["one"]}, "data", ["texts"], ["two"], "lee")
