"""Files and folders of somebody else, given to `embed` and `search`: a result, or one line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from layerscope.data import load_corpus
from layerscope.embedding import embed, encode, search, writing
from layerscope.errors import LayerscopeError
from tests.data.workbook import write_workbook
from tests.faults.inputs import mutate
from tests.tiny import build_tiny, tiny_tokenizer

LINES = [f"text {i} of words" for i in range(20)]
META = b"layerscope"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sentence_transformers import SentenceTransformer, models

    home = tmp_path_factory.mktemp("encoder")
    build_tiny("bert").save_pretrained(home / "bare")
    tiny_tokenizer().save_pretrained(home / "bare")
    words = models.Transformer(str(home / "bare"))
    width = words.get_embedding_dimension()
    SentenceTransformer(modules=[words, models.Pooling(width), models.Dense(width, 8)]).save(
        str(home / "model")
    )
    return home / "model"


@pytest.fixture(scope="module")
def vectors(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embed(encoder, LINES, tmp_path_factory.mktemp("vectors") / "v.parquet", progress=False)


def nans(table: pa.Table) -> pa.Table:
    width = table.schema.field("vector").type.list_size
    flat = pa.array(np.full(width * len(table), np.nan, np.float32))
    return replaced(table, pa.FixedSizeListArray.from_arrays(flat, width))


def replaced(table: pa.Table, column: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index("vector"), "vector", column)


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no vectors": lambda table: table.drop(["vector"]),
    "short ones": lambda table: replaced(
        table, pa.array([[1.0, 2.0]] * 20, pa.list_(pa.float32(), 2))
    ),
    "texts": lambda table: replaced(table, pa.array(["x"] * 20)),
    "nothing": lambda table: replaced(table, pa.nulls(20, table.schema.field("vector").type)),
    "no numbers": nans,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_only_says_that_embed_wrote_it(
    encoder: Path, vectors: Path, tmp_path: Path, change: str
) -> None:
    table = pq.read_table(vectors)
    pq.write_table(
        CHANGES[change](table).replace_schema_metadata(table.schema.metadata),
        tmp_path / "a.parquet",
    )
    with pytest.raises(LayerscopeError, match="does not hold the vectors") as caught:
        search(encoder, "words", tmp_path / "a.parquet", progress=False)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "told", [b'{"model": 3}', b'{"model": {"name": "\\u001b[31m"}}', b"[" * 100_000, b"{"]
)
def test_what_a_file_says_of_itself_may_be_anything(
    encoder: Path, vectors: Path, tmp_path: Path, told: bytes
) -> None:
    pq.write_table(
        pq.read_table(vectors).replace_schema_metadata({META: told}), tmp_path / "a.parquet"
    )
    with pytest.raises(LayerscopeError) as caught:
        search(encoder, "words", tmp_path / "a.parquet", progress=False)
    assert "\x1b" not in str(caught.value)


def test_code_and_pickles_of_a_folder_are_not_run(encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "model"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(
        json.dumps([*modules, {"idx": 3, "name": "3", "path": "", "type": "evil.Evil"}])
    )
    with pytest.raises(LayerscopeError, match="code of the folder's own is not run"):
        embed(folder, LINES, tmp_path / "v.parquet", progress=False)
    assert not (tmp_path / "ran").exists()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(LayerscopeError, match="no weights as safetensors"):
        embed(folder, LINES, tmp_path / "v.parquet", progress=False)


def test_a_damaged_part_is_read_again(
    encoder: Path, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was killed: one bit of one number, which parquet by itself would not notice."""
    with monkeypatch.context() as patched:
        patched.setattr(writing.Parts, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    (part,) = tmp_path.rglob("part-*.parquet")
    whole = np.asarray(
        pq.read_table(vectors)["vector"].combine_chunks().flatten(), dtype=np.float32
    )
    raw = bytearray(part.read_bytes())
    place = raw.find(whole[:4].tobytes())
    assert place > 0
    raw[place + 2] ^= 0x40
    part.write_bytes(raw)
    done = embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    np.testing.assert_allclose(
        pq.read_table(done)["vector"].combine_chunks().flatten().to_numpy(), whole, atol=1e-6
    )


def test_mutated_workbooks(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [["text", "n"], *([f"words {i}", i] for i in range(9))]
    write_workbook(tmp_path / "a.xlsx", rows)
    with zipfile.ZipFile(tmp_path / "a.xlsx") as packed:
        held = {name: packed.read(name) for name in packed.namelist()}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        name = sorted(held)[int(rng.integers(len(held)))]
        with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as packed:
            for one, content in held.items():
                packed.writestr(one, mutate(content, rng) if one == name else content)
        with contextlib.suppress(LayerscopeError):  # anything else is a defect
            load_corpus(tmp_path / "b.xlsx")


def test_a_folder_with_another_head_or_tokenizer_is_another_model(
    encoder: Path, vectors: Path, tmp_path: Path
) -> None:
    for name in ("2_Dense/model.safetensors", "tokenizer.json"):
        folder = Path(shutil.copytree(encoder, tmp_path / name.replace("/", "-") / encoder.name))
        if name.startswith("2"):
            save_file(
                {key: 2 * one for key, one in load_file(folder / name).items()},
                folder / name,
                {"format": "pt"},
            )
        else:
            (folder / name).write_text(
                json.dumps(
                    {**json.loads((folder / name).read_text()), "truncation": None}, indent=1
                )
            )
        with pytest.raises(LayerscopeError, match="and other settings"):
            search(folder, "words", vectors, progress=False)


def test_what_a_folder_takes_of_how_a_model_is_read(encoder: Path) -> None:
    long = "words " * 40
    plain = encode(encoder, [long], progress=False)
    assert np.abs(encode(encoder, [long], max_length=4, progress=False) - plain).max() > 1e-4
    assert np.abs(encode(encoder, [long], dtype="bfloat16", progress=False) - plain).max() > 0
    for ways in ({"adapters": ["x"]}, {"tokenizer": tiny_tokenizer()}, {"bidirectional": True}):
        with pytest.raises(LayerscopeError, match=f"takes no {next(iter(ways))}="):
            encode(encoder, LINES, progress=False, **ways)


def test_a_folder_whose_transformer_is_in_a_folder_of_its_own(
    encoder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "model"))
    (folder / "0_Transformer").mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_allclose(
        encode(folder, LINES, progress=False), encode(encoder, LINES, progress=False), atol=1e-5
    )


def test_layers_as_any_numbers(encoder: Path) -> None:
    expected = encode(encoder, LINES, layers=[0, 1], progress=False)
    for layers in (np.arange(2), {1, 0}, range(2)):
        assert np.array_equal(encode(encoder, LINES, layers=layers, progress=False), expected)
    assert np.array_equal(encode(encoder, LINES, layers=np.int64(1), progress=False), expected[1])


def stopped(encoder: Path, out: Path) -> Path:
    """The working folder of a run of `embed` that was stopped before its parts became one file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing.Parts, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed(encoder, LINES, out, progress=False)
    return out.with_name(f".{out.name}.embedding")


def numbers(file: Path) -> np.ndarray:
    return np.stack(pq.read_table(file)["vector"].to_pylist())


LEFT: dict[str, Callable[[Path], Any]] = {
    "half a part": lambda work: os.truncate(work / "part-000000.parquet", 900),
    "what a killed writer left": lambda work: (
        work / ".part-000000.parquet.9-0a1b2c3d.part"
    ).write_text("{"),
    "files of the user": lambda work: [
        (work / name).write_text("mine") for name in ("notes.txt", "part-mine.parquet")
    ],
}


@pytest.mark.parametrize("how", LEFT)
def test_a_stopped_run_goes_on_from_whatever_is_left(
    encoder: Path, vectors: Path, tmp_path: Path, how: str
) -> None:
    work = stopped(encoder, tmp_path / "v.parquet")
    LEFT[how](work)
    mine = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if "mine" in path.name or path.name == "notes.txt"
    }
    done = embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    np.testing.assert_allclose(numbers(done), numbers(vectors), atol=1e-6)
    assert {path: path.read_bytes() for path in mine} == mine
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_that_was_killed_at_its_very_end_leaves_nothing(
    encoder: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing.Parts, "clear", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    assert (tmp_path / ".v.parquet.embedding" / "part-000000.parquet").exists()
    embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"v.parquet"}


def test_only_a_file_that_embed_wrote_is_replaced(encoder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": LINES}), mine)
    before = mine.read_bytes()
    for given in ({}, {"overwrite": True}):
        with pytest.raises(LayerscopeError, match="is not a file that embed wrote, and stays"):
            embed(encoder, mine, mine, progress=False, **given)
    assert mine.read_bytes() == before
    done = embed(encoder, mine, tmp_path / "v.parquet", progress=False)
    (tmp_path / "link.parquet").symlink_to(done)
    embed(encoder, LINES[:9], tmp_path / "link.parquet", progress=False, overwrite=True)
    assert (tmp_path / "link.parquet").is_symlink()
    assert len(numbers(done)) == 9
