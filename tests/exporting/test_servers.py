"""What the loaders of embedding servers read in an exported folder, by their source: vLLM 0.32; and
programs with transformers 4.

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
from layerscope.models import wrap
from tests.exporting.support import draft_of
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

pytest.importorskip("sentence_transformers")

POOLINGS = ("CLS", "LAST", "MEAN")  # SEQ_POOLING_TYPES
REGISTERED = (
    "BertModel",
    "Gemma3TextModel",
    "LlamaModel",
    "MistralModel",
)  # of model_executor/models/registry.py
MEAN = np.linspace(-1, 1, 32)


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def pooling_type(name: str) -> str:
    """`parse_pooling_type`."""
    name = name.replace("pooling_mode_", "")
    name = name.split("_", 1)[0] if "_" in name else name
    return ("last" if "lasttoken" in name else name).upper()


@pytest.mark.parametrize(
    ("readout", "wanted"),
    [("plain/mean/applied", "MEAN"), ("one-word/last/applied/keep/corpus", "LAST")],
)
def test_vllm_finds_layers_pooling_and_dense(readout: str, wanted: str, tmp_path: Path) -> None:
    draft = draft_of(
        tiny_model("llama"),
        2,
        readout,
        tmp_path,
        unit=True,
        head=Head(MEAN, None, "some texts"),
    )
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
        dense = next(
            module for module in modules if module["type"] == "sentence_transformers.models.Dense"
        )
        facts = read(tmp_path, f"{dense['path']}/config.json")
        assert (
            facts["activation_function"] == "torch.nn.modules.linear.Identity"
        )  # get_act_fn knows this name
        weights = load_file(tmp_path / dense["path"] / "model.safetensors")
        np.testing.assert_allclose(weights["linear.bias"], -MEAN, rtol=1e-6)
        assert weights["linear.weight"].shape == (facts["out_features"], facts["in_features"])


def test_what_vllm_does_not_read_is_told_apart(tmp_path: Path) -> None:
    """Weighted means and maxima have no name there, and a state without the final norm is behind a
    setting it does not read."""
    draft_of(tiny_model("llama"), 2, "plain/wmean/raw", tmp_path)
    told = read(tmp_path, "1_Pooling/config.json")
    assert not {pooling_type(key) for key, value in told.items() if value is True} & set(POOLINGS)
    assert read(tmp_path, "sentence_bert_config.json")["modality_config"]["text"][
        "method_output_name"
    ] == ["hidden_states", 2]
    assert read(tmp_path, "config.json")["num_hidden_layers"] == 3  # with the block of zeros


@pytest.mark.parametrize(
    ("family", "rope"),
    [("llama", "default"), ("llama", "llama3"), ("gemma3", "linear"), ("bert", None)],
)
def test_transformers_4_finds_the_frequencies_and_the_tokenizer(
    family: str, rope: str | None, tmp_path: Path
) -> None:
    module = build_tiny(family)
    wanted = copy.deepcopy(getattr(module.config, "rope_parameters", None))
    if wanted:
        whole = wanted["full_attention"] if family == "gemma3" else wanted
        whole |= {"rope_theta": 54321.0, "rope_type": rope} | (
            {"factor": 8.0} if rope == "linear" else {}
        )
        if rope == "llama3":
            whole |= {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        module.config.rope_parameters = copy.deepcopy(wanted)
    model = wrap(
        type(module)(module.config).eval(),
        tiny_tokenizer(encoder=family == "bert"),
        name=f"tiny-{family}",
    )
    draft_of(model, 2, "plain/mean/applied", tmp_path)
    config = read(tmp_path, "config.json")
    assert config.get("rope_theta") == (54321.0 if wanted else None)
    assert ("rope_scaling" in config) == (rope not in (None, "default"))
    if family == "gemma3":
        assert config["rope_local_base_freq"] == wanted["sliding_attention"]["rope_theta"]
    assert read(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    again = AutoConfig.from_pretrained(tmp_path)
    assert (
        getattr(again, "rope_parameters", None) == wanted
    )  # and transformers 5 reads what was there


def test_a_tokenizer_is_not_offered_to_transformers_4_where_it_would_misread_the_model(
    tmp_path: Path,
) -> None:
    draft_of(tiny_model("gpt_neox"), 2, "plain/mean/applied", tmp_path)
    assert "rope_theta" not in read(tmp_path, "config.json")
    assert read(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "TokenizersBackend"
