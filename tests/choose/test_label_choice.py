from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layerscope.choose.choice import KEYS
from layerscope.choose.label_choice import prepare
from layerscope.choose.select import select
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.vectors import Shard, VectorStore, text_key
from layerscope.vectors.encode import open_space
from tests.choose.label_support import write_csv
from tests.evaluation.support import watch
from tests.tiny import tiny_model

WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "isle", "jetty"]
FEW = ["plain/mean/raw", "plain/last"]


def sentences(count: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(WORDS, 4)) + f" {i}" for i in range(count)]


def labeled_file(folder: Path, count: int = 48) -> Path:
    """The class is the first word's: every layer of any model carries it somewhere."""
    texts = sentences(count)
    return write_csv(
        folder / "labels.csv",
        ("text", "label"),
        [(text, "early" if text < "e" else "late") for text in texts],
    )


def plant(model: LoadedModel, store: Path, texts: list[str], labels: list[int], site: str) -> None:
    """Put vectors into the store in which one site under plain/mean/raw knows the labels: no model
    has to run."""
    rng = np.random.default_rng(0)
    sites, kinds = ["embed", "block.0", "block.1", "block.2"], ["mean/applied", "mean/raw"]
    vectors = {
        kind: rng.normal(size=(4, len(texts), model.width)).astype(np.float32) for kind in kinds
    }
    vectors["mean/raw"][sites.index(site), np.arange(len(texts)), labels] += 6
    space = open_space(VectorStore(store, None), model, get_template("plain"), 128)
    keys = [text_key(text) for text in texts]
    space.add(Shard(keys, sites, vectors, {"truncated": np.zeros(len(texts), dtype=bool)}))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


def test_the_site_that_carries_the_labels_is_found_in_the_store(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = sentences(64)
    labels = [i % 3 for i in range(64)]
    plant(model, tmp_path / "store", texts, labels, "block.1")
    file = write_csv(tmp_path / "l.csv", ("text", "label"), zip(texts, labels, strict=True))
    options = {"labels": file, "readouts": ["plain/mean/raw"], "store": tmp_path / "store"}
    encoded = watch(monkeypatch)
    choice = select(model, **options)
    assert len(encoded) == 0
    assert (choice.layer, choice.site, choice.readout) == (2, "block.1", "plain/mean/raw/keep/none")
    assert (choice.blocks_saved, choice.risk_of_loss, choice.tied) == (1, 0, (2,))
    assert choice.expected_gain > 30
    assert choice.after > 95
    assert choice.before < 60
    assert choice.gain_layer.value == pytest.approx(choice.expected_gain, abs=25)
    assert select(model, max_blocks=0.4, **options).layer <= 1


def test_the_answer_is_whole_and_does_not_depend_on_the_order_of_rows(
    model: LoadedModel, tmp_path: Path
) -> None:
    file = labeled_file(tmp_path)
    options = {"labels": file, "readouts": FEW, "store": tmp_path / "store"}
    choice = select(model, **options)
    assert list(json.loads(choice.to_json()))[: len(KEYS)] == list(KEYS)
    assert len(choice.table) == 3 * 4
    assert choice.table.columns[:3].tolist() == ["layer", "site", "readout"]
    assert choice.table["score"].between(0, 100).all()
    assert Readout().name in set(choice.table["readout"])
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *np.random.default_rng(0).permutation(rows)]) + "\n")
    again = select(model, **options)
    assert again == choice
    assert again.table.equals(choice.table)


def test_texts_are_encoded_once(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"labels": labeled_file(tmp_path, 24), "store": tmp_path / "store", "layers": [1]}
    encoded = watch(monkeypatch)
    select(model, **options)
    assert len(encoded) == 3 * 24
    select(model, **options)
    assert len(encoded) == 3 * 24


def test_pairs_and_scores(model: LoadedModel, tmp_path: Path) -> None:
    texts = sentences(40)
    rows = [(a, b, i % 2) for i, (a, b) in enumerate(zip(texts, texts[::-1], strict=True))]
    for name, column, metric in (
        ("p.csv", "label", "average precision"),
        ("s.tsv", "score", "Spearman"),
    ):
        separator = "," if name.endswith("csv") else "\t"
        file = write_csv(tmp_path / name, ("sentence1", "sentence2", column), rows, separator)
        choice = select(model, labels=file, readouts=FEW, store=tmp_path / "store")
        assert choice.metric == metric
        assert choice.table["score"].between(-100, 100).all()


def test_a_model_folder_is_loaded(model_folder: Path, tmp_path: Path) -> None:
    options = {"labels": labeled_file(tmp_path), "readouts": FEW, "store": tmp_path / "store"}
    choice = select(model_folder, layers=[0, -1], **options)
    assert choice.model == model_folder.name
    assert set(choice.table["layer"]) == {0, 3}
    with pytest.raises(LayerscopeError, match="layer 9 does not exist"):
        select(model_folder, layers=[9], **options)


def test_centering_is_on_the_given_texts_and_equal_vectors_are_undefined() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    vectors[1] = 1.5
    prepared = prepare(vectors, center=True, unit=True)
    np.testing.assert_allclose(np.linalg.norm(prepared[0], axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(prepare(vectors, True, False)[0].mean(0), 0, atol=1e-6)
    assert np.isnan(prepared[1]).all()
    np.testing.assert_array_equal(prepare(vectors, False, False)[0], vectors[0])
