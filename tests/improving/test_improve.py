"""`improve` on tiny models: the whole way, bad input, and what is left alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

import layerscope
from layerscope.core.conventions import Reading
from layerscope.core.readout import Readout
from layerscope.errors import DataError, LayerscopeError, UnknownNameError
from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.progress import progress_bar
from layerscope.vectors import text_key
from tests.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("stored")
WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass")


def some_texts(count: int = 40, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 7)) for _ in range(count)]


@pytest.fixture(scope="module")
def judge():
    encoder = tiny_model("bert", seed=3)
    encoder.identity["sentence_encoder"] = True
    return encoder


def quick(model, data, **options):
    settings = {"max_length": 96, "progress": False, "templates": ["one-word"], **options}
    return layerscope.improve(model, data, **settings)


def test_every_candidate_is_judged_and_the_result_encodes(llama, judge):
    texts = some_texts()
    result = quick(llama, texts, judge=judge)
    assert len(result.table) == 4 * (
        1 + 3 * 4 - 1 + 4
    )  # layers × (plain: three poolings, norms, centerings; one-word: norms, …)
    assert result.table["chosen"].sum() == 1
    vectors = result.encode(texts[:3])
    assert vectors.shape == (3, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(result.encode(texts[1]), vectors[1], atol=1e-5)
    assert result.folder is None
    assert set(result.neighbors["which"]) == {"before", "after"}
    assert len(result.neighbors) == 5 * 3 * 2
    assert not (result.neighbors["text"] == result.neighbors["neighbor"]).any()
    plain = json.loads(json.dumps(result.summary(), default=str))
    assert plain["choice"]["layer"] == result.choice.layer
    assert str(result.choice.readout) in str(result)
    kept = result.manifest["evidence"]["kept_default"]  # then the neighbors now are those of today
    assert ("nearest now" in result._repr_html_()) is not kept


def test_the_same_texts_in_another_order_give_the_same_choice(llama, judge):
    texts = some_texts()
    first, second = quick(llama, texts, judge=judge), quick(llama, texts[::-1], judge=judge)
    assert (first.choice.layer, first.choice.readout) == (
        second.choice.layer,
        second.choice.readout,
    )
    assert first.table.equals(second.table)


def test_a_second_run_reads_everything_from_the_store(llama, judge, monkeypatch):
    texts = some_texts()
    quick(llama, texts, judge=judge)

    class Counting:
        todo: dict[str, int] = {}  # noqa: RUF012 - one test

        def begin(self, label, total, done=0):
            if label.endswith(("|texts", "|readings")):
                self.todo[label] = total - done

        def advance(self, units):
            pass

    quick(llama, texts, judge=judge, progress=Counting())
    assert "tiny-llama reads 40 texts under 2 templates|readings" in Counting.todo
    assert not any(Counting.todo.values())


def test_without_a_judge_the_model_judges_itself(llama):
    result = quick(llama, some_texts(), judge="none")
    assert "consisten" in result.manifest["evidence"]["judge"]
    assert result.table["score"].notna().any()


def test_labels_judge_alone_or_beside_an_encoder(llama, judge, tmp_path):
    file = tmp_path / "labels.csv"
    rows = [f"{text},{'river' in text}" for text in some_texts(80, seed=1)]
    file.write_text("text,label\n" + "\n".join(rows) + "\n")
    alone = quick(llama, some_texts(), judge="none", labels=file)
    assert alone.manifest["evidence"]["score_name"] == "score on your labels"
    both = quick(llama, some_texts(), judge=judge, labels=file)
    assert "labeled examples and agreement" in both.manifest["evidence"]["judge"]


@pytest.mark.usefixtures(
    "here"
)  # `test_heads` and the exports have one that is reloaded in a fresh process
def test_exported_folder_is_the_result(llama, judge, tmp_path):
    texts = some_texts()
    result = quick(llama, texts, judge=judge, out=tmp_path / "better")
    loaded = layerscope.load_run(tmp_path / "better")
    assert loaded.kind == "improve"
    assert np.allclose(loaded.encode(texts[:4]), result.encode(texts[:4]), atol=1e-4)
    assert loaded.table.shape == result.table.shape
    assert loaded.map().texts == list(result.sampled.texts)
    (
        tmp_path / "better" / "map.safetensors"
    ).unlink()  # whoever publishes the folder may keep the texts
    assert np.allclose(
        layerscope.load_run(tmp_path / "better").encode(texts[:1]),
        result.encode(texts[:1]),
        atol=1e-4,
    )
    assert loaded.choice.as_dict() == result.choice.as_dict()
    reading = Reading.of(loaded.manifest)  # as every other kind of run writes it
    assert (reading.max_length, reading.norm_module, reading.final_norm) == (
        96,
        "LlamaRMSNorm",
        None,
    )
    again = quick(
        llama, texts, judge=judge, out=tmp_path / "better"
    )  # finished: read back, nothing is written
    assert again.manifest["seconds"] == loaded.manifest["seconds"]
    with pytest.raises(LayerscopeError, match="exists and is not empty"):
        quick(llama, texts, judge=judge, out=tmp_path / "better", seed=1)


def told_by(folder):
    """Everything that the files of a folder say, unpacked."""
    said = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if file.suffix == ".parquet":
            said.append(pd.read_parquet(file).to_csv())
        else:
            said.append(file.read_bytes().decode("latin-1"))
    return "\n".join(said)


@pytest.mark.usefixtures("here")
def test_without_texts_no_file_of_the_folder_holds_one(llama, judge, tmp_path):
    texts = some_texts()
    quick(llama, texts, judge=judge, out=tmp_path / "with")
    assert any(text in told_by(tmp_path / "with") for text in texts)
    quick(llama, texts, judge=judge, out=tmp_path / "better", texts=False)
    run = layerscope.load_run(tmp_path / "better")
    run.report(tmp_path / "better" / "report.html")
    said = told_by(tmp_path / "better")
    assert not any(text in said or text_key(text).decode("latin-1") in said for text in texts)
    assert "No text of that sample is in this folder" in said
    assert run.map().readings[0].points.shape[1] == len(texts)
    assert (
        quick(llama, texts, judge=judge, out=tmp_path / "better", texts=False).manifest["seconds"]
        == run.manifest["seconds"]
    )
    with pytest.raises(
        LayerscopeError, match="exists and is not empty"
    ):  # what was written with texts is not one without
        quick(llama, texts, judge=judge, out=tmp_path / "with", texts=False)


def test_a_sentence_encoder_is_left_alone(judge):
    result = quick(judge, some_texts())
    assert result.choice.layer == judge.n_blocks
    assert result.choice.readout == Readout().name
    assert result.choice.abstained
    assert "a pipeline for sentence embeddings" in result.choice.reason
    assert result.encode("river stone").shape == (32,)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["one text"], "1 different text"),
        (["the same"] * 50, "50 texts, of which 1 differ"),
        (some_texts(19), "at least 20"),
        (["", "  "], "no usable text"),
    ],
)
def test_too_few_texts_are_refused_before_anything_is_loaded(texts, told):
    with pytest.raises(DataError, match=told):
        layerscope.improve("a-model-that-does-not-exist", texts)


def codes(count: int = 40) -> list[str]:
    """Made-up sequences without spaces, as of proteins or reactions."""
    rng = np.random.default_rng(5)
    return ["".join(rng.choice(list("ACDEFGHIKLMN"), 30)) for _ in range(count)]


@pytest.mark.usefixtures("here")
def test_a_model_does_not_judge_itself_on_texts_without_words(llama, tmp_path):
    result = quick(llama, codes(), judge="none", out=tmp_path / "kept")
    assert (result.choice.layer, result.choice.readout) == (llama.n_blocks, Readout().name)
    assert result.choice.abstained
    assert "hardly made of words" in result.choice.reason
    assert "labeled examples" in result.choice.reason
    assert result.manifest["evidence"]["judge"] == "none was asked"
    again = layerscope.load_run(tmp_path / "kept")
    assert again.choice.reason == result.choice.reason
    with pytest.raises(
        LayerscopeError,
        match=r"^train= and budget= need a judge, and most of these texts are hardly",
    ):
        quick(llama, codes(), judge="none", budget=0.5)


def test_an_encoder_or_labels_judge_texts_without_words(llama, judge, tmp_path):
    assert (
        quick(llama, codes(), judge=judge).manifest["evidence"]["judge"]
        == f"agreement with {judge.name}"
    )
    file = tmp_path / "labels.csv"
    file.write_text(
        "text,label\n" + "\n".join(f"{text},{'AC' in text}" for text in codes(80)) + "\n"
    )
    assert (
        quick(llama, codes(), judge="none", labels=file).manifest["evidence"]["score_name"]
        == "score on your labels"
    )


def test_texts_of_one_character_are_judged_by_an_encoder(llama, judge):
    result = quick(llama, [chr(code) for code in range(ord("a"), ord("z") + 1)], judge=judge)
    assert result.table["chosen"].sum() == 1
    assert np.isfinite(result.encode(["a", "zz"])).all()


def test_a_judge_that_cannot_tell_texts_apart_is_refused(llama):
    damaged = tiny_model("bert", seed=5)
    damaged.anatomy.blocks[1].output.dense.weight.data[0, 0] = float("nan")
    with pytest.raises(
        LayerscopeError,
        match=r"^the judge tiny-bert cannot be asked: NaN in the states at .*judge='none'\.$",
    ):
        quick(llama, some_texts(), judge=damaged)
    blind = tiny_model("bert", seed=6)
    last = blind.anatomy.blocks[-1].output.LayerNorm
    last.weight.data.zero_()  # every state is the norm's bias
    with pytest.raises(
        LayerscopeError, match="cannot be asked: it gives all texts the same vector"
    ):
        quick(llama, some_texts(), judge=blind)


def test_a_judge_that_is_the_model_itself_is_refused(llama):
    with pytest.raises(LayerscopeError, match="is the model itself"):
        quick(llama, some_texts(), judge=tiny_model("llama"))


def test_an_unknown_judge_is_named(llama):
    with pytest.raises(UnknownNameError, match="Did you mean 'minilm-l6'"):
        quick(llama, some_texts(), judge="minilm-l7")


def test_a_judge_that_does_not_know_the_words_is_not_asked(llama, judge, monkeypatch):
    monkeypatch.setattr("layerscope.improving.judging.unknown_share", lambda *given: 0.6)
    monkeypatch.setattr("layerscope.improving.judging.knows_language", lambda *given: False)
    result = quick(llama, some_texts(), judge=judge)
    assert any("does not know 60%" in note for note in result.warnings)
    assert "consisten" in result.manifest["evidence"]["judge"]


def test_templates_are_screened_on_a_part_of_many_texts(llama, judge, monkeypatch):
    monkeypatch.setattr("layerscope.improving.scoring.SCREEN", 40)
    result = quick(llama, some_texts(90), judge=judge, templates=["one-word", "topic", "feeling"])
    kept = set(result.table["readout"].str.split("/").str[0])
    assert "plain" in kept
    assert len(kept) == 2
    assert set(result.manifest["evidence"]["screened"]) == {"plain", "one-word", "topic", "feeling"}


def test_a_budget_keeps_to_early_layers(llama, judge):
    assert quick(llama, some_texts(), judge=judge, budget=0.4).choice.layer <= 1


def test_off_a_terminal_every_stage_is_a_line(capsys):
    with progress_bar(always=True) as bar:
        bar.begin("reading|texts", 10, 4)
        bar.advance(6)
        bar.begin("judging|readouts", 2, 2)
    told = [line.split("\r")[-1] for line in capsys.readouterr().err.split("\n")]
    assert [line.partition("|")[0] for line in told] == ["reading: 100%", "judging: 100%", ""]


def test_what_is_read_is_said_before_anything_long(llama, judge, capsys):
    quick(llama, some_texts(), judge=judge, progress=None)
    first = capsys.readouterr().err.splitlines()[0]
    assert re.match(r"\d+ layers × readouts of .* on 40 of 40 texts, judged by agreement", first)


@pytest.mark.slow  # of a tiny one, quickly: the tests above; the demo has this very model
@pytest.mark.real
def test_a_real_model_reads_better_by_one_word():
    """Fifty of TREC's short questions: what is chosen agrees with the judge better than today,
    beyond its interval."""
    questions = [row["text"] for row in TASKS.get("TrecQuestions").splits()["train"]]
    questions = [
        text for text in questions if len(text) < 40
    ]  # half the tokens, and the difference is clearer
    settings = {"sample": 50, "templates": ["one-word"], "max_length": 64, "center_on": "sample"}
    result = layerscope.improve("smollm2-135m", questions, progress=False, **settings)
    assert not result.manifest["evidence"]["kept_default"]
    assert result.choice.readout.startswith("one-word/last/")
    assert result.manifest["evidence"]["interval"][0] > 0
    vectors = result.encode(questions[:3])
    assert vectors.shape == (3, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_the_map_shows_the_sample_as_it_was_read(llama, judge, tmp_path):
    file = tmp_path / "texts.csv"
    rows = [f"{text},{'river' if 'river' in text else 'other'}" for text in some_texts()]
    file.write_text("body,topic\n" + "\n".join(rows) + "\n")
    result = quick(llama, file, judge=judge, column="body")
    made = result.map()
    assert (made.model, made.about, len(made), made.total) == ("tiny-llama", "texts.csv", 40, 40)
    assert made.columns["topic"] == ["river" if "river" in text else "other" for text in made.texts]
    kept = result.manifest["evidence"]["kept_default"]
    assert [(r.name, r.at) for r in made.readings][:1] == [("today", llama.n_blocks)]
    assert [(r.name, r.at) for r in made.readings][1:] == (
        [] if kept else [("better", result.choice.layer)]
    )
    for reading, vectors in zip(
        made.readings, (result.sampled.before, result.sampled.after), strict=False
    ):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = unit @ unit.T
        np.fill_diagonal(cosines, -2)
        found = reading.near[reading.layers.index(reading.at)]
        assert (
            np.mean(found[:, 0] == cosines.argmax(1)) > 0.9
        )  # a mean fitted on more texts may differ a little
