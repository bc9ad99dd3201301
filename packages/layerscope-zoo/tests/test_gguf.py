"""GGUF files: the weights, settings and tokens that llama.cpp reads, and what it cannot compute is
refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from layerscope_zoo import gguf_export as writing
from layerscope_zoo.gguf_export import FORMAT, interleaved, why_not, write_gguf
from tests.exporting.support import draft_of
from tests.tiny import tiny_model

from layerscope.core.readout import Readout
from layerscope.errors import ExportError
from layerscope.exporting import export

gguf = pytest.importorskip("gguf")
pytest.importorskip("sentence_transformers")


@pytest.fixture(autouse=True)
def without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_compare", lambda file, draft: {})


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    reader = gguf.GGUFReader(str(folder / "gguf" / "model.gguf"))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def test_a_llama_is_written_up_to_its_layer(tmp_path: Path) -> None:
    model = tiny_model("llama")
    facts = write_gguf(draft_of(model, 2, "plain/mean/applied", tmp_path))
    fields, tensors = read(tmp_path)
    config = model.module.config
    assert fields["general.architecture"] == "llama"
    assert fields["llama.block_count"] == 2
    assert fields["llama.pooling_type"] == gguf.PoolingType.MEAN
    assert fields["llama.attention.head_count_kv"] == config.num_key_value_heads
    assert fields["llama.rope.freq_base"] == pytest.approx(config.rope_parameters["rope_theta"])
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert len(fields["tokenizer.ggml.tokens"]) == len(tensors["token_embd.weight"])
    assert max(int(name.split(".")[1]) for name in tensors if name.startswith("blk.")) == 1
    block = model.anatomy.blocks[1]
    weights = block.mlp.down_proj.weight.detach().numpy()
    np.testing.assert_allclose(tensors["blk.1.ffn_down.weight"], weights, atol=1e-3)
    queries = interleaved(
        block.self_attn.q_proj.weight.detach().numpy(), config.num_attention_heads
    )
    np.testing.assert_allclose(tensors["blk.1.attn_q.weight"], queries, atol=1e-3)
    np.testing.assert_allclose(
        tensors["output_norm.weight"], model.anatomy.final_norm.weight.detach().numpy(), atol=1e-6
    )
    assert "not compared" in FORMAT.lines(facts)[0]


def test_raw_keeps_directions_of_one_token(tmp_path: Path) -> None:
    facts = write_gguf(draft_of(tiny_model("llama"), 1, "one-word/last/raw", tmp_path))
    fields, tensors = read(tmp_path)
    assert (tensors["output_norm.weight"] == 1).all()
    assert fields["llama.pooling_type"] == gguf.PoolingType.LAST
    assert "put every text into `This sentence:" in FORMAT.card(facts)
    assert "not the length" in FORMAT.card(facts)


def test_a_gemma_has_its_norms_and_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma3")
    config = model.module.config
    draft = draft_of(model, 2, "plain/last/applied", tmp_path)
    monkeypatch.setattr(config, "query_pre_attn_scalar", config.head_dim)
    monkeypatch.setattr(config, "layer_types", ["sliding_attention"] * model.n_blocks)
    write_gguf(draft)
    fields, tensors = read(tmp_path)
    assert fields["general.architecture"] == "gemma3"
    assert fields["gemma3.attention.sliding_window"] == config.sliding_window
    norm = model.anatomy.blocks[0].pre_feedforward_layernorm.weight.detach().numpy()
    np.testing.assert_allclose(tensors["blk.0.ffn_norm.weight"], norm + 1, atol=1e-6)
    assert "blk.1.post_ffw_norm.weight" in tensors


def test_interleaved_rows_rotate_to_the_same_scores() -> None:
    """Rotating halves of a head, as transformers does, and neighbors, as llama.cpp does, give the
    same products."""
    rng = np.random.default_rng(0)
    heads, size, width = 2, 8, 5
    weights, state = rng.normal(size=(heads * size, width)), rng.normal(size=width)
    angle = 3 * 10000.0 ** (-np.arange(size // 2) / (size // 2))

    def turned(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.stack(
            [
                first * np.cos(angle) - second * np.sin(angle),
                second * np.cos(angle) + first * np.sin(angle),
            ]
        )

    halves = (weights @ state).reshape(heads, 2, size // 2)
    pairs = (interleaved(weights, heads) @ state).reshape(heads, size // 2, 2)
    for head in range(heads):
        np.testing.assert_allclose(
            turned(*halves[head]), turned(pairs[head, :, 0], pairs[head, :, 1])
        )


def test_scaled_rotations_become_factors() -> None:
    plain = 1 / 10000.0 ** (np.arange(4) / 4)
    module = SimpleNamespace(
        rotary_emb=SimpleNamespace(
            inv_freq=torch.tensor(plain / [1, 1, 4, 8]), attention_scaling=1.0
        ),
        config=SimpleNamespace(rope_parameters={"rope_theta": 10000.0}),
    )
    np.testing.assert_allclose(writing._rope_factors(module), [1, 1, 4, 8])
    module.rotary_emb.inv_freq = torch.tensor(plain)
    assert writing._rope_factors(module) is None
    module.rotary_emb.attention_scaling = 1.2
    with pytest.raises(ExportError, match="YaRN"):
        writing._rope_factors(module)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("family", "layer", "readout", "reason"),
    [
        ("gpt2", 1, "plain/mean/applied", "Valid: LlamaModel"),
        ("llama", 0, "plain/mean/applied", "no block"),
        ("llama", 1, "plain/mean/raw", "always applies the final norm"),
        ("llama", 1, "plain/wmean/applied", "not by wmean"),
    ],
)
def test_what_llama_cpp_cannot_do_is_refused(
    family: str, layer: int, readout: str, reason: str, tmp_path: Path
) -> None:
    """Before anything is cut or written."""
    with pytest.raises(ExportError, match=reason):
        export(tiny_model(family), layer, readout=readout, out=tmp_path / "out", formats=["gguf"])
    assert list(tmp_path.iterdir()) == []


def test_readouts_that_are_expressible() -> None:
    assert why_not(Readout("plain", "mean", "applied")) is None
    assert why_not(Readout("one-word", "last", "raw")) is None
    assert "neither centering" in str(
        why_not(Readout("plain", "mean", "applied", "keep", "corpus"))
    )


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "gpt-2"),
        (
            {
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel"},
                ]
            },
            "smollm",
        ),
        (
            {
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": writing._LLAMA3}},
                    {"type": "ByteLevel", "use_regex": False},
                ]
            },
            "llama-bpe",
        ),
        ({"type": "Whitespace"}, None),
        ({"type": "ByteLevel", "add_prefix_space": True}, None),
    ],
)
def test_rules_of_splitting_have_names(step: dict[str, Any], name: str | None) -> None:
    if name is None:
        with pytest.raises(ExportError, match="does not support"):
            writing._split_rule({"pre_tokenizer": step})
    else:
        assert writing._split_rule({"pre_tokenizer": step}) == name
