"""Which programs open a folder, by rule: each obstacle by a folder that has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layerscope.core.heads import Head
from layerscope.errors import ExportError, UnknownNameError
from layerscope.exporting.servers import SERVERS, check_servers
from tests.cli.support import run_main
from tests.exporting.support import draft_of
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")

HEAD = Head(np.linspace(-1, 1, 32), None, "some texts")


def opens(folder: Path) -> set[str]:
    return {name for name, problems in check_servers(folder).items() if not problems}


def test_an_encoder_read_after_its_norm_opens_nearly_everywhere(tmp_path: Path) -> None:
    draft_of(tiny_model("bert"), 2, "plain/mean/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers", "tei", "tei-gpu", "vllm"}
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    assert "onnx" in opens(tmp_path)
    assert "Gemma3TextModel" in check_servers(tmp_path, ["llama.cpp"])["llama.cpp"][0]


def test_a_decoder_needs_a_gpu_a_graph_or_a_gguf_file(tmp_path: Path) -> None:
    draft_of(tiny_model("llama"), 2, "plain/mean/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers", "tei-gpu", "vllm"}
    problems = check_servers(tmp_path)
    assert "--format onnx" in problems["tei"][0]
    assert "--format gguf" in problems["llama.cpp"][0]
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").touch()
    assert "llama.cpp" in opens(tmp_path)


def test_an_inner_state_is_read_by_the_graph_alone(tmp_path: Path) -> None:
    draft_of(tiny_model("llama"), 1, "plain/mean/raw", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers"}
    problems = check_servers(tmp_path)
    for name in ("tei-gpu", "vllm", "llama.cpp"):
        assert any("`applied`" in problem for problem in problems[name])
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    assert opens(tmp_path) == {"sentence-transformers", "onnx", "tei"}


@pytest.mark.parametrize("pooling", ["wmean", "max"])
def test_poolings_that_servers_do_not_know(pooling: str, tmp_path: Path) -> None:
    draft_of(tiny_model("llama"), 2, f"plain/{pooling}/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers"}
    for name in ("tei", "tei-gpu", "vllm", "llama.cpp"):
        assert any("pools by" in problem for problem in check_servers(tmp_path)[name])


def test_a_centered_reading_has_no_gguf_file(tmp_path: Path) -> None:
    draft_of(
        tiny_model("llama"), 2, "plain/mean/applied/keep/corpus", tmp_path,
        unit=True, head=HEAD,
    )  # fmt: skip
    assert {"tei-gpu", "vllm"} <= opens(tmp_path)
    assert "Dense" in check_servers(tmp_path)["llama.cpp"][0]
    modules = json.loads((tmp_path / "modules.json").read_text())
    for module in modules:
        module["type"] = module["type"].replace("models.Dense", "base.modules.Dense")
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert "skips a Dense" in check_servers(tmp_path)["tei-gpu"][0]


def test_an_unknown_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"llama\.cpp"):
        check_servers(tmp_path, ["ollama"])


@pytest.mark.parametrize("modules", ["[{}]", "[1]", "{}", '[{"type": "own.Module", "path": ""}]'])
def test_a_folder_that_cannot_be_read_is_one_error(modules: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ExportError, match=r"modules\.json"):
        check_servers(tmp_path)


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft_of(tiny_model("llama"), 1, "plain/mean/raw", tmp_path)
    shown = run_main(monkeypatch, capsys, "verify", str(tmp_path), "--for", "all")
    assert shown.code == 2
    assert "vLLM: does not open it" in shown.out
    for server in SERVERS.values():
        assert server.title in shown.out
    good = run_main(
        monkeypatch, capsys, "verify", str(tmp_path), "--for", "sentence-transformers", "--json"
    )
    assert good.code == 0
    assert json.loads(good.out) == {"servers": {"sentence-transformers": []}}


def test_card_and_terminal_of_an_export_say_where_it_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from layerscope.exporting import export
    from layerscope.exporting.card import print_export

    done = export(tiny_model("llama"), 2, readout="plain/mean/applied", out=tmp_path / "cut")
    assert done.facts["servers"] == check_servers(done.path)
    card = (done.path / "README.md").read_text(encoding="utf-8")
    section = card.partition("## Where it opens")[2].partition("## Verified")[0]
    first, _, rest = section.partition("Not in:")
    assert "sentence-transformers" in first
    assert "vLLM" in first
    assert "- ONNX Runtime and transformers.js: there is no onnx/model.onnx" in rest
    assert "- llama.cpp and Ollama: there is no GGUF file" in rest
    print_export(done.facts)
    assert "opens in sentence-transformers, text-embeddings" in " ".join(
        capsys.readouterr().out.split()
    )
