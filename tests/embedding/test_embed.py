"""`encode`, `embed` and `search`: the same vectors however they are asked for, kept columns, and
runs that were stopped."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import layerscope
from layerscope.core.heads import unit
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.embedding.encoders import Embedded, Encoder, LayerEncoder
from layerscope.embedding.writing import Parts, facts_of
from layerscope.engines import LocalEngine
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, RunFolderError
from layerscope.exporting.verifying import pooled_vectors
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

TEXTS = some_texts(30)


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def test_all_layers_in_one_pass_are_what_each_gives_alone(model) -> None:
    every = layerscope.encode(model, TEXTS, layers="all", progress=False)
    assert every.shape == (4, 30, 32)
    for layer in (0, 2, -1):
        assert np.allclose(
            layerscope.encode(model, TEXTS, layers=layer, progress=False), every[layer], atol=1e-5
        )
    ids = model.tokenize(TEXTS).ids
    assert np.allclose(pooled_vectors(model, ids, 2, Readout()), every[2], atol=1e-5)
    assert np.allclose(
        layerscope.encode(model, TEXTS, layers=[3, 1], progress=False), every[[3, 1]], atol=1e-5
    )


def test_a_centered_readout_subtracts_the_mean_of_the_texts(model) -> None:
    found = layerscope.encode(
        model, TEXTS, layers=1, readout="plain/mean/raw/keep/corpus", progress=False
    )
    assert np.abs(found.mean(0)).max() < 1e-5


@pytest.mark.parametrize("layers", ["some", 9, [-6], []])
def test_layers_that_do_not_exist(model, layers) -> None:
    with pytest.raises(InvalidValueError, match=r"layers are|has layers 0 to 3"):
        layerscope.encode(model, TEXTS, layers=layers, progress=False)


def test_a_file_of_vectors_keeps_columns_and_resumes(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"doc": {"text": text}, "stars": i if i < 25 else "many", "when": None}
        for i, text in enumerate(TEXTS)
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(Parts, "__init__", _small(Parts.__init__))
    out, read = tmp_path / "vectors.parquet", []
    encode = LayerEncoder.encode

    def stopped(self, texts, kind, advance):
        read.append(len(texts))
        if len(read) == 3:
            raise KeyboardInterrupt
        return encode(self, texts, kind, advance)

    monkeypatch.setattr(LayerEncoder, "encode", stopped)
    ways = {"column": "doc.text", "layers": [1, 3], "progress": False}
    with pytest.raises(KeyboardInterrupt):
        layerscope.embed(model, file, out, **ways)
    assert not out.exists()
    layerscope.embed(model, file, out, **ways)
    assert read == [8, 8, 8, 8, 6]  # the first two blocks are not read again
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".vectors")] == []
    table = pq.read_table(out)
    assert table.column_names == ["text", "doc", "stars", "when", "layer_1", "layer_3"]
    assert table.column("stars").to_pylist()[:2] == ["0", "1"]  # told as text: some are not numbers
    every = layerscope.encode(model, TEXTS, layers=[1, 3], progress=False)
    assert np.allclose(np.stack(table.column("layer_3").to_pylist()), every[1], atol=1e-5)
    before = len(read)
    layerscope.embed(model, file, out, **ways)  # finished: nothing is read
    assert len(read) == before
    with pytest.raises(RunFolderError, match="other vectors or texts"):
        layerscope.embed(model, file, out, **{**ways, "layers": [2]})


def _small(make):
    def init(self, *given):
        make(self, *given)
        self.size = 8

    return init


def test_texts_that_are_cut_are_counted_and_told_once(
    model, tmp_path: Path, monkeypatch, caplog, here
) -> None:
    monkeypatch.setattr("layerscope.embedding.writing.BLOCK", 10)
    texts = [*TEXTS[:25], *(f"{text} and more of it" for text in TEXTS[25:])]
    long = sum(len(ids) > 50 for ids in model.tokenizer(texts)["input_ids"])
    assert 0 < long < len(texts)
    layerscope.embed(model, texts, tmp_path / "v.parquet", max_length=50, progress=False)
    assert caplog.text.count(f"{long} of 30 texts are longer than 50 tokens, and were cut") == 1
    assert facts_of(tmp_path / "v.parquet")["cut"] == long
    folder = layerscope.export(model, 2, out=tmp_path / "cut", max_length=50).path
    caplog.clear()
    layerscope.encode(str(folder), texts, progress=False)
    assert caplog.text.count(f"{long} of 30 texts are longer than the folder reads") == 1
    caplog.clear()
    layerscope.encode(str(folder), ["short", "texts"], progress=False)
    assert not caplog.text


def test_search_finds_what_is_there_and_reads_vectors_that_are_there(
    model, tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "vectors.parquet"
    ways = {"layers": 2, "readout": "plain/mean/raw", "progress": False}
    layerscope.embed(model, pd.DataFrame({"text": TEXTS, "n": range(30)}), file, **ways)
    assert facts_of(file)["rows"] == 30
    direct = layerscope.search(model, TEXTS[4], TEXTS, top=3, **ways)
    assert direct["text"][0] == TEXTS[4]
    assert direct["cosine"][0] == pytest.approx(1, abs=1e-5)
    stored = layerscope.search(model, TEXTS[4], file, top=3, **ways)
    assert list(stored["text"]) == list(direct["text"])
    assert stored["n"][0] == 4
    vectors = layerscope.encode(model, TEXTS, **ways)
    order = np.argsort(-(unit(vectors) @ unit(vectors)[4]))[:3]
    assert list(direct["text"]) == [TEXTS[i] for i in order]
    with pytest.raises(DataError, match="and other settings"):
        layerscope.search(model, "x", file, **{**ways, "layers": 1})
    table = pq.read_table(file)
    pq.write_table(table.drop_columns("vector"), file)
    with pytest.raises(DataError, match="does not hold the vectors"):
        layerscope.search(model, "x", file, **ways)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="parquet"):
        layerscope.search(model, "x", file, **ways)
    with pytest.raises(InvalidValueError, match="a question with words"):
        layerscope.search(model, " ", TEXTS)


def test_rows_without_a_text_are_left_out_and_vectors_need_a_parquet_file(
    model, tmp_path: Path
) -> None:
    out = layerscope.embed(model, ["one", "", "two words"], tmp_path / "v.parquet", progress=False)
    assert pq.read_table(out).column("text").to_pylist() == ["one", "two words"]
    with pytest.raises(InvalidValueError, match=r"\.parquet"):
        layerscope.embed(model, TEXTS, tmp_path / "v.csv")
    with pytest.raises(InvalidValueError, match="fitted on texts"):
        layerscope.embed(model, TEXTS, tmp_path / "w.parquet", readout="plain/mean/raw/keep/corpus")


class Away(LocalEngine):
    """Workers as they are elsewhere: what they are sent is pickled, and they load the model
    themselves."""

    remote = True

    def run(self, work, items, advance=lambda n: None):
        yield from super().run(pickle.loads(pickle.dumps(work)), items, advance)


def test_workers_give_the_same_vectors(model_folder: Path, tmp_path: Path) -> None:
    ways = {"layers": [1, 3], "progress": False}
    here = layerscope.encode(str(model_folder), TEXTS, **ways)
    there = layerscope.encode(str(model_folder), TEXTS, **ways, engine=Away())
    assert np.allclose(here, there, atol=1e-5)
    out = layerscope.embed(str(model_folder), TEXTS, tmp_path / "v.parquet", **ways, engine=Away())
    assert np.allclose(
        np.stack(pq.read_table(out).column("layer_3").to_pylist()), here[1], atol=1e-5
    )


@pytest.mark.usefixtures("here")
def test_an_exported_folder_is_read_as_it_says_itself(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    layerscope.export(tiny_model("llama"), 2, readout="plain/mean/raw", out=folder, normalize=True)
    found = layerscope.encode(str(folder), TEXTS, progress=False)
    expected = layerscope.encode(
        tiny_model("llama"), TEXTS, layers=2, readout="plain/mean/raw", progress=False
    )
    assert np.allclose(found, unit(expected), atol=1e-4)
    out = layerscope.embed(str(folder), TEXTS, tmp_path / "v.parquet", progress=False)
    assert (
        layerscope.search(str(folder), TEXTS[3], out, top=1, progress=False)["text"][0] == TEXTS[3]
    )


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
    table = pq.read_table(out)
    assert table.column("text").to_pylist() == texts.read_text().splitlines()
    assert not parts.exists()


def test_other_texts_or_columns_are_never_taken_for_those_of_a_file(
    model, tmp_path: Path, monkeypatch
) -> None:
    out = tmp_path / "v.parquet"
    layerscope.embed(model, TEXTS[:4], out, progress=False)
    for other in (TEXTS[4:8], pd.DataFrame({"text": TEXTS[:4], "n": range(4)})):
        with pytest.raises(RunFolderError, match="other vectors or texts"):
            layerscope.embed(model, other, out, progress=False)
    with (
        monkeypatch.context() as patched
    ):  # a run that is stopped at its end, then other values beside the same texts
        patched.setattr(Parts, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            layerscope.embed(
                model,
                pd.DataFrame({"text": TEXTS[:4], "n": range(4)}),
                tmp_path / "w.parquet",
                progress=False,
            )
    layerscope.embed(
        model,
        pd.DataFrame({"text": TEXTS[:4], "n": [7] * 4}),
        tmp_path / "w.parquet",
        progress=False,
    )
    assert pq.read_table(tmp_path / "w.parquet")["n"].to_pylist() == [7] * 4


def test_columns_of_any_name_and_value_are_kept(model, tmp_path: Path, monkeypatch) -> None:
    rows = [{"text": text, "x": i, "vector": "a", "vector_given": "b", "odd": "\ud800", "n": i if i < 9 else i + 0.5}
            for i, text in enumerate(TEXTS[:16])]  # fmt: skip
    monkeypatch.setattr(Parts, "__init__", _small(Parts.__init__))
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    table = pq.read_table(layerscope.embed(model, file, tmp_path / "w.parquet", progress=False))
    assert table.column_names == [
        "text",
        "x",
        "vector_given",
        "vector_given_given",
        "odd",
        "n",
        "vector",
    ]
    assert table["x"].to_pylist() == list(range(16))
    assert (
        table["vector_given"][0].as_py(),
        table["vector_given_given"][0].as_py(),
        table["odd"][0].as_py(),
    ) == ("a", "b", "?")
    assert table["n"].to_pylist() == [
        float(row["n"]) for row in rows
    ]  # whole numbers in one block, others in the next


def test_a_block_is_bounded_by_the_bytes_of_its_vectors(model, tmp_path: Path) -> None:
    encoder = LayerEncoder(model, None, [1], Readout(), 256)
    encoder.width, encoder.names = 4096, ("a",) * 40
    for remote in (False, True):
        assert Parts(tmp_path, encoder, "", remote, False).size * 4 * 4096 * 40 <= 128 * 2**20


def test_a_search_reads_its_texts_once_to_count_and_once_to_find(model, monkeypatch) -> None:
    opened = []
    read = TextStream.read
    monkeypatch.setattr(
        TextStream, "read", lambda self, whole: opened.append(whole) or read(self, whole)
    )
    layerscope.search(model, TEXTS[4], TEXTS, layers=1, progress=False)
    assert opened == [False, True]


def test_a_file_of_several_layers_is_searched_at_one_of_them(model, tmp_path: Path) -> None:
    file = layerscope.embed(model, TEXTS, tmp_path / "v.parquet", layers=[0, 2], progress=False)
    for layer in (0, [2]):
        found = layerscope.search(model, TEXTS[4], file, layers=layer, top=3, progress=False)
        assert list(found["text"]) == list(
            layerscope.search(model, TEXTS[4], TEXTS, layers=layer, top=3, progress=False)["text"]
        )
    with pytest.raises(InvalidValueError, match="one layer"):
        layerscope.search(model, TEXTS[4], TEXTS, layers=[0, 2], progress=False)
    with pytest.raises(DataError, match="and other settings"):
        layerscope.search(model, TEXTS[4], file, layers=1, progress=False)


def test_vectors_that_are_not_finite_are_not_written():
    class Broken(Encoder):
        names = ("vector",)

        def open(self) -> None:
            pass

        def encode(self, texts, kind, advance):
            return Embedded([np.array([[1.0, 2.0], [np.nan, 0.0]])], 0)

    with pytest.raises(
        LayerscopeError, match=r"1 of 2 vectors \(vector\) are not finite; the first is of 'second'"
    ):
        Broken().embed(LocalEngine(), ["first", "second"])
