"""`layerscope embed`, `search` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.support import Cli, assert_refused
from tests.improving.test_improve import some_texts


def test_from_texts_to_an_answer(
    cli: Cli, model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("n;text\n" + "\n".join(f"{i};{text}" for i, text in enumerate(some_texts(30))))
    words = ("--data", texts, "--layers", "1", "--max-length", 64)
    ended = cli("embed", model_folder, *words, "--out", "vectors.parquet")
    assert (ended.code, ended.out.strip()) == (0, "vectors.parquet")
    assert caplog.text.count("separated by ';'") == 1
    assert pq.read_table("vectors.parquet").column_names == ["text", "n", "vector"]
    query = some_texts(30)[7]
    found = cli(
        "search", model_folder, query, "--data", "vectors.parquet", *words[2:], "--top", 2, "--json"
    )
    assert json.loads(found.out)[0]["text"] == query
    shown = cli("search", model_folder, query, *words, "--top", 2)
    assert query in " ".join(shown.out.split())
    assert (
        f"Next: layerscope embed {model_folder} --data {texts} --layers 1 --max-length 64 --out"
        in shown.err
    )
    ended = cli(
        "embed",
        model_folder,
        "--data",
        texts,
        "--layers",
        "0,2",
        "--readout",
        "plain/mean/raw",
        "--out",
        "two.parquet",
    )
    assert ended.err.splitlines()[-1].endswith(
        "--data two.parquet --layers 2 --readout plain/mean/raw"
    )
    assert_refused(
        cli("search", model_folder, query, *words, "--layers", "9"), "layer 9 does not exist"
    )
    assert_refused(
        cli("embed", model_folder, *words, "--out", "vectors.csv"),
        "vectors are written to a .parquet file",
    )


def test_compare_names_its_flags(cli: Cli, model_folder: Path, data: Path) -> None:
    assert_refused(cli("compare", model_folder, "--data", data), "two models or more")
    assert_refused(
        cli("compare", model_folder, "smollm-135m", "--data", data), "Did you mean 'smollm2-135m'?"
    )
    data.write_text("\n".join(some_texts(60)))
    other = model_folder.with_name("other")
    other.symlink_to(model_folder)
    ended = cli("compare", model_folder, other, "--data", data)
    assert ended.code == 0, ended
    assert "give labels= to know" in " ".join(ended.out.split())
    assert (
        f"Next: layerscope improve {model_folder.parent}/" in ended.err
    )  # the folder, not its name alone
