"""`export` from a model to a published folder: evidence, cards, refusals, and folders that are
whole or not there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from layerscope import Evaluation, evaluate, profile, select
from layerscope.core.readout import Readout
from layerscope.errors import InvalidValueError, RunFolderError
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import Exported, ExportError, export, verifying
from layerscope.exporting.card import UNKNOWN, size_words
from layerscope.exporting.describing import license_in, license_of
from layerscope.exporting.draft import why_not
from layerscope.report.contents import gather
from layerscope.report.headline import kind_of
from tests.evaluation.support import mteb_score, write_tasks
from tests.exporting.support import joining_model
from tests.tiny import tiny_model

st = pytest.importorskip("sentence_transformers")
pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.filterwarnings("ignore")]

READOUTS = [
    "plain/mean/applied",
    "plain/mean/raw",
    "one-word/last/raw/keep/corpus",
    "echo/mean/raw",
]


class Whole(NamedTuple):
    run: Evaluation
    data: Path
    store: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An evaluation of a tiny model."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_tasks(folder / "data")
    run = evaluate(
        joining_model(), ["Pairs"], data_dir=data, out=folder / "run", store=folder / "store", readouts=READOUTS,
        scoring_workers=0, max_length=100, progress=False,
    )  # fmt: skip
    return Whole(run, data, folder / "store")


def score_of(run: Evaluation, layer: int, readout: str) -> float:
    rows = run.scores[run.scores["layer"] == layer]
    for column, value in zip(
        ("template", "pooling", "final_norm", "sink", "centering"), readout.split("/"), strict=True
    ):
        rows = rows[rows[column] == value]
    return float(rows["score"].iloc[0])


@pytest.mark.parametrize("readout", ["plain/mean/raw/keep/none", "one-word/last/raw/keep/corpus"])
def test_mteb_scores_the_folder_as_the_evaluation_did(
    readout: str, whole: Whole, tmp_path: Path
) -> None:
    done = export(
        joining_model(),
        2,
        readout=readout,
        choice=whole.run.path,
        store=whole.store,
        out=tmp_path / "x",
    )
    model = st.SentenceTransformer(str(done.path), device="cpu")
    task = resolve_tasks("Pairs", data_dir=whole.data)[0].load().task
    assert mteb_score(task, model) == pytest.approx(score_of(whole.run, 2, readout), abs=1e-4)
    assert done.facts["evaluated_max_length"] == 100
    assert done.facts["max_length"] == (
        128 if readout.startswith("one-word") else 100
    )  # its frame would break: 128 is all there is
    assert (done.facts["centered_on"] is not None) == readout.endswith("corpus")


def test_the_choice_and_its_scores_are_in_the_card(whole: Whole, tmp_path: Path) -> None:
    done = export(joining_model(), choice=whole.run.path, store=whole.store, out=tmp_path / "x")
    score = 100 * score_of(whole.run, done.layer, done.readout)
    assert done.facts["evidence"]["scores"][0]["score"] == pytest.approx(score)
    card = (done.path / "README.md").read_text()
    assert f"**{score:.2f}**" in card
    assert "The choice was made on these very tasks" in card
    assert done.facts["evidence"]["choice"]["reason"] in card


def test_evidence_is_the_runs(whole: Whole, tmp_path: Path) -> None:
    done = export(
        joining_model(), 1, readout="plain/mean/raw", choice=whole.run.path, out=tmp_path / "x"
    )
    row = done.facts["evidence"]["scores"][0]
    assert row["score"] == pytest.approx(100 * score_of(whole.run, 1, "plain/mean/raw/keep/none"))
    assert row["last"] == pytest.approx(100 * score_of(whole.run, 3, "plain/mean/raw/keep/none"))
    assert row["default_last"] == pytest.approx(
        100 * score_of(whole.run, 3, "plain/mean/applied/keep/none")
    )
    assert row["ci_low"] <= row["gain"] <= row["ci_high"]
    assert row["gain"] == pytest.approx(row["score"] - row["last"])
    assert row["gain_readout"] == pytest.approx(row["last"] - row["default_last"])
    assert done.facts["evidence"]["choice"] is None
    card = (done.path / "README.md").read_text()
    assert f"{row['gain']:+.2f} ({row['ci_low']:+.2f} to {row['ci_high']:+.2f})" in card
    assert f"| {row['gain_readout']:+.2f} |" in card
    assert "choice was made" not in card


def test_a_run_of_another_model_or_readout_is_refused(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is about another model than tiny-llama: weights_sha256"):
        export(tiny_model("llama", seed=5), choice=whole.run.path, out=tmp_path / "x")
    with pytest.raises(
        ExportError, match=r"did not measure plain/max.* at layer 2\. It measured: echo/mean"
    ):
        export(joining_model(), 2, readout="plain/max", choice=whole.run.path, out=tmp_path / "x")
    empty = tmp_path / "empty-store"
    with pytest.raises(ExportError, match="no longer in the store"):
        export(
            joining_model(),
            2,
            readout=READOUTS[2],
            choice=whole.run.path,
            store=empty,
            out=tmp_path / "x",
        )
    assert not (tmp_path / "x").exists()


def test_what_is_written(tmp_path: Path) -> None:
    done = export(
        tiny_model("gpt_neox"),
        -2,
        readout="plain/mean/raw",
        out=tmp_path / "x",
        max_length=64,
        normalize=True,
    )
    names = {file.name for file in done.path.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "modules.json",
        "README.md",
        "layerscope.json",
    } <= names
    assert not list(tmp_path.glob(".*"))
    facts = json.loads((done.path / "layerscope.json").read_text())
    assert facts == Exported.load(done.path).facts == done.facts
    assert (done.layer, done.readout) == (2, "plain/mean/raw/keep/none")
    assert done.cosine_distance < 1e-9
    assert facts["blocks"] == {"kept": 2, "filler": True, "of": 3}
    assert facts["state"] == "hidden_states[2]"
    assert facts["modules"] == ["Transformer", "Pooling", "Normalize"]
    assert facts["license"] == UNKNOWN
    card = (done.path / "README.md").read_text()
    assert "license: unknown\n" in card
    assert "base_model: tiny-gpt_neox\n" in card
    for phrase in (
        "layer 2 of 3",
        "plain/mean/raw/keep/none",
        "2 of 3 blocks, plus one pass-through block",
        "hidden_states[2]",
        "was not measured here",
    ):
        assert phrase in card
    modes = {file.stat().st_mode for file in done.path.iterdir() if file.is_file()}
    assert len(modes) == 1


def test_without_a_folder_it_goes_where_the_command_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = export(tiny_model("llama"), 1, max_length=64)
    assert done.path.parent == Path("exports")
    assert (tmp_path / done.path / "modules.json").exists()
    with pytest.raises(ExportError, match="not empty"):
        export(tiny_model("llama"), 2, max_length=64)


def test_a_folder_is_replaced_only_when_asked_and_only_if_it_is_an_export(tmp_path: Path) -> None:
    model, out = tiny_model("llama"), tmp_path / "x"
    export(model, 1, out=out, max_length=64)
    with pytest.raises(ExportError, match="not empty"):
        export(model, 2, out=out, max_length=64)
    assert export(model, 2, out=out, max_length=64, overwrite=True).layer == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match="holds no export"):
        export(model, 1, out=other, overwrite=True)
    assert (other / "letter.txt").read_text() == "dear"
    with pytest.raises(ExportError, match="is a file"):
        export(model, 1, out=other / "letter.txt")


def test_what_no_export_recorded_writing_is_kept(tmp_path: Path) -> None:
    model, out = tiny_model("llama"), tmp_path / "x"
    export(model, 1, out=out, max_length=64)
    (out / "notes.txt").write_text("my notes")
    (out / "more").mkdir()
    (out / "more" / "config.json").write_text("{}")
    (out / "README.md").write_text("my words")
    link = tmp_path / "link"
    link.symlink_to(out)
    assert export(model, 2, out=link, max_length=64, overwrite=True).layer == 2
    assert Exported.load(out).layer == 2
    assert link.is_symlink()
    assert (out / "notes.txt").read_text() == "my notes"
    assert (out / "more" / "config.json").read_text() == "{}"
    assert (out / "README.md.old").read_text() == "my words"
    assert "layer 2" in (out / "README.md").read_text()
    assert sorted(tmp_path.iterdir()) == [link, out]
    mine = tmp_path / "mine"  # a user's folder with a file of that name
    mine.mkdir()
    (mine / "layerscope.json").write_text('{"kind": "export"}')
    (mine / "modules.json").write_text("[]")
    with pytest.raises(ExportError, match="holds no export"):
        export(model, 1, out=mine, overwrite=True)
    assert len(list(mine.iterdir())) == 2


def test_a_folder_that_fails_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x"
    export(tiny_model("llama"), 1, out=out, max_length=64)
    reload = verifying.reload

    def wrong(jobs: Any, scratch: Path) -> Any:
        held, facts = reload(jobs, scratch)
        held[0]["vectors"] += 0.1 * np.random.default_rng(0).standard_normal(
            held[0]["vectors"].shape
        )
        return held, facts

    monkeypatch.setattr(verifying, "reload", wrong)
    with pytest.raises(
        ExportError, match=r"does not give back layer 2 .* Nothing was written to .*x\."
    ):
        export(tiny_model("llama"), 2, out=out, max_length=64, overwrite=True)
    assert Exported.load(out).layer == 1
    assert not list(tmp_path.glob(".*"))


def test_texts_to_center_on_are_not_ignored(tmp_path: Path) -> None:
    for given in ("no-such-corpus", ["one text here", "and another one"]):
        with pytest.raises(
            ExportError, match=r"does not center.* readout='plain/mean/raw/keep/corpus'"
        ):
            export(
                tiny_model("llama"),
                1,
                readout="plain/mean/raw/keep/none",
                out=tmp_path / "x",
                center_on=given,
            )
    assert not (tmp_path / "x").exists()


def test_centering_needs_texts(tmp_path: Path) -> None:
    readout = "plain/mean/raw/keep/corpus"
    with pytest.raises(
        ExportError, match=r"say over which texts.* readout='plain/mean/raw/keep/none'"
    ):
        export(tiny_model("llama"), 1, readout=readout, out=tmp_path / "x", max_length=64)
    texts = ["one text here", "and another one", "a third"]
    done = export(
        tiny_model("llama"), 1, readout=readout, out=tmp_path / "x", center_on=texts, max_length=64
    )
    vectors = st.SentenceTransformer(str(done.path), device="cpu").encode(texts)
    assert np.abs(vectors.mean(0)).max() < 1e-4
    assert done.facts["centered_on"] == "the 3 texts of texts"


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    model, out = tiny_model("llama"), tmp_path / "x"
    with pytest.raises(
        InvalidValueError, match="layer 4 does not exist: tiny-llama has layers 0 to 3"
    ):
        export(model, 4, out=out)
    with pytest.raises(ExportError, match=r"say which layer= \(0 to 3\)"):
        export(model, out=out)
    with pytest.raises(ExportError, match="has no CLS token"):
        export(model, 1, readout="plain/cls", out=out)
    assert not out.exists()


def test_an_exported_folder_is_a_model_for_layerscope_too(
    tmp_path: Path, model_folder: Path
) -> None:
    done = export(model_folder, 2, readout=Readout(), out=tmp_path / "x", max_length=64)
    again = export(done.path, 1, out=tmp_path / "y", max_length=64)
    assert again.facts["base"]["n_blocks"] == 2


def test_a_decoder_made_bidirectional_stays_so(tmp_path: Path, model_folder: Path) -> None:
    both = export(
        model_folder,
        2,
        readout="plain/mean/raw",
        out=tmp_path / "x",
        max_length=64,
        bidirectional=True,
    )
    assert both.cosine_distance < 1e-9
    causal = export(model_folder, 2, readout="plain/mean/raw", out=tmp_path / "y", max_length=64)
    one, other = (
        st.SentenceTransformer(str(done.path), device="cpu").encode(["the same text"])
        for done in (both, causal)
    )
    assert not np.allclose(one, other, atol=1e-3)


def test_licences(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "with-card"
    shutil.copytree(model_folder, folder)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc-by-4.0\n---\n# A model")
    model = tiny_model("llama")
    assert license_of(model, folder) == "cc-by-4.0"
    assert license_of(model, model_folder) == UNKNOWN
    assert license_of(model, None) == UNKNOWN
    model.identity["license"] = "Apache-2.0"
    assert license_of(model, folder) == "Apache-2.0"
    for text in ("no front matter", "---\nlicense: [mit\n---\n"):
        (folder / "README.md").write_text(text)
        assert license_in(folder / "README.md") == UNKNOWN


def test_export_and_select_give_one_answer(whole: Whole, tmp_path: Path) -> None:
    """Export asks the chooser; where its readout cannot be exported, it says so and asks about the
    others."""
    choice = select(whole.run)
    done = export(joining_model(), choice=whole.run.path, store=whole.store, out=tmp_path / "x")
    if why_not(Readout.parse(choice.readout or "")) is None:
        assert (done.layer, done.readout) == (choice.layer, choice.readout)
    else:
        assert "cannot be exported" in done.facts["evidence"]["notes"][0]
    only = "plain/mean/raw/keep/none"
    again = export(joining_model(), readout=only, choice=whole.run, out=tmp_path / "y")
    assert (again.layer, again.readout) == (
        select(whole.run, readouts=only).layer,
        select(whole.run, readouts=only).readout,
    )


def test_a_choice_in_a_file_is_exported(whole: Whole, tmp_path: Path) -> None:
    choice = select(whole.run, readouts="plain/mean/raw/keep/none")
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    done = export(joining_model(), choice=file, out=tmp_path / "x", max_length=64)
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    assert done.facts["evidence"]["choice"]["rule"] == "measured"
    assert done.facts["evidence"]["scores"][0]["score"] == pytest.approx(
        100 * score_of(whole.run, done.layer, done.readout)
    )
    assert done.facts["evaluated_max_length"] == 64
    card = (done.path / "README.md").read_text()
    assert choice.reason in card
    assert choice.headline() in card
    assert (
        export(joining_model(), choice=choice, out=tmp_path / "y", max_length=64).layer
        == choice.layer
    )
    file.write_text('{"a": 1}')
    with pytest.raises(RunFolderError, match="holds no choice of a layer"):
        export(joining_model(), choice=file, out=tmp_path / "z")


def test_a_profile_is_exported_as_select_chooses(tmp_path: Path, texts: list[str]) -> None:
    model = tiny_model("llama")
    run = profile(model, texts, out=tmp_path / "run", progress=False)
    choice = select(run)
    done = export(model, choice=tmp_path / "run", out=tmp_path / "x")
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    assert "No scores were given" in (done.path / "README.md").read_text()


def test_a_name_writes_nothing_else_into_the_card(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.name = "red \x1b[31m\n---\n# Another title\u202e"
    card = (export(model, layer=2, out=tmp_path / "x").path / "README.md").read_text(
        encoding="utf-8"
    )
    assert "\x1b" not in card
    assert "\u202e" not in card
    assert "\n# Another title" not in card
    assert card.count("\n---\n") == 1  # the end of its head


def test_evidence_of_another_adapter_is_refused(tmp_path: Path, texts: list[str]) -> None:
    """The weights of the base model are the same: only the adapter tells the two apart."""
    model = tiny_model("llama")
    model.identity["adapters"] = [{"name": "one", "sha256": "1" * 64}]
    profile(model, texts, out=tmp_path / "run", progress=False)
    model.identity["adapters"] = [{"name": "other", "sha256": "2" * 64}]
    with pytest.raises(ExportError, match=r"another model than tiny-llama: adapters \("):
        export(model, choice=tmp_path / "run", out=tmp_path / "x")
    model.identity["adapters"] = []
    with pytest.raises(ExportError, match="adapters"):
        export(model, choice=tmp_path / "run", out=tmp_path / "x")
    model.identity["adapters"] = [{"name": "elsewhere", "sha256": "1" * 64}]
    model.identity["settings_sha256"] = "3" * 64
    with pytest.raises(ExportError, match="settings_sha256"):
        export(model, choice=tmp_path / "run", out=tmp_path / "x")


def test_a_choice_with_labels_is_exported_with_its_mean(tmp_path: Path) -> None:
    """A centered readout subtracts the mean over the labeled texts, as the choice did."""
    words = ["good", "bad", "fine", "poor", "nice", "awful", "great", "sad"]
    rows = [{"text": f"{words[i % 8]} film number {i}", "label": i % 2} for i in range(40)]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("\n".join(json.dumps(row) for row in rows))
    model = tiny_model("llama")
    few = ["plain/mean/raw/keep/none", "plain/mean/raw/keep/corpus"]
    told = select(
        model, labels=labels, readouts=few, store=tmp_path / "store", max_length=100, progress=False
    )
    # a choice as it is where the labels favor a centered readout, which a model of random weights
    # need not give
    choice = replace(told, layer=2, readout="plain/mean/raw/keep/corpus", center_on=str(labels))
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    done = export(model, choice=file, out=tmp_path / "x")
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    assert done.facts["centered_on"] == "the 40 texts of labels.jsonl"
    vectors = st.SentenceTransformer(str(done.path), device="cpu").encode(
        [row["text"] for row in rows], normalize_embeddings=False
    )
    if not done.facts["unit_length"]:
        assert np.abs(vectors.mean(0)).max() < 1e-4
    with pytest.raises(ExportError, match="about another model"):
        export(tiny_model("llama", seed=5), choice=file, out=tmp_path / "y")
    labels.unlink()
    with pytest.raises(ExportError, match=r"labels\.jsonl, which is not there"):
        export(model, choice=file, out=tmp_path / "y")


def test_select_export_and_report_agree(whole: Whole, tmp_path: Path) -> None:
    usable = ["plain/mean/applied", "plain/mean/raw", "one-word/last/raw/keep/corpus"]
    run = evaluate(
        joining_model(), ["Pairs"], data_dir=whole.data, out=tmp_path / "run", store=whole.store, readouts=usable,
        scoring_workers=0, max_length=100, progress=False,
    )  # fmt: skip
    choice = select(run)
    done = export(joining_model(), choice=run.path, store=whole.store, out=tmp_path / "x")
    (mark,) = [mark for mark in gather([run]).marks if kind_of(mark) == "chosen"]
    assert (
        (done.layer, done.readout) == (choice.layer, choice.readout) == (mark.layer, mark.readout)
    )


@pytest.mark.parametrize(
    ("own", "filler", "phrase"),
    [
        (80, True, "80.0 M parameters instead of 100.0 M"),
        (
            100,
            True,
            "no fewer than the whole model (a block of zeros takes the place of the next one)",
        ),
        (100, False, "no fewer than the whole model (every block is needed)"),
    ],
)
def test_a_card_says_why_a_model_is_no_smaller(own: int, filler: bool, phrase: str) -> None:
    facts = {"parameters": own * 10**6, "base": {"parameters": 10**8}, "blocks": {"filler": filler}}
    assert phrase in size_words(facts)
