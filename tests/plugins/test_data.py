"""A corpus that another package adds is read by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import layerscope
from layerscope.data.corpus import CORPORA
from tests.cli.support import run_main
from tests.plugins.support import install

CORPUS = """
from pathlib import Path
from layerscope.catalogue import Installed
from layerscope.data.corpus import CorpusEntry

RAIN = CorpusEntry(
    name="rain", summary="ten lines", license="CC0-1.0",
    origin=Installed(lambda: Path(__file__).parent / "rain.txt", "rain 1.0"),
)
"""


def test_a_corpus_from_outside_is_profiled(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("outside_rain", CORPUS, "RAIN", CORPORA, tmp_path, monkeypatch)
    (tmp_path / "site" / "rain.txt").write_text(
        "\n".join(f"it rains for the {i}. time" for i in range(10)), encoding="utf-8"
    )
    words = (
        "--data",
        "rain",
        "-m",
        "prompt_entropy",
        "--max-length",
        8,
        "--out",
        tmp_path / "run",
    )
    ended = run_main(monkeypatch, capsys, "profile", model_folder, *words)
    assert ended.code == 0, ended
    assert layerscope.load_run(tmp_path / "run").manifest["corpus"]["name"] == "rain"
