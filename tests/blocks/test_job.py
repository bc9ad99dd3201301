"""`improve` of a sentence encoder: limits, the folder, the run, the page and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerscope
from layerscope.blocks import FasterEncoder
from layerscope.blocks import result as blocks_result
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.exporting.pipeline import load_folder
from tests.blocks.conftest import TEXTS, idle_block, write_tiny
from tests.cli.support import run_main
from tests.exporting.conftest import reload_here


@pytest.fixture(scope="module", autouse=True)
def verified_here() -> Iterator[None]:
    """Folders are verified in this process: a fresh one takes ten seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks_result, "reload", reload_here)
        yield


@pytest.fixture(scope="module")
def faster(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> FasterEncoder:
    out = tmp_path_factory.mktemp("faster") / "out"
    return layerscope.improve(bert_folder, TEXTS, budget=0.7, out=out, progress=False)


def test_a_budget_is_kept_and_the_folder_gives_what_was_measured(faster: FasterEncoder):
    assert isinstance(faster, FasterEncoder)
    assert len(faster.blocks) == 2
    loaded = load_folder(faster.folder)
    assert len(loaded[0].auto_model.encoder.layer) == 2
    assert loaded[0].auto_model.config.num_hidden_layers == 2
    vectors = loaded.encode(TEXTS[:7], normalize_embeddings=True)
    np.testing.assert_allclose(vectors, faster.encode(TEXTS[:7]), atol=2e-6)
    assert faster.encode(TEXTS[0]).shape == (32,)


def test_the_run_says_what_it_did(faster: FasterEncoder):
    manifest = faster.manifest
    texts = manifest["texts"]
    assert texts["checked"] + texts["fitted"] == len(TEXTS)
    assert texts["tokens"] > texts["fitted"]
    chosen = faster.front[faster.front["chosen"]].iloc[0]
    assert chosen["agreement"] == manifest["claim"]["after"] < 1
    assert chosen["ci_low"] <= chosen["agreement"] <= chosen["ci_high"]
    assert chosen["cost"] == pytest.approx(2 / 3)
    assert set(faster.front["weights"]) == {"as they are", "refitted"}
    assert manifest["verification"]["cosine_distance"] < 1e-5
    assert manifest["conventions"]["seed"] == 0


def test_a_finished_run_is_read_back_and_encodes(faster: FasterEncoder, bert_folder: Path):
    again = layerscope.improve(bert_folder, TEXTS, budget=0.7, out=faster.folder, progress=False)
    assert again.manifest["seconds"] == faster.manifest["seconds"]
    run = layerscope.load_run(faster.folder)
    pd.testing.assert_frame_equal(run.front, faster.front)
    np.testing.assert_allclose(run.encode(TEXTS[:3]), faster.encode(TEXTS[:3]), atol=2e-6)
    with pytest.raises(LayerscopeError, match="Copy that folder"):
        run.save(faster.folder.parent / "other")


def test_the_card_names_the_blocks_and_how_to_measure(faster: FasterEncoder):
    card = (faster.folder / "README.md").read_text()
    assert "with 2 of 3 blocks" in card
    assert "layerscope compare" in card
    assert "Verified" in card
    assert "opens in: sentence-transformers, text-embeddings-inference on a CPU" in card


def test_page_picture_and_text(faster: FasterEncoder, tmp_path: Path):
    page = faster.report(tmp_path / "report.html").read_text()
    assert "What removing one block costs" in page
    charts = faster.plot().to_dict()["concat"]
    assert charts[0]["title"]["text"] == "What removing one block costs"
    assert "2 of 3 blocks" in page
    assert len(charts) >= 2
    assert "2 of 3 blocks" in str(faster)
    assert "2 of 3 blocks" in faster._repr_html_()


def test_labels_measure_and_choose_nothing(
    bert_folder: Path, tmp_path: Path, faster: FasterEncoder
):
    rows = [{"text": text, "label": text.split(" the ")[1].split()[0]} for text in TEXTS[:48]]
    pd.DataFrame(rows).to_csv(tmp_path / "labels.csv", index=False)
    run = layerscope.improve(
        bert_folder, TEXTS, budget=0.7, labels=tmp_path / "labels.csv", progress=False
    )
    claim = run.manifest["labels"]
    assert claim["examples"] == 48
    assert claim["interval"][0] <= claim["after"] - claim["before"] <= claim["interval"][1]
    assert run.blocks == faster.blocks
    assert "by your 48 labels" in str(run)


def test_keep_takes_the_cheapest_that_agrees(tmp_path: Path):
    folder = write_tiny(tmp_path / "idle", "llama", idle_block("llama", 1))
    run = layerscope.improve(folder, TEXTS, keep=0.999, progress=False)
    assert run.blocks == (0, 2)
    assert run.manifest["claim"]["after"] == pytest.approx(1, abs=1e-6)


def test_what_nothing_keeps_is_said_and_all_blocks_stay(bert_folder: Path, tmp_path: Path):
    run = layerscope.improve(bert_folder, TEXTS, keep=1.0, out=tmp_path / "all", progress=False)
    assert run.blocks == (0, 1, 2)
    assert "no smaller candidate keeps 1 of the agreement" in run.warnings[0]
    whole = load_folder(bert_folder).encode(TEXTS[:3])
    np.testing.assert_allclose(load_folder(run.folder).encode(TEXTS[:3]), whole, atol=2e-6)
    with pytest.raises(
        LayerscopeError, match=r"nothing within budget=0.5 keeps 1 of the agreement"
    ):
        layerscope.improve(bert_folder, TEXTS, keep=1.0, budget=0.5, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1.5}, r"above 0 and at most 1, not 1.5"),
        ({"budget": 0.2}, r"allows no block: one of 3 costs 0.33"),
    ],
)
def test_mistakes_are_said(bert_folder: Path, options: dict, message: str):
    with pytest.raises(LayerscopeError, match=message):
        layerscope.improve(
            bert_folder, [*TEXTS, *(f"{text}, please" for text in TEXTS)], progress=False, **options
        )


def test_keep_is_not_for_language_models(model_folder: Path):
    with pytest.raises(LayerscopeError, match=r"keep= is for sentence encoders"):
        layerscope.improve(model_folder, TEXTS, keep=0.9, progress=False)


def test_a_budget_below_zero_is_an_invalid_value(bert_folder: Path):
    with pytest.raises(InvalidValueError):
        layerscope.improve(bert_folder, TEXTS, budget=-1, progress=False)


def test_what_was_made_faster_is_not_made_faster_again(faster: FasterEncoder):
    with pytest.raises(LayerscopeError, match="it is an export of layerscope: improve the model"):
        layerscope.improve(faster.folder, TEXTS, progress=False)


def test_an_encoder_that_cannot_be_refitted_keeps_its_weights(tmp_path: Path):
    folder = write_tiny(tmp_path / "gemma", "gemma3")
    run = layerscope.improve(folder, TEXTS, budget=0.7, progress=False)
    assert set(run.front["weights"]) == {"as they are"}
    assert "cannot be refitted" in run.warnings[0]


def test_on_the_command_line(
    bert_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    given = ["improve", bert_folder, "--data", tmp_path / "texts.txt", "--budget", "0.7"]
    ended = run_main(monkeypatch, capsys, *given, "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended
    assert len(json.loads(ended.out)["choice"]["blocks"]) == 2
    assert (tmp_path / "out" / "modules.json").is_file()
