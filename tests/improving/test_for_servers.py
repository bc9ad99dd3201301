"""Only what the wanted programs open is a candidate, and what they need is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerscope
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.errors import ExportError, InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import check_servers, facts_of, plan_formats
from tests.blocks.conftest import write_tiny
from tests.improving.test_improve import quick, some_texts
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.usefixtures("stored")


@pytest.mark.parametrize(
    ("readout", "name", "formats"),
    [
        ("plain/mean/applied", "vllm", []),
        ("plain/mean/applied", "tei", ["onnx"]),
        ("one-word/last/raw", "onnx", ["onnx"]),
        ("plain/mean/applied", "llama.cpp", ["gguf"]),
    ],
)
def test_formats_that_a_program_needs(readout: str, name: str, formats: list[str]) -> None:
    facts = facts_of(tiny_model("llama"), Readout.parse(readout))
    assert plan_formats(facts, [name]) == ([], formats)


@pytest.mark.parametrize(
    ("readout", "name", "problem"),
    [
        ("one-word/last/raw", "vllm", "norm"),
        ("plain/wmean/applied", "tei", "pools by"),
        ("plain/mean/applied/keep/corpus", "llama.cpp", "no Dense module"),
    ],
)
def test_readouts_that_a_program_does_not_open(readout: str, name: str, problem: str) -> None:
    problems, formats = plan_formats(facts_of(tiny_model("llama"), Readout.parse(readout)), [name])
    assert problem in problems[0]
    assert formats == []
    with_head, _ = plan_formats(facts_of(tiny_model("llama"), Readout(), head=True), ["llama.cpp"])
    assert "no Dense module" in with_head[0]


def test_what_is_said_of_a_readout_holds_for_its_folder(tmp_path: Path) -> None:
    model = tiny_model("llama")
    for number, name in enumerate(("plain/mean/applied", "plain/last/raw", "plain/max/applied")):
        done = layerscope.export(model, 1, readout=name, out=tmp_path / str(number))
        for server in ("tei-gpu", "vllm", "llama.cpp"):
            said, _ = plan_formats(facts_of(model, Readout.parse(name)), [server])
            found = check_servers(done.path, [server])[server]
            assert bool(said) == bool([one for one in found if "GGUF file:" not in one])


def test_only_what_opens_is_a_candidate(tmp_path: Path) -> None:
    model, texts = tiny_model("llama"), some_texts()
    every = quick(model, texts, judge="none")
    some = quick(model, texts, judge="none", servers=["vllm"])
    assert any("/raw/" in name for name in every.table["readout"])
    assert not any("/raw/" in name for name in some.table["readout"])
    path = some.save(tmp_path / "made")
    assert check_servers(path, ["vllm"]) == {"vllm": []}


def test_a_graph_is_written_where_it_is_needed(tmp_path: Path) -> None:
    out = tmp_path / "made"
    result = quick(tiny_model("llama"), some_texts(), judge="none", servers=["tei"], out=out)
    assert check_servers(out, ["tei", "onnx"]) == {"tei": [], "onnx": []}
    assert (out / "onnx" / "model.onnx").is_file()
    assert "Opens in sentence-transformers, ONNX Runtime" in str(result)


def test_what_opens_nowhere_is_refused_before_anything_is_read() -> None:
    with pytest.raises(LayerscopeError, match="vLLM: it has no embedding model"):
        quick(tiny_model("gpt_neox"), some_texts(), judge="none", servers=["vllm"])
    with pytest.raises(UnknownNameError, match="server"):
        quick(tiny_model("llama"), some_texts(), servers=["nowhere"])
    with pytest.raises(InvalidValueError, match="leave out servers="):
        quick(tiny_model("llama"), some_texts(), queries=["a river"], servers=["tei"])


def test_a_format_that_cannot_be_written_is_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot(_: object) -> None:
        raise ExportError("no graph can be written here")

    monkeypatch.setattr(type(FORMATS.get("onnx")), "check", cannot)
    with pytest.raises(ExportError, match="no graph"):
        quick(tiny_model("llama"), some_texts(), judge="none", servers=["tei"])


def test_an_encoder_that_does_not_open_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", "bert")
    with pytest.raises(LayerscopeError, match="nor with fewer blocks"):
        layerscope.improve(str(folder), some_texts(), servers=["onnx"], progress=False)


class FirstLayer:
    """A judge that likes the embeddings best."""

    name = "first-layer"
    summary = "the embeddings"
    views: tuple[str, ...] = ()

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        return Scores(np.array([float(item.layer == 0) for item in candidates.candidates]))


def test_what_has_no_gguf_file_is_no_candidate_for_llama_cpp() -> None:
    pytest.importorskip("layerscope_zoo")
    model = tiny_model("llama")
    result = quick(model, some_texts(), judge=FirstLayer(), servers=["llama.cpp"])
    scores = result.table.set_index("layer")["score"]
    assert scores.loc[0].isna().all()
    assert scores.drop(0).notna().all()
    assert result.choice.layer > 0
