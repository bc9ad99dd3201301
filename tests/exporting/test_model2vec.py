"""Static models: every token read at the layer and readout, reduced and weighted as model2vec does, in the files it opens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.exporting.formats.model2vec import FORMAT, content_ids, frame_of, pca, sif_weights, static_vectors, write_static
from layerscope.exporting.verifying import pooled_vectors
from tests.exporting.support import TEXTS, draft_of, joining_model
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")


@pytest.fixture(autouse=True)
def no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TASKS, "is_cached", lambda name: False)


def test_every_token_is_read_in_its_frame(tmp_path: Path) -> None:
    draft = draft_of(tiny_model("bert"), 2, "plain/mean/applied", tmp_path)
    tokenizer = draft.model.tokenizer
    assert frame_of(draft) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])
    facts = write_static(draft)
    arrays = load_file(tmp_path / "model2vec" / "model.safetensors")
    core = Tokenizer.from_file(str(tmp_path / "model2vec" / "tokenizer.json"))
    words = content_ids(core, draft)
    assert facts["tokens"] == len(words)
    assert not set(words) & set(tokenizer.all_special_ids)
    rows = [[tokenizer.cls_token_id, token, tokenizer.sep_token_id] for token in words]
    states = pooled_vectors(draft.model, rows, 2, draft.readout).astype(np.float64)
    centered = states - states.mean(0)
    left, scale, _ = np.linalg.svd(centered, full_matrices=False)
    wanted = left * scale * sif_weights(len(words))[:, None]
    given = arrays["embeddings"][words].astype(np.float64)
    assert given.shape == (len(words), 32)  # no more dimensions than the model has
    np.testing.assert_allclose(given @ given.T, wanted @ wanted.T, atol=2e-3 * float(np.abs(wanted @ wanted.T).max()))
    assert not arrays["embeddings"][tokenizer.cls_token_id].any()


def test_a_template_is_around_every_token(tmp_path: Path) -> None:
    draft = draft_of(joining_model(), 2, "one-word/last/raw", tmp_path)
    before, after = frame_of(draft)
    assert draft.framed.ids(["q"])[0] == [*before, draft.model.tokenizer.convert_tokens_to_ids("q"), *after]
    assert before[0] == 1  # <s>
    assert len(after) > 5


def test_the_files_are_model2vecs(tmp_path: Path) -> None:
    facts = write_static(draft_of(tiny_model("llama"), 1, "plain/mean/raw", tmp_path))
    folder = tmp_path / "model2vec"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["normalize"], config["hidden_dim"]) == ("model2vec", True, 32)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    assert [module["type"].rsplit(".")[-1] for module in modules] == ["StaticEmbedding", "Normalize"]
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    arrays = load_file(folder / "model.safetensors")
    assert len(arrays["embeddings"]) == core.get_vocab_size()  # model2vec refuses another number
    assert core.encode(TEXTS[0]).ids == core.encode(TEXTS[0], add_special_tokens=False).ids
    vectors = static_vectors(core, arrays, [*TEXTS, ""])
    np.testing.assert_allclose(np.linalg.norm(vectors[:-1], axis=1), 1, atol=1e-5)
    assert not vectors[-1].any()
    ids = core.encode(TEXTS[0]).ids
    mean = arrays["embeddings"][ids].astype(np.float64).mean(0)
    np.testing.assert_allclose(vectors[0], mean / np.linalg.norm(mean), atol=1e-3)
    assert -1 <= facts["agreement"] <= 1


def test_a_vocabulary_with_gaps_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of(tiny_model("llama"), 1, "plain/mean/raw", tmp_path)
    told = json.loads(draft.model.tokenizer.backend_tokenizer.to_str())
    last = max(told["model"]["vocab"].values())
    name = next(name for name, token in told["model"]["vocab"].items() if token == last)
    told["model"]["vocab"][name] = last + 7
    gapped = Tokenizer.from_str(json.dumps({**told, "post_processor": None}))
    monkeypatch.setattr("layerscope.exporting.formats.model2vec.bare_tokenizer", lambda _draft: gapped)
    write_static(draft)
    arrays = load_file(tmp_path / "model2vec" / "model.safetensors")
    assert arrays["mapping"][last + 7] == len(arrays["embeddings"]) - 1


def test_the_score_stands_beside_the_models_own(tmp_path: Path) -> None:
    facts = write_static(draft_of(tiny_model("gpt2"), 1, "plain/mean/raw", tmp_path))
    assert "no score" in FORMAT.lines(facts)[0]
    scored = {**facts, "task": "LeeSimilarity", "pairs": 1225, "static": 38.4, "whole": 50.8}
    assert "LeeSimilarity 38.4, the model 50.8" in FORMAT.lines(scored)[0]
    assert "1,225 pairs | 38.4 | 50.8 |" in FORMAT.card(scored)


def test_pca_and_weights_by_hand() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    reduced, explained = pca(vectors, 3)
    scale = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False) ** 2
    assert explained == pytest.approx(scale[:3].sum() / scale.sum(), rel=1e-4)
    np.testing.assert_allclose((reduced**2).sum(0), scale[:3], rtol=1e-4)
    assert (reduced[np.abs(reduced).argmax(0), range(3)] > 0).all()
    weights = sif_weights(3, 0.1)
    share = np.array([1 / 2, 1 / 3, 1 / 4]) / (1 / 2 + 1 / 3 + 1 / 4)
    np.testing.assert_allclose(weights, 0.1 / (0.1 + share))
