"""`encode`, `embed` and `search`: the same vectors however they are asked for, kept columns, and
runs that were stopped."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import layerscope
from layerscope.core.heads import unit
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.embedding import writing
from layerscope.embedding.encoders import Embedded, Encoder, LayerEncoder
from layerscope.embedding.writing import facts_of
from layerscope.engines import LocalEngine
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, RunFolderError
from layerscope.exporting.verifying import pooled_vectors
from layerscope.models import LoadedModel
from tests.embedding.support import stop_at
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

TEXTS = some_texts(30)
QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and blocks of a few texts."""
    monkeypatch.setattr(writing, "BLOCK", 64)
    monkeypatch.setattr(writing, "_SMALLEST_BLOCK", 8)
    monkeypatch.setattr(writing, "_BLOCK_BYTES", 1)


def read_vectors(file: Path, name: str = "vector") -> np.ndarray:
    return np.stack(pq.read_table(file)[name].to_pylist())


def test_all_layers_in_one_pass_equal_each_layer_alone(model: LoadedModel) -> None:
    every = layerscope.encode(model, TEXTS, layers="all", **QUIET)
    assert every.shape == (4, 30, 32)
    for layer in (0, 2, -1):
        alone = layerscope.encode(model, TEXTS, layers=layer, **QUIET)
        np.testing.assert_allclose(alone, every[layer], atol=1e-5)
    ids = model.tokenize(TEXTS).ids
    np.testing.assert_allclose(pooled_vectors(model, ids, 2, Readout()), every[2], atol=1e-5)
    for layers in ([3, 1], np.array([3, 1]), (3, -3)):
        several = layerscope.encode(model, TEXTS, layers=layers, **QUIET)
        np.testing.assert_allclose(several, every[[3, 1]], atol=1e-5)
    readout = "plain/mean/raw/keep/corpus"
    centered = layerscope.encode(model, TEXTS, layers=1, readout=readout, **QUIET)
    assert np.abs(centered.mean(0)).max() < 1e-5


