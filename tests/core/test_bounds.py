"""Bombs: small files that ask for all the memory. Each is refused in one line, before it is
unpacked."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from layerscope.core import bounds
from layerscope.core.runs import load_run
from layerscope.data import load_corpus
from layerscope.data.images import load_images
from layerscope.errors import LayerscopeError
from layerscope.models import load
from layerscope.selection.labels.read import read_labels
from layerscope.store import checked
from layerscope.store.verify import check_tree
from tests.report.synthetic import synthetic_run

LEAST = 2**20


def packed_line(folder: Path) -> None:
    (folder / "texts.txt.gz").write_bytes(gzip.compress(b"a" * 3 * LEAST))
    load_corpus(folder / "texts.txt.gz")


def packed_lines(folder: Path) -> None:
    (folder / "texts.txt.gz").write_bytes(gzip.compress(b"some words\n" * LEAST))
    load_corpus(folder / "texts.txt.gz")


def packed_utf16(folder: Path) -> None:
    (folder / "texts.txt.gz").write_bytes(gzip.compress(("a\n" * 2 * LEAST).encode("utf-16")))
    load_corpus(folder / "texts.txt.gz", encoding="utf-16")


def packed_list(folder: Path) -> None:
    (folder / "texts.json.gz").write_bytes(gzip.compress(b"[\n" + b'"a",\n' * 2 * LEAST))
    load_corpus(folder / "texts.json.gz")


def packed_short_lines(folder: Path) -> None:
    """Few letters, and a text for each two of them."""
    (folder / "texts.txt.gz").write_bytes(gzip.compress(b"ab\n" * (LEAST // 4)))
    load_corpus(folder / "texts.txt.gz")


def packed_values(folder: Path) -> None:
    """Few letters, and an object in memory for each three of them."""
    (folder / "texts.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "a", "x": [' + b"[]," * (LEAST // 4) + b"0]}")
    )
    load_corpus(folder / "texts.jsonl.gz")


def packed_fields(folder: Path) -> None:
    (folder / "texts.csv.gz").write_bytes(gzip.compress(b"text" + b";" * (LEAST // 2) + b"\n"))
    load_corpus(folder / "texts.csv.gz", column="text")


def packed_labels(folder: Path) -> None:
    (folder / "labels.csv.gz").write_bytes(
        gzip.compress(b'text,label\n"' + b"a\n" * 2 * LEAST + b'",0\n')
    )
    read_labels(folder / "labels.csv.gz")


def long_line(folder: Path) -> None:
    with (folder / "texts.txt").open("wb") as stream:
        stream.truncate(2**40)  # a file with a hole takes no room on the disk
    load_corpus(folder / "texts.txt")


def one_cell(folder: Path) -> None:
    pd.DataFrame({"text": ["a" * 3 * LEAST]}).to_parquet(
        folder / "texts.parquet", compression="zstd"
    )
    load_corpus(folder / "texts.parquet")


def shared_cell(folder: Path) -> None:
    """One value that every row means: what the file declares is small."""
    pd.DataFrame({"text": ["a" * (LEAST // 4)] * 600}).to_parquet(
        folder / "texts.parquet", compression="zstd"
    )
    load_corpus(folder / "texts.parquet")


def many_rows(folder: Path) -> None:
    pd.DataFrame({"text": ["a"] * 600_000}).to_parquet(folder / "texts.parquet", compression="zstd")
    load_corpus(folder / "texts.parquet")


def image_cells(folder: Path) -> None:
    pd.DataFrame({"image": [b"\0" * (LEAST // 4)] * 600}).to_parquet(
        folder / "images.parquet", compression="zstd"
    )
    load_images(folder / "images.parquet")


def wide_image(folder: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4000, 3000)).save(stream, "PNG")
    (folder / "wide.png").write_bytes(stream.getvalue())
    load_images(folder, workers=0)


def many_labels(folder: Path) -> None:
    file = folder / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_labels": 10**9}))
    load(folder / "model")


def inner_labels(folder: Path) -> None:
    file = folder / "model" / "config.json"
    file.write_text(
        json.dumps(
            {**json.loads(file.read_text()), "other_config": {"deeper": {"num_labels": 10**9}}}
        )
    )
    load(folder / "model")


def rows_of_a_run(folder: Path) -> None:
    synthetic_run().save(folder / "run")
    table = pd.read_parquet(folder / "run" / "profile.parquet")
    pd.concat([table] * (600_000 // len(table) + 1)).to_parquet(
        folder / "run" / "profile.parquet", index=False, compression="zstd"
    )
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    bare = {name: value for name, value in manifest.items() if name not in ("checksum", "tables")}
    (folder / "run" / "manifest.json").write_text(json.dumps(bare))
    load_run(folder / "run")


def arrays(folder: Path) -> None:
    np.savez_compressed(folder / "values.npz", a=np.zeros(3 * LEAST // 8))
    checked.read_arrays(folder / "values.npz")


def declared_arrays(folder: Path) -> None:
    """Numpy makes room for what a header declares, before it sees that there is less."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    )
    with zipfile.ZipFile(folder / "values.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue())
    checked.read_arrays(folder / "values.npz")


@pytest.mark.parametrize(
    "make",
    [
        packed_line, packed_lines, packed_utf16, packed_list, packed_short_lines, packed_values,
        packed_fields, packed_labels, long_line, one_cell, shared_cell, many_rows,
        image_cells, wide_image, many_labels, inner_labels, rows_of_a_run, arrays, declared_arrays,
    ],
)  # fmt: skip
def test_bombs(
    make: Callable[[Path], None],
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    monkeypatch.setattr(bounds, "_LEAST", LEAST)
    monkeypatch.setattr(bounds, "MOST_LINE", 4 * LEAST)
    with pytest.raises(
        LayerscopeError, match=r"of a file of its size|than is read|which cannot be"
    ) as caught:
        make(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_verify_inflates_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic_run().save(tmp_path)
    (tmp_path / "shards").mkdir()
    np.savez_compressed(tmp_path / "shards" / "000000.values.npz", a=np.zeros(8 * LEAST))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    checked.write_json(tmp_path / "manifest.json", {**manifest, "owned": ["shards"]})
    monkeypatch.setattr(bounds, "_LEAST", LEAST)
    tracemalloc.start()
    (found,) = [check for check in check_tree(tmp_path) if check.path.suffix == ".npz"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.status == "damaged"
    assert "of a file of its size" in found.reason
    assert peak < 4 * LEAST


def test_a_long_field_of_a_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MB are the limit; a field of that length takes seconds, so that a thousandth is taken for
    it."""
    set_limit = csv.field_size_limit
    before, asked = set_limit(), set()

    def smaller(size: int | None = None) -> int:
        asked.add(size)
        return 0 if size is None else set_limit(size >> 10)

    monkeypatch.setattr(csv, "field_size_limit", smaller)
    (tmp_path / "texts.csv").write_bytes(b"text" + b"a" * 2**16)
    try:
        with pytest.raises(LayerscopeError, match="field larger than field limit"):
            load_corpus(tmp_path / "texts.csv")
    finally:
        set_limit(before)
    assert asked == {None, 2**26}


def test_what_is_packed_as_usual_is_read(tmp_path: Path) -> None:
    lines = [f"text {i} with some words" for i in range(2000)]
    (tmp_path / "texts.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    pd.DataFrame({"text": lines}).to_parquet(tmp_path / "texts.parquet")
    pd.DataFrame({"text": ["the same", "words"] * 1000}).to_parquet(tmp_path / "same.parquet")
    assert list(load_corpus(tmp_path / "texts.txt.gz").texts) == lines
    assert list(load_corpus(tmp_path / "texts.parquet").texts) == lines
    assert list(load_corpus(tmp_path / "same.parquet").texts) == ["the same", "words"] * 1000


def test_the_bounds_are_those_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """SECURITY.md has the numbers."""
    assert bounds.most_unpacked(1000) == bounds.MOST_LINE == 256 * 2**20
    assert bounds.most_unpacked(10 * 2**20) == 200 * 10 * 2**20
    monkeypatch.setattr(bounds, "_LEAST", 100 * (1 + 64))
    assert len(list(bounds.bounded_lines(io.StringIO("\n" * 100), "a file", 1))) == 100
    with pytest.raises(LayerscopeError, match="more than is read"):
        list(bounds.bounded_lines(io.StringIO("\n" * 101), "a file", 1))
