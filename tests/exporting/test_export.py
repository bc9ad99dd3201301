"""`export` from a model to a published folder: evidence, cards, refusals, checksums, and folders that
are whole or not there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from layerscope import Evaluation, evaluate, profile, select
from layerscope.core.readout import Readout, all_readouts
from layerscope.errors import InvalidValueError, LayerscopeError, RunFolderError
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import Exported, ExportError, export, verifying
from layerscope.exporting.card import UNKNOWN, license_of
from layerscope.exporting.draft import check_expressible, nearest, why_not
from layerscope.models.source import resolve
from layerscope.store import checked
from layerscope.store.checked import check_files
from tests.cli.support import run_main
from tests.evaluation.support import mteb_score, write_tasks
from tests.exporting.support import brief_export, joining_model
from tests.tiny import tiny_model

st = pytest.importorskip("sentence_transformers")
pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.filterwarnings("ignore")]

CENTERED = "one-word/last/raw/keep/corpus"
READOUTS = ["plain/mean/applied", "plain/mean/raw", CENTERED, "echo/mean/raw"]


class Whole(NamedTuple):
    run: Evaluation
    data: Path
    store: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An evaluation of a tiny model."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_tasks(folder / "data")
    run = run_evaluation(data, folder / "run", folder / "store", READOUTS)
    return Whole(run, data, folder / "store")


def run_evaluation(data: Path, out: Path, store: Path, readouts: list[str]) -> Evaluation:
    options: dict[str, Any] = {"scoring_workers": 0, "max_length": 100, "progress": False}
    model = joining_model()
    return evaluate(
        model, ["Pairs"], data_dir=data, out=out, store=store, readouts=readouts, **options
    )


def score_of(run: Evaluation, layer: int, readout: str) -> float:
    rows = run.scores[run.scores["layer"] == layer]
    columns = ("template", "pooling", "final_norm", "sink", "centering")
    for column, value in zip(columns, readout.split("/"), strict=True):
        rows = rows[rows[column] == value]
    return 100 * float(rows["score"].iloc[0])


def encode(folder: Path, texts: list[str]) -> np.ndarray:
    return st.SentenceTransformer(str(folder), device="cpu").encode(texts)


@pytest.mark.parametrize("readout", ["plain/mean/raw/keep/none", CENTERED])
def test_mteb_scores_the_folder_as_the_evaluation_did(
    readout: str, whole: Whole, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"choice": whole.run.path, "store": whole.store}
    done = export(joining_model(), 2, readout=readout, out=tmp_path / "x", **options)
    model = st.SentenceTransformer(str(done.path), device="cpu")
    task = resolve_tasks("Pairs", data_dir=whole.data)[0].load().task
    score = score_of(whole.run, 2, readout)
    assert 100 * mteb_score(task, model) == pytest.approx(score, abs=1e-2)
    assert done.facts["evaluated_max_length"] == 100
    # A template would be cut: the folder reads 128 tokens, which is all there is.
    assert done.facts["max_length"] == (128 if readout == CENTERED else 100)
    assert (done.facts["centered_on"] is not None) == (readout == CENTERED)


def test_a_choice_and_its_scores_are_in_the_card(whole: Whole, tmp_path: Path) -> None:
    done = export(joining_model(), choice=whole.run.path, store=whole.store, out=tmp_path / "x")
    score = score_of(whole.run, done.layer, done.readout)
    evidence = done.facts["evidence"]
    assert evidence["scores"][0]["score"] == pytest.approx(score)
    card = (done.path / "README.md").read_text()
    assert f"**{score:.2f}**" in card
    assert "The choice was made on these very tasks" in card
    assert evidence["choice"]["reason"] in card
    assert f"{done.facts['verification']['texts_per_second']['export']:.0f} texts per" in card
    # `export` takes what `select` chooses among the readouts that can be exported.
    choice = select(whole.run)
    if why_not(Readout.parse(choice.readout or "")) is None:
        assert (done.layer, done.readout) == (choice.layer, choice.readout)
    else:
        assert "cannot be exported" in evidence["notes"][0]
    readout = "plain/mean/raw/keep/none"
    choice = select(whole.run, readouts=readout)
    again = export(joining_model(), readout=readout, choice=whole.run, out=tmp_path / "y")
    assert (again.layer, again.readout) == (choice.layer, choice.readout)


def test_scores_of_a_named_layer(whole: Whole, tmp_path: Path) -> None:
    model = joining_model()
    done = export(model, 1, readout="plain/mean/raw", choice=whole.run.path, out=tmp_path / "x")
    evidence = done.facts["evidence"]
    row = evidence["scores"][0]
    assert row["score"] == pytest.approx(score_of(whole.run, 1, "plain/mean/raw/keep/none"))
    assert row["last"] == pytest.approx(score_of(whole.run, 3, "plain/mean/raw/keep/none"))
    assert row["ci_low"] <= row["gain"] <= row["ci_high"]
    assert row["gain"] == pytest.approx(row["score"] - row["last"])
    assert evidence["choice"] is None
    card = (done.path / "README.md").read_text()
    assert f"{row['gain']:+.2f} ({row['ci_low']:+.2f} to {row['ci_high']:+.2f})" in card
    assert "choice was made" not in card


def test_a_run_of_another_model_or_readout_is_refused(whole: Whole, tmp_path: Path) -> None:
    options: dict[str, Any] = {"choice": whole.run.path, "out": tmp_path / "x"}
    with pytest.raises(ExportError, match="is about another model than tiny-llama: weights_sha256"):
        export(tiny_model("llama", seed=5), **options)
    with pytest.raises(LayerscopeError, match=r"did not measure plain/max.*It measured: echo/mean"):
        export(joining_model(), 2, readout="plain/max", **options)
    with pytest.raises(ExportError, match="no longer in the store"):
        export(joining_model(), 2, readout=CENTERED, store=tmp_path / "empty", **options)
    assert not (tmp_path / "x").exists()


def test_what_is_written(tmp_path: Path) -> None:
    out = tmp_path / "x"
    options: dict[str, Any] = {"readout": "plain/mean/raw", "max_length": 64, "normalize": True}
    done = export(tiny_model("gpt_neox"), -2, out=out, **options)
    names = {file.name for file in out.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "modules.json"} <= names
    assert not list(tmp_path.glob(".*"))
    facts = json.loads((out / "layerscope.json").read_text())
    assert facts == Exported.load(out).facts == done.facts
    assert (done.layer, done.readout) == (2, "plain/mean/raw/keep/none")
    assert done.cosine_distance < 1e-9
    assert facts["blocks"] == {"kept": 2, "filler": True, "of": 3}
    assert facts["state"] == "hidden_states[2]"
    assert facts["license"] == UNKNOWN
    card = (out / "README.md").read_text()
    for phrase in (
        "license: unknown\n",
        "base_model: tiny-gpt_neox\n",
        "layer 2 of 3",
        "plain/mean/raw/keep/none",
        "2 of 3 blocks, plus one pass-through block",
        "hidden_states[2]",
        "was not measured here",
    ):
        assert phrase in card
    assert len({file.stat().st_mode for file in out.iterdir() if file.is_file()}) == 1


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model("llama")
    done = export(model, 1, max_length=64)
    assert done.path.parent == Path("exports")
    with pytest.raises(ExportError, match="not empty"):
        export(model, 2, max_length=64)
    assert export(model, 2, max_length=64, overwrite=True).layer == 2
    letter = tmp_path / "other" / "letter.txt"
    letter.parent.mkdir()
    letter.write_text("dear")
    with pytest.raises(ExportError, match="holds no export"):
        export(model, 1, out=letter.parent, overwrite=True)
    with pytest.raises(ExportError, match="is a file"):
        export(model, 1, out=letter)
    assert letter.read_text() == "dear"
    unrecorded = tmp_path / "unrecorded"  # a user's folder with a file of that name
    unrecorded.mkdir()
    (unrecorded / "layerscope.json").write_text('{"kind": "export"}')
    (unrecorded / "modules.json").write_text("[]")
    with pytest.raises(ExportError, match="holds no export"):
        export(model, 1, out=unrecorded, overwrite=True)
    assert len(list(unrecorded.iterdir())) == 2


def test_files_that_no_export_recorded_are_kept(tmp_path: Path) -> None:
    model = tiny_model("llama")
    out = tmp_path / "x"
    export(model, 1, out=out, max_length=64)
    (out / "more").mkdir()
    contents = {"notes.txt": "my notes", "more/config.json": "{}"}
    for name, text in {**contents, "README.md": "my words"}.items():
        (out / name).write_text(text)
    link = tmp_path / "link"
    link.symlink_to(out)
    assert export(model, 2, out=link, max_length=64, overwrite=True).layer == 2
    assert Exported.load(out).layer == 2
    assert link.is_symlink()
    for name, text in {**contents, "README.md.old": "my words"}.items():
        assert (out / name).read_text() == text
    assert "layer 2" in (out / "README.md").read_text()
    assert sorted(tmp_path.iterdir()) == [link, out]


def test_a_folder_that_fails_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x"
    export(tiny_model("llama"), 1, out=out, max_length=64)
    reload = verifying.reload

    def disturb(jobs: Any, scratch: Path) -> Any:
        (vectors,), versions = reload(jobs, scratch)
        vectors += 0.1 * np.random.default_rng(0).standard_normal(vectors.shape)
        return [vectors], versions

    monkeypatch.setattr(verifying, "reload", disturb)
    message = r"does not give back layer 2 .* Nothing was written to .*x\."
    with pytest.raises(ExportError, match=message):
        export(tiny_model("llama"), 2, out=out, max_length=64, overwrite=True)
    assert Exported.load(out).layer == 1
    assert not list(tmp_path.glob(".*"))


def test_texts_to_center_on(tmp_path: Path) -> None:
    model, out = tiny_model("llama"), tmp_path / "x"
    plain, centered = "plain/mean/raw/keep/none", "plain/mean/raw/keep/corpus"
    for texts in ("no-such-corpus", ["one text here", "and another one"]):
        with pytest.raises(ExportError, match=f"does not center.* readout='{centered}'"):
            export(model, 1, readout=plain, out=out, center_on=texts)
    with pytest.raises(ExportError, match=f"say over which texts.* readout='{plain}'"):
        export(model, 1, readout=centered, out=out)
    assert not out.exists()
    texts = ["one text here", "and another one", "a third"]
    done = export(model, 1, readout=centered, out=out, center_on=texts, max_length=64)
    assert np.abs(encode(done.path, texts).mean(0)).max() < 1e-4
    assert done.facts["centered_on"] == "the 3 texts of texts"


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    model, out = tiny_model("llama"), tmp_path / "x"
    message = "layer 4 does not exist: tiny-llama has layers 0 to 3"
    with pytest.raises(InvalidValueError, match=message):
        export(model, 4, out=out)
    with pytest.raises(ExportError, match=r"say which layer= \(0 to 3\)"):
        export(model, out=out)
    with pytest.raises(ExportError, match="has no CLS token"):
        export(model, 1, readout="plain/cls", out=out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("readout", "reason", "near"),
    [
        ("echo/mean/raw", "2 times", "plain/mean/raw/keep/none"),
        ("plain/mean/applied/drop/corpus", "largest norm", "plain/mean/applied/keep/corpus"),
        ("{text} and {text}/last", "2 times", "plain/last/applied/keep/none"),
    ],
)
def test_readouts_that_need_custom_code(
    readout: str, reason: str, near: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=reason) as caught:
        check_expressible(Readout.parse(readout))
    assert f"readout='{near}'" in str(caught.value)
    with pytest.raises(ExportError, match=reason):  # before any model is loaded
        export("no-such-model", 1, readout=readout, out=tmp_path / "x")


def test_every_readout_has_an_expressible_neighbor() -> None:
    for readout in all_readouts(has_cls=True):
        assert why_not(nearest(readout)) is None
        is_expressible = readout.template != "echo" and readout.sink == "keep"
        assert (why_not(readout) is None) == is_expressible
        assert (nearest(readout) == readout) == is_expressible


def test_an_export_is_a_model_for_layerscope_too(tmp_path: Path, model_folder: Path) -> None:
    options: dict[str, Any] = {"readout": "plain/mean/raw", "max_length": 64}
    causal = export(model_folder, 2, out=tmp_path / "causal", **options)
    both = export(model_folder, 2, out=tmp_path / "both", bidirectional=True, **options)
    assert both.cosine_distance < 1e-9
    vectors = [encode(done.path, ["the same text"]) for done in (causal, both)]
    assert not np.allclose(*vectors, atol=1e-3)
    again = export(causal.path, 1, out=tmp_path / "y", max_length=64)
    assert again.facts["base"]["n_blocks"] == 3  # two blocks and the block of zeros


def test_licenses(tmp_path: Path, model_folder: Path) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "with-card"))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc-by-4.0\n---\n# A model")
    model = tiny_model("llama")
    assert license_of(model, folder) == "cc-by-4.0"
    for source in (model_folder, None):
        assert license_of(model, source) == UNKNOWN
    for text in ("no front matter", "---\nlicense: [mit\n---\n"):
        (folder / "README.md").write_text(text)
        assert license_of(model, folder) == UNKNOWN
    model.identity["license"] = "Apache-2.0"
    assert license_of(model, folder) == "Apache-2.0"


def test_a_choice_in_a_file_is_exported(whole: Whole, tmp_path: Path) -> None:
    choice = select(whole.run, readouts="plain/mean/raw/keep/none")
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    done = export(joining_model(), choice=file, out=tmp_path / "x", max_length=64)
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    evidence = done.facts["evidence"]
    assert evidence["choice"]["rule"] == "measured"
    score = score_of(whole.run, done.layer, done.readout)
    assert evidence["scores"][0]["score"] == pytest.approx(score)
    assert done.facts["evaluated_max_length"] == 64
    card = (done.path / "README.md").read_text()
    assert choice.reason in card
    assert choice.headline() in card
    again = export(joining_model(), choice=choice, out=tmp_path / "y", max_length=64)
    assert again.layer == choice.layer
    file.write_text('{"a": 1}')
    with pytest.raises(RunFolderError, match="holds no choice of a layer"):
        export(joining_model(), choice=file, out=tmp_path / "z")


def test_a_profile_is_exported_as_select_chooses(tmp_path: Path, texts: list[str]) -> None:
    model = tiny_model("llama")
    choice = select(profile(model, texts, out=tmp_path / "run", progress=False))
    done = export(model, choice=tmp_path / "run", out=tmp_path / "x")
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    assert "No scores were given" in (done.path / "README.md").read_text()


def test_a_name_writes_nothing_else_into_the_card(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.name = "red \x1b[31m\n---\n# Another title\u202e"
    done = export(model, layer=2, out=tmp_path / "x")
    card = (done.path / "README.md").read_text(encoding="utf-8")
    for part in ("\x1b", "\u202e", "\n# Another title"):
        assert part not in card
    assert card.count("\n---\n") == 1  # the end of its head


@pytest.mark.parametrize("change", ["other adapter", "no adapter", "settings"])
def test_evidence_of_another_adapter_is_refused(
    change: str, tmp_path: Path, texts: list[str]
) -> None:
    """The weights of the base model are the same: only the adapter tells the two apart."""
    model = tiny_model("llama")
    adapter = {"name": "one", "sha256": "1" * 64}
    model.identity["adapters"] = [adapter]
    profile(model, texts, out=tmp_path / "run", progress=False)
    model.identity |= {
        "other adapter": {"adapters": [{"name": "other", "sha256": "2" * 64}]},
        "no adapter": {"adapters": []},
        "settings": {"adapters": [{**adapter, "name": "moved"}], "settings_sha256": "3" * 64},
    }[change]
    name = "settings_sha256" if change == "settings" else "adapters"
    with pytest.raises(ExportError, match=rf"another model than tiny-llama: {name} \("):
        export(model, choice=tmp_path / "run", out=tmp_path / "x")


def test_a_choice_with_labels_is_exported_with_its_mean(tmp_path: Path) -> None:
    """A centered readout subtracts the mean over the labeled texts, as the choice did."""
    words = ["good", "bad", "fine", "poor", "nice", "awful", "great", "sad"]
    rows = [{"text": f"{words[i % 8]} film number {i}", "label": i % 2} for i in range(40)]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("\n".join(json.dumps(row) for row in rows))
    model = tiny_model("llama")
    readouts = ["plain/mean/raw/keep/none", "plain/mean/raw/keep/corpus"]
    options: dict[str, Any] = {"max_length": 100, "progress": False}
    choice = select(model, labels=labels, readouts=readouts, store=tmp_path / "store", **options)
    # Labels need not favor a centered readout of a model of random weights.
    choice = replace(choice, layer=2, readout=readouts[1], center_on=str(labels))
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    done = export(model, choice=file, out=tmp_path / "x", normalize=False)
    assert (done.layer, done.readout) == (choice.layer, choice.readout)
    assert done.facts["centered_on"] == "the 40 texts of labels.jsonl"
    assert np.abs(encode(done.path, [str(row["text"]) for row in rows]).mean(0)).max() < 1e-4
    with pytest.raises(ExportError, match="about another model"):
        export(tiny_model("llama", seed=5), choice=file, out=tmp_path / "y")
    labels.unlink()
    with pytest.raises(ExportError, match=r"labels\.jsonl, which is not there"):
        export(model, choice=file, out=tmp_path / "y")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def test_damaged_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    brief_export(tiny_model("llama"), 2, "plain/mean/raw/keep/none", folder)

    def damaged() -> dict[str, str]:
        checks = {path.relative_to(folder).as_posix(): text for path, text in check_files(folder)}
        return {name: text for name, text in checks.items() if text}

    names = {path.relative_to(folder).as_posix() for path, _ in check_files(folder)}
    assert {"layerscope.json", "model.safetensors", "config.json", "tokenizer.json"} <= names
    (folder / "README.md").write_text("my own words")
    assert damaged() == {}  # people edit it
    for name in sorted(names):
        before = (folder / name).read_bytes()
        flip(folder / name)
        assert list(damaged()) == [name]
        ended = run_main(monkeypatch, capsys, "verify", folder)
        assert ended.code == 2
        assert f"damaged  {folder / name}" in ended.out
        (folder / name).write_bytes(before)
    resolve(folder)  # checksums are remembered from here on, and `verify` reads every byte
    file = folder / "model.safetensors"
    before_flip = file.stat()
    flip(file)
    with monkeypatch.context() as patched:
        stat = Path.stat
        patched.setattr(
            Path, "stat", lambda path, **how: before_flip if path == file else stat(path, **how)
        )
        assert run_main(patched, capsys, "verify", folder).code == 2
        assert list(damaged()) == ["model.safetensors"]
    file.unlink()
    assert damaged() == {"model.safetensors": "it is missing"}
    facts = json.loads((folder / "layerscope.json").read_text(encoding="utf-8"))
    checked.write_json(folder / "layerscope.json", {**facts, "layerscope": "9.1.0"})
    with pytest.raises(RunFolderError, match=r"was written by layerscope 9\.1\.0"):
        Exported.load(folder)
