"""`improve --train` and `--queries` of a sentence encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import layerscope
from layerscope.blocks import Encoder
from layerscope.blocks import result as blocks_result
from layerscope.blocks.search import TextSet, measure_agreement
from layerscope.blocks.train import TrainRequest, VectorLoss, train_blocks
from layerscope.errors import LayerscopeError
from layerscope.exporting.pipeline import load_folder
from layerscope.progress import Silent
from tests.blocks.conftest import TEXTS, write_tiny
from tests.cli.support import run_main
from tests.exporting.conftest import reload_here

QUICK = {"max_steps": 40, "eval_steps": 20, "learning_rate": 3e-3}
MORE = [f"{text} {end}" for text in TEXTS for end in ("at noon", "in the rain", "for a friend")]
QUESTIONS = [f"who {text.split(maxsplit=1)[1]}" for text in TEXTS[::2]]


@pytest.fixture(scope="module", autouse=True)
def verified_here() -> Iterator[None]:
    """Folders are verified in this process: a fresh one takes ten seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks_result, "reload", reload_here)
        yield


def agreement(encoder: Encoder, variant, texts: list[str]) -> float:
    batches = encoder.batches(texts)
    return measure_agreement(
        encoder.encode(encoder.whole, batches), encoder.encode(variant, batches)
    )[0]


def test_the_loss_is_zero_at_the_teachers_vectors_and_follows_the_formula():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 6)).astype(np.float32)
    target = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    features = [{"attention_mask": torch.ones(4, 3, dtype=torch.long)}]
    labels = torch.arange(4)

    def model(other: np.ndarray):
        def forward(given: dict) -> dict:
            forward.at += len(given["attention_mask"])
            return {"sentence_embedding": torch.tensor(other)[forward.at - 1 :][:1]}

        forward.at = 0
        return forward

    assert float(VectorLoss(model(target), target)(features, labels)) == pytest.approx(0, abs=1e-6)
    other = rng.normal(size=(4, 6)).astype(np.float32)
    length = other / np.linalg.norm(other, axis=1, keepdims=True)
    expected = 1 - (length * target).sum(1).mean()
    expected += 10 * ((length @ length.T - target @ target.T) ** 2).mean()
    assert float(VectorLoss(model(other), target)(features, labels)) == pytest.approx(expected)


def test_trained_blocks_agree_better_and_nothing_else_changes(bert: Encoder, tmp_path: Path):
    cut = bert.variant([0, 2])
    before = {name: value.clone() for name, value in bert.model.module.state_dict().items()}
    request = TrainRequest(tmp_path, minutes=1, settings=QUICK)
    trained = train_blocks(bert, cut, TextSet.of(MORE), request, 0, Silent())
    assert trained.variant.blocks == (0, 2)
    assert 0 < trained.steps <= 40
    assert agreement(bert, trained.variant, TEXTS) > agreement(bert, cut, TEXTS) + 0.01
    after = bert.model.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    again = train_blocks(bert, cut, TextSet.of(MORE), request, 0, Silent())
    vectors = [bert.encode(one.variant, bert.batches(TEXTS)) for one in (trained, again)]
    np.testing.assert_allclose(*vectors, atol=1e-5)  # read back from the last checkpoint


def test_improve_trains_and_says_what_it_brought(bert_folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    result = layerscope.improve(
        bert_folder, MORE, budget=0.7, train=QUICK, time=1, out=out, progress=False
    )
    assert list(result.front["weights"]) == ["as they are", "as they are", "refitted", "trained"]
    training = result.manifest["training"]
    assert training["steps"] <= 40
    assert training["agreement"] == result.front["agreement"].iloc[-1]
    chosen = result.front[result.front["chosen"]].iloc[0]
    assert chosen["agreement"] == result.front["agreement"].iloc[1:].max()
    if chosen["weights"] == "trained":
        assert "trained to give the" in (out / "README.md").read_text()
    else:
        assert any("training did not help" in note for note in result.warnings)
    vectors = load_folder(out).encode(TEXTS[:7], normalize_embeddings=True)
    np.testing.assert_allclose(vectors, result.encode(TEXTS[:7]), atol=2e-6)
    assert not list(tmp_path.glob(".*out*"))
    read = layerscope.improve(
        bert_folder, MORE, budget=0.7, train=QUICK, time=1, out=out, progress=False
    )
    assert read.manifest["training"] == training


def test_a_training_that_does_not_help_is_left_out(bert_folder: Path):
    settings = {**QUICK, "max_steps": 1, "learning_rate": 10.0}
    result = layerscope.improve(
        bert_folder, MORE, budget=0.7, train=settings, time=1, progress=False
    )
    assert result.front[result.front["chosen"]].iloc[0]["weights"] != "trained"
    assert any("training did not help" in note for note in result.warnings)


def test_without_a_budget_half_of_the_blocks_are_trained(tmp_path: Path):
    folder = write_tiny(tmp_path / "tiny", "bert")
    result = layerscope.improve(
        folder, MORE, train={**QUICK, "max_steps": 2}, time=1, progress=False
    )
    assert len(result.blocks) == 1


@pytest.mark.slow
def test_a_prompt_is_trained_with(tmp_path: Path):
    folder = write_tiny(tmp_path / "tiny", "bert")
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    encoder = Encoder.open(folder, "cpu")
    settings = {"max_steps": 120, "eval_steps": 20, "learning_rate": 1e-3}
    request = TrainRequest(tmp_path / "work", minutes=1, settings=settings)
    request.folder.mkdir()
    trained = train_blocks(encoder, encoder.variant([0, 2]), TextSet.of(MORE), request, 0, Silent())
    assert agreement(encoder, trained.variant, TEXTS) > agreement(
        encoder, encoder.variant([0, 2]), TEXTS
    )


def test_too_few_texts_to_train_on(bert: Encoder, tmp_path: Path):
    with pytest.raises(LayerscopeError, match="give 64 or more"):
        train_blocks(
            bert, bert.variant([0]), TextSet.of(TEXTS[:20]), TrainRequest(tmp_path), 0, Silent()
        )


def test_queries_choose_and_measure_by_rankings(bert_folder: Path, tmp_path: Path):
    result = layerscope.improve(
        bert_folder, TEXTS, queries=QUESTIONS, budget=0.7, out=tmp_path / "out", progress=False
    )
    texts = result.manifest["texts"]
    assert 0 < texts["queries"] < texts["checked"]
    assert texts["checked"] + texts["fitted"] == len(set(TEXTS)) + len(set(QUESTIONS))
    assert "query" in result.manifest["conventions"]["agreement"]
    assert "of them queries" in str(result)
    assert "each query's 10 nearest documents" in str(result)


def test_training_and_queries_on_the_command_line(
    bert_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for name, rows in (("texts", MORE), ("queries", QUESTIONS)):
        (tmp_path / f"{name}.txt").write_text("\n".join(rows))
    words = ["improve", str(bert_folder), "--data", str(tmp_path / "texts.txt")]
    words += ["--queries", str(tmp_path / "queries.txt"), "--train", "--option", "time=0.02"]
    words += ["--out", str(tmp_path / "out")]
    ended = run_main(monkeypatch, capsys, *words)
    assert ended.code == 0, ended.err
    assert "training" in ended.out
