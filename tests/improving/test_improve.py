"""`improve` on tiny models: from texts to a folder, wrong input, and what is left alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

import layerscope
from layerscope.core.identity import Reading
from layerscope.core.readout import Readout
from layerscope.errors import DataError, LayerscopeError, UnknownNameError
from layerscope.evaluation.tasks import TASKS
from layerscope.vectors import text_key
from tests.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("stored")
WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass")


def some_texts(count: int = 40, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 7)) for _ in range(count)]


def codes(count: int = 40) -> list[str]:
    """Made-up sequences without spaces, as of proteins or reactions."""
    rng = np.random.default_rng(5)
    return ["".join(rng.choice(list("ACDEFGHIKLMN"), 30)) for _ in range(count)]


def write_labels(file, texts, word: str):
    rows = [f"{text},{word in text}" for text in texts]
    file.write_text("text,label\n" + "\n".join(rows) + "\n")
    return file


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
    # layers × (plain: three poolings, norms, centerings; one-word: norms, centerings)
    assert len(result.table) == 4 * (3 * 4 + 4)
    assert result.table["chosen"].sum() == 1
    vectors = result.encode(texts[:3])
    assert vectors.shape == (3, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(result.encode(texts[1]), vectors[1], atol=1e-5)
    assert result.folder is None
    assert len(result.neighbors) == 2 * 5 * 3
    assert not (result.neighbors["text"] == result.neighbors["neighbor"]).any()
    summary = json.loads(json.dumps(result.summary(), default=str))
    assert summary["choice"]["layer"] == result.choice.layer
    assert str(result.choice.readout) in str(result)
    assert ("nearest now" in result._repr_html_()) is not result.evidence.kept_default
    other = quick(llama, texts[::-1], judge=judge)  # the order of texts does not count
    assert other.table.equals(result.table)


def test_a_second_run_reads_everything_from_the_store(llama, judge):
    texts = some_texts()
    quick(llama, texts, judge=judge)

    class Counting:
        missing: dict[str, int] = {}  # noqa: RUF012 - one test

        def begin(self, label, total, done=0):
            if label.endswith(("|texts", "|readings")):
                self.missing[label] = total - done

        def advance(self, units):
            pass

    quick(llama, texts, judge=judge, progress=Counting())
    assert "tiny-llama reads 40 texts under 2 templates|readings" in Counting.missing
    assert not any(Counting.missing.values())


def test_the_model_judges_itself_and_labels_alone_or_beside_an_encoder(llama, judge, tmp_path):
    result = quick(llama, some_texts(), judge="none")
    assert "consisten" in result.evidence.judge
    assert result.table["score"].notna().any()
    file = write_labels(tmp_path / "labels.csv", some_texts(80, seed=1), "river")
    alone = quick(llama, some_texts(), judge="none", labels=file)
    assert alone.evidence.score_name == "score on your labels"
    both = quick(llama, some_texts(), judge=judge, labels=file)
    assert "labeled examples and agreement" in both.evidence.judge


@pytest.mark.usefixtures("here")  # the exports have a test that reloads in a fresh process
def test_exported_folder_is_the_result(llama, judge, tmp_path):
    texts = some_texts()
    out = tmp_path / "better"
    result = quick(llama, texts, judge=judge, out=out)
    loaded = layerscope.load_run(out)
    assert loaded.kind == "improve"
    assert np.allclose(loaded.encode(texts[:4]), result.encode(texts[:4]), atol=1e-4)
    assert loaded.table.shape == result.table.shape
    assert loaded.map().texts == list(result.sampled.texts)
    # whoever publishes the folder may keep the texts
    (out / "map.safetensors").unlink()
    again = layerscope.load_run(out)
    assert np.allclose(again.encode(texts[:1]), result.encode(texts[:1]), atol=1e-4)
    assert loaded.choice.as_dict() == result.choice.as_dict()
    assert Reading.of(loaded.manifest) == Reading(None, 96, "LlamaRMSNorm")
    again = quick(llama, texts, judge=judge, out=out)  # finished: read back, nothing is written
    assert again.manifest["seconds"] == loaded.manifest["seconds"]
    with pytest.raises(LayerscopeError, match="exists and is not empty"):
        quick(llama, texts, judge=judge, out=out, seed=1)


def content_of(folder):
    """Return what the files of a folder hold, unpacked."""
    contents = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if file.suffix == ".parquet":
            contents.append(pd.read_parquet(file).to_csv())
        else:
            contents.append(file.read_bytes().decode("latin-1"))
    return "\n".join(contents)


@pytest.mark.usefixtures("here")
def test_without_texts_no_file_of_the_folder_holds_one(llama, judge, tmp_path):
    texts = some_texts()
    out = tmp_path / "better"
    quick(llama, texts, judge=judge, out=tmp_path / "with")
    assert any(text in content_of(tmp_path / "with") for text in texts)
    quick(llama, texts, judge=judge, out=out, texts=False)
    run = layerscope.load_run(out)
    run.report(out / "report.html")
    content = content_of(out)
    assert not any(text in content for text in texts)
    assert not any(text_key(text).decode("latin-1") in content for text in texts)
    assert "No text of that sample is in this folder" in content
    assert run.map().readings[0].points.shape[1] == len(texts)
    again = quick(llama, texts, judge=judge, out=out, texts=False)
    assert again.manifest["seconds"] == run.manifest["seconds"]
    with pytest.raises(LayerscopeError, match="exists and is not empty"):
        quick(llama, texts, judge=judge, out=tmp_path / "with", texts=False)


def test_a_sentence_encoder_in_memory_or_untrained_is_refused(judge, monkeypatch):
    with pytest.raises(LayerscopeError, match=r"is a sentence encoder .* give its name or folder"):
        quick(judge, some_texts())
    monkeypatch.setitem(judge.identity, "untrained", True)
    with pytest.raises(LayerscopeError, match="before any training"):
        quick(judge, some_texts())


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["one text"], "1 different text"),
        (["the same"] * 50, "50 texts, of which 1 differ"),
        (some_texts(19), "at least 20"),
        (["", "  "], "no usable text"),
    ],
)
def test_too_few_texts_are_refused_before_anything_is_loaded(texts, words):
    with pytest.raises(DataError, match=words):
        layerscope.improve("a-model-that-does-not-exist", texts)


@pytest.mark.usefixtures("here")
def test_texts_without_words_need_an_encoder_or_labels(llama, judge, tmp_path):
    result = quick(llama, codes(), judge="none", out=tmp_path / "kept")
    assert (result.choice.layer, result.choice.readout) == (llama.n_blocks, Readout().name)
    assert result.choice.abstained
    assert "hardly made of words" in result.choice.reason
    assert result.evidence.judge == "none was asked"
    assert layerscope.load_run(tmp_path / "kept").choice.reason == result.choice.reason
    with pytest.raises(LayerscopeError, match=r"^train= and budget= need a judge, and most of"):
        quick(llama, codes(), judge="none", budget=0.5)
    assert quick(llama, codes(), judge="minilm-l6").choice.abstained  # it knows sentences alone
    assert quick(llama, codes(), judge=judge).evidence.judge == f"agreement with {judge.name}"
    file = write_labels(tmp_path / "labels.csv", codes(80), "AC")
    result = quick(llama, codes(), judge="none", labels=file)
    assert result.evidence.score_name == "score on your labels"


def test_texts_of_one_character_are_judged_by_an_encoder(llama, judge):
    result = quick(llama, [chr(code) for code in range(ord("a"), ord("z") + 1)], judge=judge)
    assert result.table["chosen"].sum() == 1
    assert np.isfinite(result.encode(["a", "zz"])).all()


def test_a_judge_that_cannot_be_used_is_refused(llama, judge, monkeypatch):
    damaged = tiny_model("bert", seed=5)
    damaged.anatomy.blocks[1].output.dense.weight.data[0, 0] = float("nan")
    words = r"^the judge tiny-bert cannot be used: .*NaN in the states at "
    with pytest.raises(LayerscopeError, match=words):
        quick(llama, some_texts(), judge=damaged)
    blind = tiny_model("bert", seed=6)
    blind.anatomy.blocks[-1].output.LayerNorm.weight.data.zero_()  # every state is the norm's bias
    with pytest.raises(LayerscopeError, match="it gives all texts the same vector"):
        quick(llama, some_texts(), judge=blind)
    with pytest.raises(LayerscopeError, match="is the model itself"):
        quick(llama, some_texts(), judge=tiny_model("llama"))
    with pytest.raises(UnknownNameError, match="Did you mean 'minilm-l6'"):
        quick(llama, some_texts(), judge="minilm-l7")
    monkeypatch.setattr("layerscope.improving.judging.unknown_share", lambda *given: 0.6)
    result = quick(llama, some_texts(), judge=judge)
    assert any("does not know 60%" in note for note in result.warnings)
    assert "consisten" in result.evidence.judge


def test_templates_are_screened_on_a_part_of_many_texts(llama, judge, monkeypatch):
    monkeypatch.setattr("layerscope.improving.flow.SCREEN", 40)
    result = quick(llama, some_texts(90), judge=judge, templates=["one-word", "topic", "feeling"])
    templates = set(result.table["readout"].str.split("/").str[0])
    assert "plain" in templates
    assert len(templates) == 2


def test_a_budget_keeps_to_early_layers(llama, judge):
    assert quick(llama, some_texts(), judge=judge, budget=0.4).choice.layer <= 1


def test_the_work_is_announced_first(llama, judge, capsys):
    quick(llama, some_texts(), judge=judge, progress=None)
    first = capsys.readouterr().err.splitlines()[0]
    assert re.match(r"\d+ layers × readouts of .* on 40 of 40 texts, judged by agreement", first)


@pytest.mark.slow  # of a tiny one, quickly: the tests above; the demo has this very model
@pytest.mark.real
def test_a_real_model_reads_better_by_one_word():
    """On fifty short questions the choice agrees with the judge better than the baseline does."""
    questions = [row["text"] for row in TASKS.get("TrecQuestions").splits()["train"]]
    questions = [text for text in questions if len(text) < 40]
    settings = {"sample": 50, "templates": ["one-word"], "max_length": 64, "center_on": "sample"}
    result = layerscope.improve("smollm2-135m", questions, progress=False, **settings)
    assert not result.evidence.kept_default
    assert result.choice.readout.startswith("one-word/last/")
    assert result.evidence.interval[0] > 0
    assert result.encode(questions[:3]).shape == (3, 576)


def test_the_map_shows_the_sample_as_it_was_read(llama, judge, tmp_path):
    file = tmp_path / "texts.csv"
    rows = [f"{text},{'river' if 'river' in text else 'other'}" for text in some_texts()]
    file.write_text("body,topic\n" + "\n".join(rows) + "\n")
    result = quick(llama, file, judge=judge, column="body")
    made = result.map()
    assert (made.model, made.about, len(made), made.total) == ("tiny-llama", "texts.csv", 40, 40)
    assert made.columns["topic"] == ["river" if "river" in text else "other" for text in made.texts]
    expected = [("baseline", llama.n_blocks)]
    if not result.evidence.kept_default:
        expected.append(("better", result.choice.layer))
    assert [(reading.name, reading.at) for reading in made.readings] == expected
    sides = (result.sampled.before, result.sampled.after)
    for reading, vectors in zip(made.readings, sides, strict=False):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = unit @ unit.T
        np.fill_diagonal(cosines, -2)
        nearest = reading.near[reading.layers.index(reading.at)][:, 0]
        # a mean fitted on more texts may differ a little
        assert np.mean(nearest == cosines.argmax(1)) > 0.9


def test_a_data_frame_is_read_by_its_column_and_the_result_searches(llama) -> None:
    texts = some_texts()
    result = quick(llama, pd.DataFrame({"id": range(40), "body": texts}), judge="none")
    assert result.manifest["texts"]["source"]["column"] == "body"
    assert len(repr(result)) < 200
    assert result.search(texts[3], top=2)["text"][0] == texts[3]
    two = pd.Series([texts[1], texts[3]], index=[7, 9])
    best = result.search(texts[3], two, top=1)
    assert best["text"][0] == texts[3]
    assert best["cosine"][0] == pytest.approx(1, abs=1e-4)
    frame = pd.DataFrame({"a": some_texts(3), "b": some_texts(3, 1)})
    with pytest.raises(DataError, match=r"2 columns of text. Name the one to read with column="):
        quick(llama, frame)
    with pytest.raises(DataError, match="no column 'c'"):
        quick(llama, frame, column="c")
    with pytest.raises(UnknownNameError, match="Did you mean 'max_length'"):
        layerscope.improve(llama, some_texts(), max_len=64)
