"""Adapters: merged ones must compute what unmerged ones do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

from layerscope.errors import ModelError
from layerscope.models import load
from tests.models.reading import read_layers, some_ids
from tests.tiny import build_tiny, tiny_tokenizer

peft = pytest.importorskip("peft")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    build_tiny("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def adapt(
    module: nn.Module,
    seed: int,
    targets: tuple[str, ...] = ("q_proj", "up_proj"),
    **options: object,
) -> nn.Module:
    adapted = peft.get_peft_model(
        module, peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), **options)
    )
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return adapted.eval()


def test_merged_equals_unmerged(base: Path, tmp_path: Path) -> None:
    adapted = adapt(build_tiny("llama"), seed=5)
    adapted.save_pretrained(tmp_path / "one")
    plain, model, ids = load(base), load(base, adapters=[tmp_path / "one"]), some_ids()
    with torch.no_grad():
        expected = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    with torch.inference_mode():
        got = model.anatomy.final_norm(read_layers(model, ids)[-1])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(read_layers(plain, ids)[-1], read_layers(model, ids)[-1], atol=1e-2)
    assert model.identity["adapters"][0]["name"] == "one"
    assert len(model.identity["adapters"][0]["sha256"]) == 64
    assert type(model.module) is type(plain.module)


def test_adapters_trained_under_a_head_fit_the_base(base: Path, tmp_path: Path) -> None:
    head = hf.LlamaForCausalLM(build_tiny("llama").config)
    head.model.load_state_dict(build_tiny("llama").state_dict())
    adapted = adapt(head, seed=6, task_type="CAUSAL_LM")
    adapted.save_pretrained(tmp_path / "lm")
    model, ids = load(base, adapters=[tmp_path / "lm"]), some_ids()
    with torch.no_grad():
        expected = adapted(input_ids=ids, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(read_layers(model, ids)[1], expected, rtol=1e-4, atol=1e-4)


def test_several_are_applied_in_order(base: Path, tmp_path: Path) -> None:
    first = adapt(build_tiny("llama"), seed=1)
    first.save_pretrained(tmp_path / "first")
    second = adapt(first.merge_and_unload(), seed=2, targets=("v_proj",))
    second.save_pretrained(tmp_path / "second")
    model, ids = (
        load(base, adapters=[str(tmp_path / "first"), str(tmp_path / "second")]),
        some_ids(),
    )
    with torch.no_grad():
        expected = second(input_ids=ids).last_hidden_state
    with torch.inference_mode():
        got = model.anatomy.final_norm(read_layers(model, ids)[-1])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert [a["name"] for a in model.identity["adapters"]] == ["first", "second"]


def test_adapters_that_do_not_fit_are_refused(base: Path, tmp_path: Path) -> None:
    adapt(build_tiny("gpt_neox"), seed=1, targets=("query_key_value",)).save_pretrained(
        tmp_path / "neox"
    )
    with pytest.raises(ModelError, match="does not fit LlamaModel"):
        load(base, adapters=[tmp_path / "neox"])
    deeper = build_tiny("llama").config
    deeper.num_hidden_layers = 5
    deeper.layer_types = None
    adapt(hf.LlamaModel(deeper), seed=1).save_pretrained(tmp_path / "deep")
    with pytest.raises(ModelError, match="have no place"):
        load(base, adapters=[tmp_path / "deep"])
    with pytest.raises(ModelError, match="no adapter_config"):
        load(base, adapters=[tmp_path])


def test_pickled_adapters_are_refused(base: Path, tmp_path: Path) -> None:
    adapt(build_tiny("llama"), seed=1).save_pretrained(tmp_path / "one")
    (tmp_path / "one" / "adapter_model.safetensors").rename(tmp_path / "one" / "adapter_model.bin")
    with pytest.raises(ModelError, match="as safetensors"):
        load(base, adapters=[tmp_path / "one"])
