"""Which programs open a folder: by rule, each obstacle by a folder that has it; and by what the
loaders of vLLM 0.32 and of programs with transformers 4 read.

vLLM: names and values are those of vllm/transformers_utils/config.py (`get_pooling_config`,
`parse_pooling_type`, `try_get_dense_modules`, `get_sentence_transformer_tokenizer_config`) and of
model_executor/models/adapters.py (`_load_dense_weights`).
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig

from layerscope.core.heads import Head
from layerscope.errors import ExportError, UnknownNameError
from layerscope.exporting import export
from layerscope.exporting.card import print_export
from layerscope.exporting.servers import SERVERS, check_servers
from layerscope.models import wrap
from tests.cli.support import run_main
from tests.exporting.support import MEAN, draft_of
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

pytest.importorskip("sentence_transformers")

POOLINGS = ("CLS", "LAST", "MEAN")  # SEQ_POOLING_TYPES
HEAD = Head(MEAN, None, "some texts")


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def opens(folder: Path) -> set[str]:
    return {name for name, problems in check_servers(folder).items() if not problems}


def add_file(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir()
    (folder / name).touch()


def test_an_encoder_read_after_its_norm_opens_nearly_everywhere(tmp_path: Path) -> None:
    draft_of(tiny_model("bert"), 2, "plain/mean/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers", "tei", "tei-gpu", "vllm"}
    add_file(tmp_path, "onnx/model.onnx")
    assert "onnx" in opens(tmp_path)
    assert "Gemma3TextModel" in check_servers(tmp_path, ["llama.cpp"])["llama.cpp"][0]


def test_a_decoder_needs_a_gpu_a_graph_or_a_gguf_file(tmp_path: Path) -> None:
    draft_of(tiny_model("llama"), 2, "plain/mean/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers", "tei-gpu", "vllm"}
    problems = check_servers(tmp_path)
    assert "--format onnx" in problems["tei"][-1]
    assert "--format gguf" in problems["llama.cpp"][0]
    add_file(tmp_path, "gguf/model.gguf")
    assert "llama.cpp" in opens(tmp_path)


def test_an_inner_state_is_read_by_the_graph_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft_of(tiny_model("llama"), 1, "plain/mean/raw", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers"}
    for name in ("tei-gpu", "vllm", "llama.cpp"):
        assert any("`applied`" in problem for problem in check_servers(tmp_path)[name])
    ended = run_main(monkeypatch, capsys, "verify", str(tmp_path), "--for", "all")
    assert ended.code == 2
    assert "vLLM: does not open it" in ended.out
    assert all(server.title in ended.out for server in SERVERS.values())
    words = ("verify", str(tmp_path), "--for", "sentence-transformers", "--json")
    ended = run_main(monkeypatch, capsys, *words)
    assert (ended.code, json.loads(ended.out)) == (0, {"servers": {"sentence-transformers": []}})
    add_file(tmp_path, "onnx/model.onnx")
    assert opens(tmp_path) == {"sentence-transformers", "onnx", "tei"}


@pytest.mark.parametrize("pooling", ["wmean", "max"])
def test_poolings_that_servers_do_not_know(pooling: str, tmp_path: Path) -> None:
    draft_of(tiny_model("llama"), 2, f"plain/{pooling}/applied", tmp_path)
    assert opens(tmp_path) == {"sentence-transformers"}
    for name in ("tei", "tei-gpu", "vllm", "llama.cpp"):
        assert any("pools by" in problem for problem in check_servers(tmp_path)[name])


def test_a_centered_readout_has_no_gguf_file(tmp_path: Path) -> None:
    readout = "plain/mean/applied/keep/corpus"
    draft_of(tiny_model("llama"), 2, readout, tmp_path, unit=True, head=HEAD)
    assert {"tei-gpu", "vllm"} <= opens(tmp_path)
    assert "Dense" in check_servers(tmp_path)["llama.cpp"][0]
    modules = (tmp_path / "modules.json").read_text()
    (tmp_path / "modules.json").write_text(modules.replace("models.Dense", "base.modules.Dense"))
    assert "skips a Dense" in check_servers(tmp_path)["tei-gpu"][0]


def test_an_unknown_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"llama\.cpp"):
        check_servers(tmp_path, ["ollama"])


@pytest.mark.parametrize("modules", ["[{}]", "[1]", "{}", '[{"type": "own.Module", "path": ""}]'])
def test_a_folder_that_cannot_be_read_is_one_error(modules: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ExportError, match=r"modules\.json"):
        check_servers(tmp_path)


@pytest.mark.usefixtures("here")
def test_card_and_terminal_say_where_an_export_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = export(tiny_model("llama"), 2, readout="plain/mean/applied", out=tmp_path / "cut")
    assert done.facts["servers"] == check_servers(done.path)
    card = (done.path / "README.md").read_text(encoding="utf-8")
    section = card.partition("## Where it opens")[2].partition("## Verified")[0]
    opening, _, others = section.partition("- Not in")
    assert "sentence-transformers" in opening
    assert "vLLM" in opening
    assert "ONNX Runtime and transformers.js: there is no onnx/model.onnx" in others
    assert "- Not in llama.cpp and Ollama: there is no GGUF file" in others
    print_export(done.facts)
    words = " ".join(capsys.readouterr().out.split())
    assert "opens in sentence-transformers, text-embeddings" in words


def pooling_type(name: str) -> str:
    """`parse_pooling_type`."""
    name = name.replace("pooling_mode_", "")
    name = name.split("_", 1)[0] if "_" in name else name
    return ("last" if "lasttoken" in name else name).upper()


def vllm_poolings(folder: Path) -> list[str]:
    settings = read(folder, "1_Pooling/config.json")
    names = [pooling_type(name) for name, value in settings.items() if value is True]
    return [name for name in names if name in POOLINGS]


@pytest.mark.parametrize(
    ("readout", "pooling"),
    [("plain/mean/applied", "MEAN"), ("one-word/last/applied/keep/corpus", "LAST")],
)
def test_vllm_finds_layers_pooling_and_dense(readout: str, pooling: str, tmp_path: Path) -> None:
    draft = draft_of(tiny_model("llama"), 2, readout, tmp_path, unit=True, head=HEAD)
    assert read(tmp_path, "config.json")["num_hidden_layers"] == 2  # the blocks that vLLM builds
    paths = {module["type"]: module["path"] for module in read(tmp_path, "modules.json")}
    kinds = list(paths)
    assert kinds[1] == "sentence_transformers.models.Pooling"
    assert kinds[-1] == "sentence_transformers.models.Normalize"
    assert vllm_poolings(tmp_path) == [pooling]
    assert read(tmp_path, "sentence_bert_config.json")["max_seq_length"] == draft.framed.max_length
    if readout.endswith("corpus"):
        dense = tmp_path / paths["sentence_transformers.models.Dense"]
        facts = read(dense, "config.json")
        # get_act_fn knows this name
        assert facts["activation_function"] == "torch.nn.modules.linear.Identity"
        weights = load_file(dense / "model.safetensors")
        np.testing.assert_allclose(weights["linear.bias"], -MEAN, rtol=1e-6)
        assert weights["linear.weight"].shape == (facts["out_features"], facts["in_features"])


def test_settings_that_vllm_does_not_read(tmp_path: Path) -> None:
    """Weighted means have no name there, and a state without the final norm is behind a setting."""
    draft_of(tiny_model("llama"), 2, "plain/wmean/raw", tmp_path)
    assert vllm_poolings(tmp_path) == []
    settings = read(tmp_path, "sentence_bert_config.json")["modality_config"]["text"]
    assert settings["method_output_name"] == ["hidden_states", 2]
    assert read(tmp_path, "config.json")["num_hidden_layers"] == 3  # with the block of zeros


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", {"rope_type": "default"}),
        (
            "llama",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        ("gemma3", {"rope_type": "linear", "factor": 8.0}),
        ("bert", None),
    ],
)
def test_transformers_4_finds_the_frequencies_and_the_tokenizer(
    family: str, rope: dict[str, Any] | None, tmp_path: Path
) -> None:
    module = build_tiny(family)
    expected = copy.deepcopy(getattr(module.config, "rope_parameters", None))
    if rope is not None:
        whole = expected["full_attention"] if family == "gemma3" else expected
        whole |= {"rope_theta": 54321.0, **rope}
        module.config.rope_parameters = copy.deepcopy(expected)
    tokenizer = tiny_tokenizer(encoder=family == "bert")
    model = wrap(type(module)(module.config).eval(), tokenizer, name=f"tiny-{family}")
    draft_of(model, 2, "plain/mean/applied", tmp_path)
    config = read(tmp_path, "config.json")
    assert config.get("rope_theta") == (54321.0 if rope else None)
    assert ("rope_scaling" in config) == bool(rope and rope["rope_type"] != "default")
    if family == "gemma3":
        assert config["rope_local_base_freq"] == expected["sliding_attention"]["rope_theta"]
    assert read(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    again = AutoConfig.from_pretrained(tmp_path)  # transformers 5 reads what was there
    assert getattr(again, "rope_parameters", None) == expected


def test_transformers_4_refuses_a_model_that_it_would_misread(tmp_path: Path) -> None:
    draft_of(tiny_model("gpt_neox"), 2, "plain/mean/applied", tmp_path)
    assert "rope_theta" not in read(tmp_path, "config.json")
    assert read(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "TokenizersBackend"
