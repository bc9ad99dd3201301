"""Questions about a run: the neighbors of a sentence at every layer, and what is said where there
is no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerscope
from layerscope.core.readout import HEAD, Readout
from layerscope.report import asking
from layerscope.report.asking import Asker
from tests.report.synthetic import synthetic_improvement, synthetic_map
from tests.tiny import tiny_model

WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass")


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    store, rng = tmp_path_factory.mktemp("asking"), np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 7)) for _ in range(40)]
    model, judge = tiny_model("llama"), tiny_model("bert", seed=3)
    judge.identity["sentence_encoder"] = True
    given = {"max_length": 96, "progress": False, "templates": ["one-word"], "store": store}
    return layerscope.improve(model, texts, judge=judge, **given), model, store


def ready(monkeypatch: pytest.MonkeyPatch, improved: tuple[Any, Any, Path]) -> Asker:
    run, model, store = improved
    monkeypatch.setattr(asking, "load", lambda name, offline: model)
    asker = Asker(run, "tiny", store)
    asker.prepare()
    assert asker.why is None
    return asker


def test_a_text_of_the_map_finds_itself(
    monkeypatch: pytest.MonkeyPatch, improved: tuple[Any, Any, Path]
) -> None:
    asker, made = ready(monkeypatch, improved), improved[0].map()
    assert made.texts is not None
    answer = asker.answer(made.texts[7])["readings"]
    assert list(answer) == [reading.name for reading in made.readings]
    for reading in made.readings:
        told = answer[reading.name]
        for place, layer in enumerate(told["layers"]):
            if np.isnan(reading.layout.trust[reading.layout.layers.index(layer)]):
                continue  # there all texts are the same
            assert told["near"][place][0] == 7
            assert told["cosine"][place][0] == pytest.approx(1, abs=1e-3)
            expected = made.neighbors(7, layer, reading.name)[:9]
            assert len(set(expected) & set(told["near"][place][1:])) >= 8


def test_what_is_in_the_way_is_told(
    monkeypatch: pytest.MonkeyPatch, improved: tuple[Any, Any, Path], tmp_path: Path
) -> None:
    run, model, store = improved
    asker = Asker(run, None, store)
    assert "being loaded" in asker.answer("a text")["why"]
    asker.prepare()
    assert "--model" in asker.answer("a text")["why"]
    missing = Asker(run, tmp_path / "nowhere", store)
    missing.prepare()
    assert "not available here" in missing.answer("a text")["why"]
    monkeypatch.setattr(asking, "load", lambda name, offline: tiny_model("llama", seed=9))
    other = Asker(run, "tiny", store)
    other.prepare()
    assert "other weights" in other.answer("a text")["why"]
    monkeypatch.setattr(asking, "load", lambda name, offline: model)
    empty = Asker(run, "tiny", tmp_path / "store")
    empty.prepare()
    assert "no longer in the embedding store" in empty.answer("a text")["why"]
    bare = Asker(synthetic_improvement(), "tiny")
    bare.prepare()
    assert "kept no map" in bare.answer("a text")["why"]
    assert "sentence first" in ready(monkeypatch, improved).answer("  ")["why"]


def test_a_head_answers_at_its_layer(
    monkeypatch: pytest.MonkeyPatch, improved: tuple[Any, Any, Path]
) -> None:
    run, model, store = improved
    headed = synthetic_improvement(blocks=3, layer=2)
    headed._map, headed.manifest = run.map(), {**run.manifest}
    headed._map.readings[:] = [*run.map().readings[:1], *synthetic_map(40, 3).readings[1:]]
    object.__setattr__(headed.choice, "readout", Readout(centering=HEAD).name)
    headed._encode = lambda texts: np.array([[len(text), text.count("r"), 1.0] for text in texts])
    monkeypatch.setattr(asking, "load", lambda name, offline: model)
    asker = Asker(headed, "tiny", store)
    asker.prepare()
    assert asker.why is None
    assert asker.answer(run.map().texts[3])["readings"]["better"]["layers"] == [2]


def test_an_encoder_that_was_left_alone_is_asked_through_its_own_readout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, rng = tiny_model("bert", seed=3), np.random.default_rng(0)
    model.identity["sentence_encoder"] = True
    monkeypatch.setattr(
        "layerscope.improving.job.own_readout", lambda folder, width: Readout(pooling="cls")
    )
    texts = [" ".join(rng.choice(WORDS, 7)) for _ in range(40)]
    run = layerscope.improve(model, texts, progress=False, store=tmp_path)
    asker, made = ready(monkeypatch, (run, model, tmp_path)), run.map()
    assert [reading.name for reading in made.readings] == ["today"]
    last = made.readings[0].at
    near = asker.answer(made.texts[7])["readings"]["today"]["near"][
        made.readings[0].layout.layers.index(last)
    ]
    assert near[0] == 7
    assert len(set(made.neighbors(7, last)[:9]) & set(near[1:])) >= 8
