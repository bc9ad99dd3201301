"""`profile` from Python: its table and manifest, and texts that are few, short, double, empty or
too long."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import layerscope
from layerscope.data import Corpus
from layerscope.errors import DataError, ModelError, NonFiniteStatesError
from layerscope.metrics import metrics
from layerscope.profiling import Profile, profile
from layerscope.store import atomic
from tests.capture.support import hooks_on
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

VALUES = ["value", "ci_low", "ci_high", "n"]
KEYS = ["site", "layer", "depth", "metric", "normalization", "sink"]
FAST = {"max_length": 32, "views": 2, "permutations": 3}


def notes(run: Profile) -> str:
    return "\n".join(run.manifest["warnings"])


@pytest.fixture(scope="module")
def run(texts: list[str]) -> Profile:
    return profile(tiny_model("llama"), texts, seed=4, **FAST)


def test_the_table_is_tidy_and_complete(run: Profile) -> None:
    table = run.table
    assert list(table.columns) == KEYS + VALUES
    measured = {name: metric for name, metric in metrics().items() if metric.info.by_default}
    assert set(table["metric"]) == set(measured)
    assert not table.duplicated(KEYS).any()
    layers = {"embed": 0, "block.0": 1, "block.1": 2, "block.2": 3}
    assert table["site"].drop_duplicates().tolist() == list(layers)
    assert table.groupby("site")["layer"].first().to_dict() == layers
    assert table.groupby("layer")["depth"].first().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    for name, metric in measured.items():
        rows = table[table["metric"] == name]
        assert set(rows["normalization"]) == set(metric.info.normalizations)
        assert set(rows["sink"]) == set(metric.info.sinks)
        assert len(rows) == 4 * len(metric.info.normalizations) * len(metric.info.sinks)
    assert table["value"].notna().all()
    bounded = table.dropna(subset=["ci_low", "ci_high"])
    assert len(bounded) > 0.9 * len(table)
    assert (bounded["ci_low"] <= bounded["ci_high"]).all()


def test_the_table_is_the_mean_of_the_prompts(run: Profile) -> None:
    for metric, sink, column in [
        ("prompt_entropy", "keep", "prompt_entropy"),
        ("prompt_entropy", "drop", "prompt_entropy_sink_dropped"),
        ("curvature", "keep", "curvature"),
        ("curvature", "drop", "curvature_sink_dropped"),
        ("sink_ratio", "keep", "sink_ratio"),
    ]:
        means = run.prompts.groupby("layer")[column].mean()
        np.testing.assert_allclose(run.curve(metric, sink=sink)["value"], means, rtol=1e-12)


def test_entropies_are_normalised_by_each_prompts_own_tokens(run: Profile) -> None:
    for sink, column, fewer in (
        ("keep", "prompt_entropy", 0),
        ("drop", "prompt_entropy_sink_dropped", 1),
    ):
        by = np.log(run.prompts["tokens"] - fewer)
        means = (run.prompts[column] / by).groupby(run.prompts["layer"]).mean()
        np.testing.assert_allclose(
            run.curve("prompt_entropy", "logN", sink)["value"], means, rtol=1e-12
        )


def test_the_manifest_holds_every_convention(run: Profile, texts: list[str]) -> None:
    m = atomic.plain(run.manifest)
    assert m["layerscope"] == layerscope.__version__
    assert m["status"] == "complete"
    model = m["model"]
    assert {"name", "source", "revision", "family", "architecture", "dtype"} <= model.keys()
    assert len(model["weights_sha256"]) == 64
    assert (model["n_blocks"], model["width"]) == (3, 32)
    assert m["corpus"]["fingerprint"] == Corpus.of(texts).fingerprint
    conventions = m["conventions"]
    assert conventions["final_norm"] == "applied"
    assert conventions["final_norm_module"] == "LlamaRMSNorm"
    assert "mean over all tokens" in conventions["pooling"]
    assert "without the final norm" in conventions["sink"]
    assert {"layer", "padding", "precision", "intervals", "sites"} <= conventions.keys()
    assert (conventions["max_length"], conventions["views"], conventions["seed"]) == (32, 2, 4)
    assert {"alpha", "rows", "temperature", "seed"} <= conventions["metrics"].keys()
    assert m["counts"]["tokens"].keys() == {"shortest", "median", "longest"}
    assert m["counts"]["prompts"] == len(texts)
    assert {"python", "torch", "device", "eigenvalues"} <= m["environment"].keys()


def test_one_text(texts: list[str]) -> None:
    run = profile(tiny_model("llama"), texts[:1], **FAST)
    table, undefined = run.table, run.manifest["counts"]["undefined"]
    assert run.curve("prompt_entropy")["value"].notna().all()
    for name in ("dataset_entropy", "effective_rank", "infonce", "lidar", "dime"):
        assert table.loc[table["metric"] == name, "value"].isna().all()
        assert undefined[name]["block.2"] == 1
        assert f"{name} is undefined for up to 1 of 1 prompts" in notes(run)
    assert "dime" not in run.summary()["metrics"]
    assert "prompt_entropy" in run.summary()["metrics"]


def test_short_texts_are_left_out_and_counted(texts: list[str]) -> None:
    model, names = tiny_model("llama"), ["prompt_entropy", "curvature"]
    long = profile(model, texts, metrics=names, max_length=32)
    mixed = profile(model, [*texts, "a"], metrics=names, max_length=32)  # <s> and a: two tokens
    undefined = mixed.manifest["counts"]["undefined"]
    assert undefined["curvature"]["block.1"] == 1
    assert undefined["curvature (sink dropped)"]["block.1"] == 1
    assert undefined["prompt_entropy (sink dropped)"]["block.1"] == 1
    assert "prompt_entropy" not in undefined
    np.testing.assert_allclose(
        mixed.curve("curvature")["value"], long.curve("curvature")["value"], rtol=1e-4
    )
    assert (mixed.curve("curvature")["n"] == len(texts)).all()
    assert (mixed.curve("prompt_entropy")["n"] == len(texts) + 1).all()
    assert "curvature is undefined for up to 1 of 11 prompts" in notes(mixed)
    assert long.manifest["counts"]["undefined"] == {}


def test_one_token_texts_only() -> None:
    run = profile(
        tiny_model("llama"),
        ["a", "b", "c"],
        max_length=1,
        metrics=["prompt_entropy", "curvature", "sink_ratio"],
    )
    assert run.curve("prompt_entropy")["value"].isna().all()
    assert run.curve("curvature")["value"].isna().all()
    assert (run.curve("sink_ratio")["value"] == 1).all()
    assert run.manifest["counts"]["undefined"]["prompt_entropy"]["embed"] == 3
    assert run.manifest["counts"]["tokens"] == {"shortest": 1, "median": 1.0, "longest": 1}


def test_double_texts_count_and_are_told(texts: list[str]) -> None:
    run = profile(tiny_model("llama"), [*texts, texts[0], texts[0]], **FAST)
    assert run.manifest["counts"]["prompts"] == len(texts) + 2
    assert "2 texts are duplicates" in notes(run)
    assert run.table["value"].notna().all()
    same = profile(tiny_model("llama"), ["the same text"] * 4, **FAST)
    assert same.table.loc[same.table["metric"] == "dataset_entropy", "value"].isna().all()
    assert same.manifest["counts"]["undefined"]["dataset_entropy"]["embed"] == 4


def test_empty_texts_are_dropped_and_told(texts: list[str]) -> None:
    run = profile(tiny_model("llama"), ["", *texts, "  \n", ""], metrics=["prompt_entropy"])
    assert run.manifest["counts"]["dropped"] == {"empty": 2, "whitespace": 1}
    assert run.manifest["counts"]["prompts"] == len(texts)
    assert "2 empty, 1 whitespace" in notes(run)
    with pytest.raises(DataError, match="no usable text"):
        profile(tiny_model("llama"), ["", " "])
    with pytest.raises(DataError, match="no usable text"):
        profile(tiny_model("llama"), [])


def test_texts_without_tokens_are_left_out() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None  # adds no special token
    tokenizer.backend_tokenizer.normalizer = __import__("tokenizers").normalizers.Replace("x", "")
    model = layerscope.wrap(build_tiny("llama"), tokenizer)
    run = profile(model, ["xx", "four", "five more"], metrics=["prompt_entropy"])
    assert run.manifest["counts"]["prompts"] == 2
    assert run.manifest["counts"]["dropped"] == {"no_tokens": 1}
    assert "1 texts were left out: the tokenizer finds no token" in notes(run)
    with pytest.raises(DataError, match="finds no token in any of the 1 texts"):
        profile(model, ["xxx"], metrics=["prompt_entropy"])


def test_long_texts_are_cut_and_told() -> None:
    texts = ["word " * 100, "short one"]
    run = profile(
        tiny_model("llama"), texts, metrics=["prompt_entropy"], max_length=300
    )  # the model takes 128
    assert run.manifest["counts"]["tokens"]["longest"] == 128
    assert run.manifest["counts"]["truncated"] == 1
    assert run.manifest["conventions"]["max_length"] == 128
    assert "1 of 2 texts were cut to 128 tokens" in notes(run)
    assert "max_length 300 is more than the model's context: 128 was used" in notes(run)


def test_a_model_without_a_final_norm_is_told(texts: list[str]) -> None:
    model = tiny_model("bert")
    raw, applied = (
        profile(model, texts[:4], metrics=["prompt_entropy"], final_norm=how)
        for how in ("raw", "applied")
    )
    assert "no final norm: final_norm=applied is the same as raw" in notes(applied)
    assert "no final norm" not in notes(raw)
    assert applied.table.equals(raw.table)
    assert applied.manifest["conventions"]["final_norm_module"] is None


def test_a_module_with_its_tokenizer(texts: list[str]) -> None:
    config = LlamaConfig(
        vocab_size=262,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    module = LlamaForCausalLM(config).train()
    run = layerscope.profile(
        module, texts[:4], tokenizer=tiny_tokenizer(), metrics=["prompt_entropy"]
    )
    assert run.manifest["model"]["architecture"] == "LlamaModel"
    assert run.table["layer"].max() == 2
    assert hooks_on(module) == 0
    with pytest.raises(ModelError, match="no fast tokenizer"):
        profile(module, texts[:4], metrics=["prompt_entropy"])


def test_a_corpus_can_be_given(texts: list[str]) -> None:
    run = profile(tiny_model("llama"), Corpus.of(texts[:3], "mine"), metrics=["prompt_entropy"])
    assert run.manifest["corpus"]["name"] == "mine"
    assert run.manifest["counts"]["prompts"] == 3
    with pytest.raises(DataError, match="limit"):
        profile(tiny_model("llama"), Corpus.of(texts), metrics=["prompt_entropy"], limit=2)
    assert (
        profile(tiny_model("llama"), texts, metrics=["prompt_entropy"], limit=2).manifest["counts"][
            "prompts"
        ]
        == 2
    )


def test_sub_sites_are_checked_and_measured(texts: list[str]) -> None:
    run = profile(
        tiny_model("llama"),
        texts[:4],
        sites=["embed", "block.*", "block.1.*"],
        metrics=["prompt_entropy", "curvature"],
    )
    assert run.manifest["conventions"]["residual_error"] < 1e-5
    assert "block.1.mid" in set(run.table["site"])
    assert (
        profile(tiny_model("llama"), texts[:4], metrics=["curvature"]).manifest["conventions"][
            "residual_error"
        ]
        is None
    )
    swapped = tiny_model("llama")
    for taps in swapped.anatomy.taps:
        taps["attn"], taps["mlp"] = taps["mlp"], taps["attn"]  # type: ignore[index]
    with pytest.raises(ModelError, match="residual identity does not hold"):
        profile(swapped, texts[:4], sites=["block.1.attn"], metrics=["curvature"])


def test_nan_weights_are_an_error_and_leave_no_hooks(texts: list[str]) -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.anatomy.blocks[2].mlp.c_proj.weight.fill_(math.inf)
    with pytest.raises(NonFiniteStatesError, match=r"block\.2 \(layer 3"):
        profile(model, texts, **FAST)
    assert hooks_on(model.module) == 0


def test_curves_and_their_errors(run: Profile) -> None:
    assert list(run.curve("dime").columns) == ["layer", "depth", "site", *VALUES]
    assert (
        run.curve("prompt_entropy", "logN")["value"] < run.curve("prompt_entropy")["value"]
    ).all()
    with pytest.raises(layerscope.LayerscopeError, match="Did you mean 'dime'"):
        run.curve("dimee")
    with pytest.raises(
        layerscope.LayerscopeError, match="no values for normalization='logN', sink='keep'"
    ):
        run.curve("curvature", "logN")
    assert "10 prompts, 4 sites" in repr(run)