@pytest.mark.parametrize("layers", ["some", 9, [-6], []])
def test_layers_that_do_not_exist(model: LoadedModel, layers: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"layers are|has layers 0 to 3"):
        layerscope.encode(model, TEXTS, layers=layers, **QUIET)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_of_vectors_keeps_columns_and_resumes(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [
        {"doc": {"text": text}, "stars": i if i < 25 else "many", "when": None}
        for i, text in enumerate(TEXTS)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "vectors.parquet"
    counts: list[int] = []
    encode = LayerEncoder.encode

    def stop_third(self: LayerEncoder, texts: list[str], kind: str, advance: Any) -> Embedded:
        counts.append(len(texts))
        if len(counts) == 3:
            raise KeyboardInterrupt
        return encode(self, texts, kind, advance)

    monkeypatch.setattr(LayerEncoder, "encode", stop_third)
    options = {"column": "doc.text", "layers": [1, 3], **QUIET}
    with pytest.raises(KeyboardInterrupt):
        layerscope.embed(model, file, out, **options)
    assert not out.exists()
    layerscope.embed(model, file, out, **options)
    assert counts == [8, 8, 8, 8, 6]  # the first two blocks are not read again
    assert not list(tmp_path.glob(".vectors*"))
    table = pq.read_table(out)
    assert table.column_names == ["text", "doc", "stars", "when", "layer_1", "layer_3"]
    assert table["stars"].to_pylist()[:2] == ["0", "1"]  # as text: some are not numbers
    every = layerscope.encode(model, TEXTS, layers=[1, 3], **QUIET)
    np.testing.assert_allclose(read_vectors(out, "layer_3"), every[1], atol=1e-5)
    before = len(counts)
    layerscope.embed(model, file, out, **options)  # finished: nothing is read
    assert len(counts) == before
    with pytest.raises(RunFolderError, match="other vectors or texts"):
        layerscope.embed(model, file, out, **{**options, "layers": [2]})


def test_texts_that_are_cut_are_counted_and_reported_once(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture, here: Any
) -> None:
    texts = [*TEXTS[:25], *(f"{text} and more of it" for text in TEXTS[25:])]
    long = sum(len(ids) > 50 for ids in model.tokenizer(texts)["input_ids"])
    assert 0 < long < len(texts)
    layerscope.embed(model, texts, tmp_path / "v.parquet", max_length=50, **QUIET)
    assert caplog.text.count(f"{long} of 30 texts are longer than 50 tokens, and were cut") == 1
    assert facts_of(tmp_path / "v.parquet")["cut"] == long
    folder = layerscope.export(model, 2, out=tmp_path / "cut", max_length=50).path
    caplog.clear()
    layerscope.encode(str(folder), texts, **QUIET)
    assert caplog.text.count(f"{long} of 30 texts are longer than the folder reads") == 1
    caplog.clear()
    layerscope.encode(str(folder), ["short", "texts"], **QUIET)
    assert not caplog.text


def test_search_in_texts_and_in_a_file_of_vectors(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vectors.parquet"
    options = {"layers": 2, "readout": "plain/mean/raw", **QUIET}
    layerscope.embed(model, pd.DataFrame({"text": TEXTS, "n": range(30)}), file, **options)
    assert facts_of(file)["rows"] == 30
    readings: list[bool] = []
    read = TextStream.read

    def count(self: TextStream, whole: bool) -> Any:
        readings.append(whole)
        return read(self, whole)

    monkeypatch.setattr(TextStream, "read", count)
    direct = layerscope.search(model, TEXTS[4], TEXTS, top=3, **options)
    assert readings == [False, True]  # once to count, once to search
    assert direct["cosine"][0] == pytest.approx(1, abs=1e-5)
    stored = layerscope.search(model, TEXTS[4], file, top=3, **options)
    assert stored["n"][0] == 4
    vectors = unit(layerscope.encode(model, TEXTS, **options))
    order = np.argsort(-(vectors @ vectors[4]))[:3]
    assert list(direct["text"]) == list(stored["text"]) == [TEXTS[i] for i in order]
    with pytest.raises(DataError, match="and other settings"):
        layerscope.search(model, "x", file, **{**options, "layers": 1})
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="parquet"):
        layerscope.search(model, "x", file, **options)
    with pytest.raises(InvalidValueError, match="a question with words"):
        layerscope.search(model, " ", TEXTS)


def test_a_file_of_several_layers_is_searched_at_one_of_them(
    model: LoadedModel, tmp_path: Path
) -> None:
    file = layerscope.embed(model, TEXTS, tmp_path / "v.parquet", layers=[0, 2], **QUIET)
    for layer in (0, [2]):
        stored = layerscope.search(model, TEXTS[4], file, layers=layer, top=3, **QUIET)
        direct = layerscope.search(model, TEXTS[4], TEXTS, layers=layer, top=3, **QUIET)
        assert list(stored["text"]) == list(direct["text"])
    with pytest.raises(InvalidValueError, match="one layer"):
        layerscope.search(model, TEXTS[4], TEXTS, layers=[0, 2], **QUIET)
    with pytest.raises(DataError, match="and other settings"):
        layerscope.search(model, TEXTS[4], file, layers=1, **QUIET)


def test_what_embed_refuses(model: LoadedModel, tmp_path: Path) -> None:
    out = layerscope.embed(model, ["one", "", "two words"], tmp_path / "v.parquet", **QUIET)
    assert pq.read_table(out)["text"].to_pylist() == ["one", "two words"]
    with pytest.raises(InvalidValueError, match=r"\.parquet"):
        layerscope.embed(model, TEXTS, tmp_path / "v.csv")
    with pytest.raises(InvalidValueError, match="fitted on texts"):
        layerscope.embed(model, TEXTS, tmp_path / "w.parquet", readout="plain/mean/raw/keep/corpus")
    for other in (TEXTS[4:6], pd.DataFrame({"text": ["one", "two words"], "n": [1, 2]})):
        with pytest.raises(RunFolderError, match="other vectors or texts"):
            layerscope.embed(model, other, out, **QUIET)


class Away(LocalEngine):
    """Workers as they are elsewhere: their work is pickled, and they load the model themselves."""

    remote = True

    def run(self, work: Any, items: Any, advance: Any = lambda n: None) -> Any:
        yield from super().run(pickle.loads(pickle.dumps(work)), items, advance)


def test_workers_give_the_same_vectors(model_folder: Path, tmp_path: Path) -> None:
    options = {"layers": [1, 3], **QUIET}
    local = layerscope.encode(str(model_folder), TEXTS, **options)
    remote = layerscope.encode(str(model_folder), TEXTS, **options, engine=Away())
    np.testing.assert_allclose(local, remote, atol=1e-5)
    out = tmp_path / "v.parquet"
    layerscope.embed(str(model_folder), TEXTS, out, **options, engine=Away())
    np.testing.assert_allclose(read_vectors(out, "layer_3"), local[1], atol=1e-5)


@pytest.mark.usefixtures("here")
def test_an_exported_folder_is_read_as_it_says_itself(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    readout = "plain/mean/raw"
    layerscope.export(tiny_model("llama"), 2, readout=readout, out=folder, normalize=True)
    vectors = layerscope.encode(str(folder), TEXTS, **QUIET)
    expected = layerscope.encode(tiny_model("llama"), TEXTS, layers=2, readout=readout, **QUIET)
    np.testing.assert_allclose(vectors, unit(expected), atol=1e-4)
    out = layerscope.embed(str(folder), TEXTS, tmp_path / "v.parquet", **QUIET)
    assert layerscope.search(str(folder), TEXTS[3], out, top=1, **QUIET)["text"][0] == TEXTS[3]


KILLED = """
import sys, layerscope
from layerscope.embedding import writing
writing.BLOCK = 64
layerscope.embed(sys.argv[1], sys.argv[2], sys.argv[3], layers=[1, 2, 3], progress=False)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_file(model_folder: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "t.txt", tmp_path / "v.parquet"
    texts.write_text("\n".join(some_texts(1500)))
    words = [sys.executable, "-c", KILLED, str(model_folder), str(texts), str(out)]
    parts = tmp_path / ".v.parquet.embedding"
    for count in (2, 5):  # killed twice, each time further on
        process = subprocess.Popen(words)
        while process.poll() is None and len(list(parts.glob("part-*.parquet"))) < count:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not out.exists()
    assert len(list(parts.glob("part-*.parquet"))) >= 5
    subprocess.run(words, check=True)
    assert pq.read_table(out)["text"].to_pylist() == texts.read_text().splitlines()
    assert not parts.exists()


def test_parts_of_other_columns_are_not_used(model: LoadedModel, tmp_path: Path) -> None:
    """Of a run that was stopped at its end; then other values stand beside the same texts."""
    out = tmp_path / "w.parquet"
    stop_at("_join", model, pd.DataFrame({"text": TEXTS[:4], "n": range(4)}), out)
    layerscope.embed(model, pd.DataFrame({"text": TEXTS[:4], "n": [7] * 4}), out, **QUIET)
    assert pq.read_table(out)["n"].to_pylist() == [7] * 4


@pytest.mark.usefixtures("small_blocks")
def test_columns_of_any_name_and_value_are_kept(model: LoadedModel, tmp_path: Path) -> None:
    """Whole numbers fill the first part and decimals the second; long ids are kept exactly."""
    ids = [1234567890123456789 + i for i in range(16)]
    rows = [
        {
            "text": text,
            "x": i,
            "vector": "a",
            "vector_given": "b",
            "odd": "\ud800",
            "n": i if i < 9 else i + 0.5,
            "id": ids[i],
            "mixed": ids[i] if i < 9 else 0.5,
        }
        for i, text in enumerate(TEXTS[:16])
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    table = pq.read_table(layerscope.embed(model, file, tmp_path / "w.parquet", **QUIET))
    names = ["text", "x", "vector_given", "vector_given_given", "odd", "n", "id", "mixed", "vector"]
    assert table.column_names == names
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["vector_given"], first["vector_given_given"], first["odd"]) == ("a", "b", "?")
    assert table["x"].to_pylist() == list(range(16))
    assert table["n"].to_pylist() == [float(row["n"]) for row in rows]
    assert table["id"].to_pylist() == ids
    assert table["mixed"].to_pylist() == [str(row["mixed"]) for row in rows]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_block_is_bounded_by_the_bytes_of_its_vectors(is_remote: bool) -> None:
    assert writing.block_size(4096 * 40, is_remote) * 4 * 4096 * 40 <= 128 * 2**20


def test_vectors_that_are_not_finite_are_an_error() -> None:
    class Broken(Encoder):
        names = ("vector",)

        def open(self) -> None:
            pass

        def encode(self, texts: Any, kind: str, advance: Any) -> Embedded:
            return Embedded([np.array([[1.0, 2.0], [np.nan, 0.0]])], 0)

    message = r"1 of 2 vectors \(vector\) are not finite; the first is of 'second'"
    with pytest.raises(LayerscopeError, match=message):
        Broken().embed(LocalEngine(), ["first", "second"])
