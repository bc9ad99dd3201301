"""Files and folders of somebody else, given to `embed` and `search`: a result, or one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from layerscope.embedding import embed, encode, search
from layerscope.errors import LayerscopeError
from tests.embedding.support import stop_at
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
    modules = [words, models.Pooling(width), models.Dense(width, 8)]
    SentenceTransformer(modules=modules).save(str(home / "model"))
    return home / "model"


@pytest.fixture(scope="module")
def vectors(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embed(encoder, LINES, tmp_path_factory.mktemp("vectors") / "v.parquet", progress=False)


def numbers(file: Path) -> np.ndarray:
    return np.stack(pq.read_table(file)["vector"].to_pylist())


def replaced(table: pa.Table, column: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index("vector"), "vector", column)


def nans(table: pa.Table) -> pa.Table:
    width = table.schema.field("vector").type.list_size
    flat = pa.array(np.full(width * len(table), np.nan, np.float32))
    return replaced(table, pa.FixedSizeListArray.from_arrays(flat, width))


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
def test_a_file_without_the_vectors_that_it_names(
    encoder: Path, vectors: Path, tmp_path: Path, change: str
) -> None:
    table = pq.read_table(vectors)
    changed = CHANGES[change](table).replace_schema_metadata(table.schema.metadata)
    pq.write_table(changed, tmp_path / "a.parquet")
    with pytest.raises(LayerscopeError, match="does not hold the vectors") as caught:
        search(encoder, "words", tmp_path / "a.parquet", progress=False)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "record", [b'{"model": 3}', b'{"model": {"name": "\\u001b[31m"}}', b"[" * 100_000, b"{"]
)
def test_a_file_with_a_damaged_record(
    encoder: Path, vectors: Path, tmp_path: Path, record: bytes
) -> None:
    table = pq.read_table(vectors).replace_schema_metadata({META: record})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(LayerscopeError) as caught:
        search(encoder, "words", tmp_path / "a.parquet", progress=False)
    assert "\x1b" not in str(caught.value)


def test_code_and_pickles_of_a_folder_are_not_run(encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "model"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass")
    modules = json.loads((folder / "modules.json").read_text())
    evil = {"idx": 3, "name": "3", "path": "", "type": "evil.Evil"}
    (folder / "modules.json").write_text(json.dumps([*modules, evil]))
    with pytest.raises(LayerscopeError, match="code of the folder's own is not run"):
        embed(folder, LINES, tmp_path / "v.parquet", progress=False)
    assert not (tmp_path / "ran").exists()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(LayerscopeError, match="no weights as safetensors"):
        embed(folder, LINES, tmp_path / "v.parquet", progress=False)


def test_a_folder_with_another_head_or_tokenizer_is_another_model(
    encoder: Path, vectors: Path, tmp_path: Path
) -> None:
    head = Path(shutil.copytree(encoder, tmp_path / "head" / encoder.name))
    file = head / "2_Dense" / "model.safetensors"
    doubled = {name: 2 * tensor for name, tensor in load_file(file).items()}
    save_file(doubled, file, {"format": "pt"})
    words = Path(shutil.copytree(encoder, tmp_path / "words" / encoder.name))
    settings = json.loads((words / "tokenizer.json").read_text())
    (words / "tokenizer.json").write_text(json.dumps({**settings, "truncation": None}, indent=1))
    for folder in (head, words):
        with pytest.raises(LayerscopeError, match="and other settings"):
            search(folder, "words", vectors, progress=False)


def test_options_of_a_folder(encoder: Path, tmp_path: Path) -> None:
    long = ["words " * 40]
    plain = encode(encoder, long, progress=False)
    for options in ({"max_length": 4}, {"dtype": "bfloat16"}):
        assert np.abs(encode(encoder, long, progress=False, **options) - plain).max() > 0
    for options in ({"adapters": ["x"]}, {"tokenizer": tiny_tokenizer()}, {"bidirectional": True}):
        with pytest.raises(LayerscopeError, match=f"takes no {next(iter(options))}="):
            encode(encoder, LINES, progress=False, **options)
    folder = Path(shutil.copytree(encoder, tmp_path / "model"))
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            path.rename(folder / "0_Transformer" / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_allclose(encode(folder, long, progress=False), plain, atol=1e-5)


def flip(work: Path, vectors: Path) -> None:
    """Change one bit of one number, which parquet by itself would not notice."""
    part = work / "part-000000.parquet"
    raw = bytearray(part.read_bytes())
    place = raw.find(numbers(vectors)[0].astype(np.float32).tobytes())
    assert place > 0
    raw[place + 2] ^= 0x40
    part.write_bytes(raw)


LEFT: dict[str, Callable[[Path, Path], Any]] = {
    "a changed bit": flip,
    "half a part": lambda work, _: os.truncate(work / "part-000000.parquet", 900),
    "the file of a killed writer": lambda work, _: (
        work / ".part-000000.parquet.9-0a1b2c3d.part"
    ).write_text("{"),
    "files of the user": lambda work, _: [
        (work / name).write_text("mine") for name in ("notes.txt", "part-mine.parquet")
    ],
}


@pytest.mark.parametrize("how", LEFT)
def test_a_stopped_run_goes_on_from_whatever_is_left(
    encoder: Path, vectors: Path, tmp_path: Path, how: str
) -> None:
    work = stop_at("_join", encoder, LINES, tmp_path / "v.parquet")
    LEFT[how](work, vectors)
    before = {path: path.read_bytes() for path in work.glob("*") if path.suffix != ".part"}
    users = {path: raw for path, raw in before.items() if raw == b"mine"}
    done = embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    np.testing.assert_allclose(numbers(done), numbers(vectors), atol=1e-6)
    assert {path: path.read_bytes() for path in users} == users
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_that_was_killed_at_its_very_end_leaves_nothing(
    encoder: Path, tmp_path: Path
) -> None:
    work = stop_at("_clear", encoder, LINES, tmp_path / "v.parquet")
    assert (work / "part-000000.parquet").exists()
    embed(encoder, LINES, tmp_path / "v.parquet", progress=False)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"v.parquet"}


def test_only_a_file_that_embed_wrote_is_replaced(encoder: Path, tmp_path: Path) -> None:
    own = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": LINES}), own)
    before = own.read_bytes()
    for overwrite in (False, True):
        with pytest.raises(LayerscopeError, match="is not a file that embed wrote, and stays"):
            embed(encoder, own, own, progress=False, overwrite=overwrite)
    assert own.read_bytes() == before
    done = embed(encoder, own, tmp_path / "v.parquet", progress=False)
    (tmp_path / "link.parquet").symlink_to(done)
    embed(encoder, LINES[:9], tmp_path / "link.parquet", progress=False, overwrite=True)
    assert (tmp_path / "link.parquet").is_symlink()
    assert len(numbers(done)) == 9
