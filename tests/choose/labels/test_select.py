from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layerscope.choose.choice import KEYS, Choice
from layerscope.choose.labels.source import prepare
from layerscope.choose.select import select
from layerscope.core.readout import Readout, all_readouts
from layerscope.core.templates import get_template
from layerscope.errors import LayerscopeError, ModelError, RunFolderError
from layerscope.models import LoadedModel
from layerscope.profiling import profile
from layerscope.vectors import Shard, VectorStore, text_key
from layerscope.vectors.encode import open_space
from tests.choose.labels.support import write_csv
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
    seen = watch(monkeypatch)
    found = select(model, labels=file, readouts=["plain/mean/raw"], store=tmp_path / "store")
    assert len(seen) == 0
    assert (found.layer, found.site, found.readout) == (2, "block.1", "plain/mean/raw/keep/none")
    assert found.blocks_saved == 1
    assert found.expected_gain is not None
    assert found.expected_gain > 30
    assert found.after > 95
    assert found.before < 60
    assert found.risk_of_loss == 0
    assert found.gain_layer is not None
    assert found.gain_layer.value == pytest.approx(found.expected_gain, abs=25)
    assert found.tied == (2,)
    early = select(
        model, labels=file, readouts=["plain/mean/raw"], store=tmp_path / "store", max_blocks=0.4
    )
    assert early.layer <= 1


def test_the_answer_is_whole_and_json(model: LoadedModel, tmp_path: Path) -> None:
    found = select(model, labels=labeled_file(tmp_path), readouts=FEW, store=tmp_path / "store")
    assert isinstance(found, Choice)
    told = json.loads(json.dumps(found.as_dict(table=True), allow_nan=False))
    assert list(told)[: len(KEYS)] == list(KEYS)
    assert told["extra"]["labels"]["n"] == 48
    assert told["extra"]["judged_by"] == "auc"
    assert told["extra"]["conventions"]["encoded"] == 48
    assert len(told["table"]) == 3 * 4 == found.extra["candidates"]
    assert found.table.columns[:3].tolist() == ["layer", "site", "readout"]
    assert found.table["score"].between(0, 100).all()
    assert json.loads(found.to_json())["layer"] == found.layer
    assert Readout().name in set(found.table["readout"])


def test_the_order_of_rows_does_not_change_the_answer(model: LoadedModel, tmp_path: Path) -> None:
    file = labeled_file(tmp_path)
    one = select(model, labels=file, readouts=FEW, store=tmp_path / "store")
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *np.random.default_rng(0).permutation(rows)]) + "\n")
    two = select(model, labels=file, readouts=FEW, store=tmp_path / "store")
    first, second = one.as_dict(table=True), two.as_dict(table=True)
    for told in (first, second):
        del told["extra"]["conventions"]
    assert first == second


def test_texts_are_encoded_once(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = labeled_file(tmp_path, 24)
    seen = watch(monkeypatch)
    select(model, labels=file, store=tmp_path / "store", layers=[1])
    assert len(seen) == 3 * 24
    again = select(model, labels=file, store=tmp_path / "store", layers=[1])
    assert len(seen) == 3 * 24
    assert again.extra["conventions"]["encoded"] == 0
    assert again.extra["candidates"] <= 2 * len(all_readouts())


def test_pairs_and_scores(model: LoadedModel, tmp_path: Path) -> None:
    texts = sentences(40)
    rows = [(a, b, i % 2) for i, (a, b) in enumerate(zip(texts, texts[::-1], strict=True))]
    file = write_csv(tmp_path / "p.csv", ("sentence1", "sentence2", "label"), rows)
    pairs = select(model, labels=file, readouts=FEW, store=tmp_path / "store")
    assert (pairs.extra["judged_by"], pairs.metric, pairs.extra["labels"]["kind"]) == (
        "average_precision",
        "average precision",
        "pairs",
    )
    file = write_csv(tmp_path / "s.tsv", ("sentence1", "sentence2", "score"), rows, "\t")
    scores = select(model, labels=file, readouts=FEW, store=tmp_path / "store")
    assert (scores.extra["judged_by"], scores.metric, scores.extra["labels"]["kind"]) == (
        "spearman",
        "Spearman",
        "scores",
    )
    assert scores.table["score"].between(-100, 100).all()


def by_name(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """A model that a run can name, since it is of the catalogue."""
    named = tiny_model()
    named.identity["source"] = "catalogue"
    monkeypatch.setattr("layerscope.choose.labels.source.load", lambda name, **options: named)
    return named


def test_a_run_names_its_model(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run = labeled_file(tmp_path), tmp_path / "run"
    run.mkdir()
    named = by_name(monkeypatch)
    manifest = {
        "kind": "evaluation",
        "status": "complete",
        "model": named.identity,
        "conventions": {"max_length": 64, "unit_length": True},
    }

    def write(**other: object) -> None:
        (run / "manifest.json").write_text(json.dumps({**manifest, **other}))

    write()
    found = select(run, labels=file, readouts=FEW, store=tmp_path / "store")
    assert (found.max_length, found.unit_length, found.source) == (64, True, str(run))
    write(model={**named.identity, "weights_sha256": "0" * 64})
    with pytest.raises(ModelError, match="they differ in weights_sha256"):
        select(run, labels=file, readouts=FEW, store=tmp_path / "store")
    write(model=model.identity)
    with pytest.raises(ModelError, match="Give the model itself"):
        select(run, labels=file, readouts=FEW, store=tmp_path / "store")
    write(status="running")
    with pytest.raises(RunFolderError, match="not finished"):
        select(run, labels=file)


def test_a_profile_names_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, run = labeled_file(tmp_path), tmp_path / "run"
    profiled = profile(by_name(monkeypatch), sentences(30), out=run, max_length=64, progress=False)
    found = select(run, labels=file, readouts=FEW, store=tmp_path / "store")
    assert (
        profiled.manifest["conventions"]["max_length"]
        == found.extra["conventions"]["max_length"]
        == 64
    )
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_model_folder_is_loaded(model_folder: Path, tmp_path: Path) -> None:
    found = select(
        model_folder,
        labels=labeled_file(tmp_path),
        readouts=FEW,
        layers=[0, -1],
        store=tmp_path / "store",
    )
    assert found.model == model_folder.name
    assert set(found.table["layer"]) == {0, 3}


def test_what_cannot_be_asked_for(model: LoadedModel, tmp_path: Path) -> None:
    file = labeled_file(tmp_path)
    with pytest.raises(LayerscopeError, match="layer 9 does not exist"):
        select(model, labels=file, layers=[9], store=tmp_path / "store")
    with pytest.raises(LayerscopeError, match="neither a run"):
        select(tmp_path, labels=file)


def test_centering_is_on_the_given_texts_and_equal_vectors_are_undefined() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    vectors[1] = 1.5
    found = prepare(vectors, center=True, unit=True)
    np.testing.assert_allclose(np.linalg.norm(found[0], axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(prepare(vectors, True, False)[0].mean(0), 0, atol=1e-6)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(prepare(vectors, False, False)[0], vectors[0])
