"""A whole profile on a GPU: the table that a CPU gives, whatever the model, and whichever way its
states are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf

import layerscope
from layerscope import accelerator
from layerscope.models import LoadedModel, wrap
from layerscope_gpu import encoding, tokens
from tests.tiny import VOCAB, build_tiny, tiny_tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SENTENCE = "some words of which a text is made again and again until it is long enough to be read"
TEXTS = [f"{SENTENCE[i % 40 : i % 40 + 8 + 5 * (i % 10)]} {i}." for i in range(110)]
ENCODERS = ("bert", "modernbert")
NATS = ("prompt_entropy", "dataset_entropy")


def on(
    device: str, module: torch.nn.Module, name: str, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    return wrap(module.to(device, dtype), tiny_tokenizer(name in ENCODERS), name=name)


def wide_llama() -> torch.nn.Module:
    """As wide as there are prompts: matrices of prompts, not of dimensions."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config = hf.LlamaConfig(vocab_size=VOCAB, max_position_embeddings=128, **sizes)
    return hf.LlamaModel(config).eval()


def table_of(model: LoadedModel, out: Path | None = None, **settings: Any) -> pd.DataFrame:
    chosen = {
        "metrics": ["all"],
        "views": 3,
        "max_length": 96,
        "permutations": 4,
        "progress": False,
        **settings,
    }
    return layerscope.profile(model, TEXTS, out=out, **chosen).table


def same(got: pd.DataFrame, want: pd.DataFrame) -> None:
    """Entropies to 1e-4 nats, the rest to 1e-3, or to a tenth of what the interval leaves open."""
    key = ["site", "metric", "normalization", "sink"]
    both = got.merge(want, on=key, suffixes=("", "_want"), validate="one_to_one")
    assert len(both) == len(got) == len(want)
    assert (both["value"].isna() == both["value_want"].isna()).all()
    near = both["value_want"].abs() * 1e-3
    near = near.where(~(both["metric"].isin(NATS) & (both["normalization"] == "raw")), 1e-4)
    near = near.clip(lower=((both["ci_high_want"] - both["ci_low_want"]) / 20).fillna(0) + 1e-9)
    far = both[(both["value"] - both["value_want"]).abs() > near]
    assert far.empty, (
        far[[*key, "value", "value_want", "ci_low_want", "ci_high_want"]].head(12).to_string()
    )


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards, the first of which is run before the others are tokenized."""
    monkeypatch.setattr(encoding, "_FIRST_ITEMS", (16, 16))
    monkeypatch.setattr("layerscope.profiling.encode.choose_shard_size", lambda *given: 40)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize(
    "family", ["llama", "gpt_neox", "gpt2", "gemma2", "qwen3", "mamba", *ENCODERS]
)
def test_families(family: str) -> None:
    want = table_of(on("cpu", build_tiny(family), family))
    same(table_of(on("cuda", build_tiny(family), family)), want)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("final_norm", ["raw", "applied", "hf"])
def test_as_many_dimensions_as_prompts(final_norm: str, tmp_path: Path) -> None:
    want = table_of(on("cpu", wide_llama(), "wide"), final_norm=final_norm)
    there = on("cuda", wide_llama(), "wide")
    same(table_of(there, final_norm=final_norm), want)
    same(table_of(there, tmp_path / "run", final_norm=final_norm), want)  # by way of the disk


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma2", "bert"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_own_kernels_read_half_precision_states_as_the_steps_they_replace(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on("cuda", build_tiny(family), family, dtype)
    kernels = table_of(model)
    monkeypatch.setattr(tokens, "normed_means", lambda *given: None)
    monkeypatch.setattr(tokens, "centered_states", lambda *given: None)
    same(kernels, table_of(model))


def test_parts_of_blocks() -> None:
    sites = ["embed", "block.*.attn", "block.*.mlp", "block.*"]
    want = table_of(on("cpu", build_tiny("llama"), "llama"), sites=sites)
    same(table_of(on("cuda", build_tiny("llama"), "llama"), sites=sites), want)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_the_kernels_of_layerscope_gpu(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own operators on the GPU, as for whoever has not installed them: the same table."""
    model = on("cuda", build_tiny("gpt_neox"), "gpt_neox", dtype)
    want = table_of(model)
    monkeypatch.setattr(accelerator, "on", lambda device: None)
    run = layerscope.profile(
        model, TEXTS, metrics=["all"], views=3, max_length=96, permutations=4, progress=False
    )
    same(run.table, want)
    assert "torch.linalg.eigvalsh on cuda" in str(run.manifest)


def test_a_model_can_be_cut_though_the_user_asked_for_fewer_digits(tmp_path):
    model = on("cuda", wide_llama(), "llama")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert layerscope.export(model, 2, out=tmp_path / "cut").path.exists()
    finally:
        torch.set_float32_matmul_precision(before)
