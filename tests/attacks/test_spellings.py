"""A folder is one model, however its path is spelled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layerscope.exporting import verifying
from tests.cli.support import Cli
from tests.exporting.conftest import reload_here

pytest.importorskip("sentence_transformers")

TEXTS = "how do I reset my card\nwhere is my parcel\nthe weather is fine\n"


@pytest.fixture
def exports(
    cli: Cli, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Two folders in the working folder that are read as they say themselves."""
    monkeypatch.setattr(verifying, "reload", reload_here)
    for model in models:
        ended = cli("export", model, "--layer", 2, "--out", f"e-{model.name}")
        assert ended.code == 0, ended.err
    one, other = (tmp_path / f"e-{model.name}" for model in models)
    return one, other


@pytest.mark.parametrize("layers", [(), ("--layers", "1")])
def test_search_in_vectors_of_the_same_folder(
    cli: Cli,
    exports: tuple[Path, Path],
    tmp_path: Path,
    layers: tuple[str, ...],
) -> None:
    (tmp_path / "texts.txt").write_text(TEXTS, encoding="utf-8")
    folder, other = exports
    embed = ("embed", folder.name, "--data", "texts.txt", "--out", "v.parquet", *layers)
    assert cli(*embed).code == 0
    search = ("reset card", "--data", "v.parquet", "--json", *layers)
    first = cli("search", folder.name, *search)
    assert first.code == 0, first.err
    for spelling in (folder.resolve(), f".{os.sep}{folder.name}", f"{folder.name}{os.sep}"):
        again = cli("search", spelling, *search)
        assert again.code == 0, again.err
        assert again.out == first.out
    assert cli("search", other.name, *search).code == 1, "another model's vectors"


def test_embed_again_with_the_same_folder(
    cli: Cli, exports: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text(TEXTS, encoding="utf-8")
    folder, other = exports
    words = ("--data", "texts.txt", "--out", "v.parquet")
    assert cli("embed", folder.name, *words).code == 0
    assert cli("embed", folder.resolve(), *words).code == 0
    assert cli("embed", other.name, *words).code == 1


def test_search_from_inside_the_folder(
    cli: Cli, exports: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text(TEXTS, encoding="utf-8")
    folder, _ = exports
    assert cli("embed", folder.name, "--data", "texts.txt", "--out", "v.parquet").code == 0
    monkeypatch.chdir(folder)
    ended = cli("search", ".", "reset card", "--data", "../v.parquet")
    assert ended.code == 0, ended.err
