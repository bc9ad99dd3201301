"""Conventions: which settings are refused before anything is loaded."""

from __future__ import annotations

import itertools
import math

import pytest

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.profiling import profile
from layerscope.profiling.config import make_config
from tests.tiny import tiny_model


@pytest.mark.parametrize("alpha", [0, 0.5, 1, 2, math.inf])
def test_orders_of_the_entropy(alpha: float, texts: list[str]) -> None:
    run = profile(
        tiny_model("llama"), texts[:5], alpha=alpha, views=2, max_length=24, permutations=2
    )
    value = run.curve("prompt_entropy")["value"]
    assert value.notna().all()
    assert run.manifest["conventions"]["metrics"]["alpha"] == alpha


def test_entropy_does_not_grow_with_its_order(texts: list[str]) -> None:
    model = tiny_model("llama")
    curves = [
        profile(model, texts[:5], alpha=alpha, metrics=["prompt_entropy"], max_length=24).curve(
            "prompt_entropy"
        )["value"]
        for alpha in (0, 0.5, 1, 2, math.inf)
    ]
    for smaller, larger in itertools.pairwise(curves):
        assert (smaller > larger).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": 1}, "views must be 2 to 16, not 1"),
        ({"views": 17}, "views must be 2 to 16, not 17"),
        ({"alpha": -1}, "alpha must be a number >= 0"),
        ({"alpha": math.nan}, "alpha must be a number >= 0"),
        ({"max_length": 0}, "max_length must be at least 1 token"),
        ({"permutations": 1}, "permutations and dime_samples must be at least 2"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"metrics": []}, "no metrics were chosen"),
        ({"final_norm": "aplied"}, "unknown final_norm 'aplied'. Did you mean 'applied'"),
        ({"metrics": ["promt_entropy"]}, "Did you mean 'prompt_entropy'"),
        ({"rows": "unti"}, "Did you mean 'unit'"),
        ({"augmenter": "buildin"}, "Did you mean 'builtin'"),
        ({"temprature": 1}, "unknown setting 'temprature'. Did you mean 'temperature'"),
        ({"max_len": 1}, "unknown setting 'max_len'. Did you mean 'max_length'"),
    ],
)
def test_what_is_refused(
    settings: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "layerscope.command.open_model", lambda *_: pytest.fail("loaded before checking")
    )
    monkeypatch.setattr(
        "layerscope.profiling.job.open_items", lambda *_, **__: pytest.fail("read before checking")
    )
    with pytest.raises(LayerscopeError, match=message):
        profile("no-model", "no-corpus", **settings)  # type: ignore[arg-type]


def test_views_do_not_matter_where_nothing_compares_them() -> None:
    assert make_config(metrics=["curvature"], views=1).n_views == 0
    with pytest.raises(LayerscopeError, match="views must be"):
        make_config(metrics=["curvature", "dime"], views=1)


def test_names_of_groups_of_metrics() -> None:
    assert len(make_config(metrics=["paper"]).metrics) == 7
    assert set(make_config(metrics=["paper"]).metrics) < set(make_config().metrics)
    with pytest.raises(UnknownNameError, match=r"Valid: .*curvature"):
        make_config(metrics=["x"])


def test_options_are_keywords() -> None:
    quiet = {"metrics": ["prompt_entropy"], "max_length": 8, "progress": False}
    texts = ["one text", "another text", "a third text"]
    flat = profile(tiny_model("gpt2"), texts, limit=2, batch_size=1, **quiet)
    assert flat.manifest["counts"]["prompts"] == 2
    with pytest.raises(LayerscopeError, match="batch_size must be at least 1"):
        profile(tiny_model("gpt2"), texts, batch_size=0, **quiet)
