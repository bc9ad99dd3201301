"""What people give, and what they guess a result has."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import transformers as hf

import layerscope
from layerscope.data import load_corpus
from layerscope.errors import DataError, LayerscopeError, ModelError, UnknownNameError
from layerscope.models import wrap
from tests.improving.test_improve import quick, some_texts
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def result(llama):
    return quick(llama, pd.DataFrame({"id": range(40), "body": some_texts()}), judge="none")


def test_a_data_frame_is_read_by_its_column_of_texts(llama, result) -> None:
    assert result.manifest["texts"]["source"]["column"] == "body"
    frame = pd.DataFrame({"a": some_texts(3), "b": some_texts(3, 1)})
    with pytest.raises(DataError, match=r"2 columns of text. Name the one to read with column="):
        quick(llama, frame)
    with pytest.raises(DataError, match="no column 'c'"):
        quick(llama, frame, column="c")


def test_what_is_missing_in_a_table_is_left_out() -> None:
    frame = pd.DataFrame({"text": ["one", None, float("nan"), "two"]})
    corpus = load_corpus(frame)
    assert corpus.texts == ("one", "two")
    assert corpus.dropped == {"null": 2}


def test_a_result_is_short_in_a_console(result) -> None:
    assert len(repr(result)) < 200
    assert repr(result).startswith("<Improved ")


def test_a_result_searches(result) -> None:
    texts = some_texts()
    assert result.search(texts[3], top=2)["text"][0] == texts[3]
    assert result.search(texts[3], [texts[1], texts[3]], top=1)["cosine"][0] == pytest.approx(
        1, abs=1e-4
    )
    assert (
        result.search(texts[3], pd.Series([texts[1], texts[3]], index=[7, 9]), top=1)["text"][0]
        == texts[3]
    )


def test_a_profile_has_what_is_guessed(llama) -> None:
    run = layerscope.profile(
        llama, some_texts(), metrics=["prompt_entropy", "sink_ratio"], max_length=32, progress=False
    )
    assert run.layers == [0, 1, 2, 3]
    assert run["prompt_entropy"].index.tolist() == run.layers
    assert run.best_layer == layerscope.select(run).layer


def test_one_run_makes_a_report(result, tmp_path: Path) -> None:
    page = layerscope.write_report(result, tmp_path / "one.html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert result.report(tmp_path / "two.html").is_file()


def test_a_parameter_that_is_nearly_right(llama) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'max_length'"):
        layerscope.improve(llama, some_texts(), max_len=64)
    with pytest.raises(UnknownNameError, match="Did you mean 'readout'"):
        layerscope.export(llama, 1, readot="plain")


def test_a_run_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ModelError, match="load_run"):
        layerscope.load(tmp_path)


def untrained():
    config = hf.LlamaConfig(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return wrap(hf.LlamaModel(config), tiny_tokenizer(), "fresh")


def test_a_model_that_was_never_trained_is_not_called_trained() -> None:
    model = untrained()
    assert model.identity["untrained"]
    model.identity["sentence_encoder"] = True  # as a folder with modules.json would say
    with pytest.raises(LayerscopeError, match="before any training"):
        quick(model, some_texts(), judge="none")
    choice = layerscope.select(layerscope.profile(model, some_texts(), progress=False))
    assert choice.abstained
    assert "before any training" in choice.reason
