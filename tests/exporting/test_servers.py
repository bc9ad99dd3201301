"""What the loaders of embedding servers read in an exported folder, by their source: vLLM 0.32.

Names and values are those of vllm/transformers_utils/config.py (`get_pooling_config`, `parse_pooling_type`,
`try_get_dense_modules`, `get_sentence_transformer_tokenizer_config`) and of model_executor/models/adapters.py
(`_load_dense_weights`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.exporting.support import draft_of
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")

POOLINGS = ("CLS", "LAST", "MEAN")  # SEQ_POOLING_TYPES
REGISTERED = ("BertModel", "Gemma3TextModel", "LlamaModel", "MistralModel")  # of model_executor/models/registry.py
MEAN = np.linspace(-1, 1, 32)


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def pooling_type(name: str) -> str:
    """`parse_pooling_type`."""
    name = name.replace("pooling_mode_", "")
    name = name.split("_", 1)[0] if "_" in name else name
    return ("last" if "lasttoken" in name else name).upper()


@pytest.mark.parametrize(("readout", "wanted"), [("plain/mean/applied", "MEAN"), ("one-word/last/applied/keep/corpus", "LAST")])
def test_vllm_finds_layers_pooling_and_dense(readout: str, wanted: str, tmp_path: Path) -> None:
    draft = draft_of(tiny_model("llama"), 2, readout, tmp_path, unit=True, center=lambda ids: (MEAN, "some texts"))
    config = read(tmp_path, "config.json")
    assert config["num_hidden_layers"] == 2  # the blocks that vLLM builds
    assert config["architectures"][0] in REGISTERED
    modules = read(tmp_path, "modules.json")
    kinds = [module["type"] for module in modules]
    assert kinds[1] == "sentence_transformers.models.Pooling"
    assert kinds[-1] == "sentence_transformers.models.Normalize"
    told = read(tmp_path, f"{modules[1]['path']}/config.json")
    named = [pooling_type(key) for key, value in told.items() if value is True]
    assert [name for name in named if name in POOLINGS] == [wanted]
    assert read(tmp_path, "sentence_bert_config.json")["max_seq_length"] == draft.framed.max_length
    if readout.endswith("corpus"):
        dense = next(module for module in modules if module["type"] == "sentence_transformers.models.Dense")
        facts = read(tmp_path, f"{dense['path']}/config.json")
        assert facts["activation_function"] == "torch.nn.modules.linear.Identity"  # get_act_fn knows this name
        weights = load_file(tmp_path / dense["path"] / "model.safetensors")
        np.testing.assert_allclose(weights["linear.bias"], -MEAN, rtol=1e-6)
        assert weights["linear.weight"].shape == (facts["out_features"], facts["in_features"])


def test_what_vllm_does_not_read_is_told_apart(tmp_path: Path) -> None:
    """Weighted means and maxima have no name there, and a state without the final norm is behind a setting it does not read."""
    draft_of(tiny_model("llama"), 2, "plain/wmean/raw", tmp_path)
    told = read(tmp_path, "1_Pooling/config.json")
    assert not {pooling_type(key) for key, value in told.items() if value is True} & set(POOLINGS)
    assert read(tmp_path, "sentence_bert_config.json")["modality_config"]["text"]["method_output_name"] == ["hidden_states", 2]
    assert read(tmp_path, "config.json")["num_hidden_layers"] == 3  # with the block of zeros
