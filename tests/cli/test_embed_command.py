"""`layerscope embed`, `search` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.support import Cli, assert_refused
from tests.improving.test_improve import some_texts


def test_from_texts_to_an_answer(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("n;text\n" + "\n".join(f"{i};{text}" for i, text in enumerate(some_texts(30))))
    options = ("--layers", "1", "--max-length", 64)
    ended = cli("embed", model_folder, "--data", texts, *options, "--out", "vectors.parquet")
    assert (ended.code, ended.out.strip()) == (0, "vectors.parquet")
    assert pq.read_table("vectors.parquet").column_names == ["text", "n", "vector"]
    search = ("search", model_folder, some_texts(30)[7], "--top", 2)
    ended = cli(*search, "--data", "vectors.parquet", *options, "--json")
    assert json.loads(ended.out)[0]["text"] == some_texts(30)[7]
    ended = cli(*search, "--data", texts, *options)
    assert some_texts(30)[7] in " ".join(ended.out.split())
    next_step = f"layerscope embed {model_folder} --data {texts} --layers 1 --max-length 64 --out"
    assert f"Next: {next_step}" in ended.err
    two = ("--layers", "0,2", "--readout", "plain/mean/raw", "--out", "two.parquet")
    ended = cli("embed", model_folder, "--data", texts, *two)
    next_step = "--data two.parquet --layers 2 --readout plain/mean/raw"
    assert ended.err.splitlines()[-1].endswith(next_step)
    assert_refused(cli(*search, "--data", texts, "--layers", "9"), "layer 9 does not exist")
    ended = cli("embed", model_folder, "--data", texts, "--out", "vectors.csv")
    assert_refused(ended, "vectors are written to a .parquet file")


def test_compare_names_its_flags(cli: Cli, model_folder: Path, data: Path) -> None:
    assert_refused(cli("compare", model_folder, "--data", data), "two models or more")
    data.write_text("\n".join(some_texts(60)))
    ended = cli("compare", model_folder, "smollm-135m", "--data", data)
    assert_refused(ended, "Did you mean 'smollm2-135m'?")
    other = model_folder.with_name("other")
    other.symlink_to(model_folder)
    ended = cli("compare", model_folder, other, "--data", data)
    assert ended.code == 0, ended
    assert "give labels= to know" in " ".join(ended.out.split())
    # The folder, not its name alone.
    assert f"Next: layerscope improve {model_folder.parent}/" in ended.err
