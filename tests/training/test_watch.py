"""A model in training, watched: the numbers are right, and the training is the same bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf

import layerscope
from layerscope.errors import (
    DataError,
    LayerscopeError,
    RunFolderError,
)
from layerscope.metrics import Metric, MetricInfo
from layerscope.metrics.registry import REGISTRY
from layerscope.training import LayerWatch
from layerscope.training import watch as watch_module
from layerscope.training.watch import COLUMNS
from tests.tiny import build_tiny, tiny_tokenizer

TEXTS = ["held out one", "a second text, longer than the first", "and a third of them", "four"]


def language_model(dropout: float = 0.2) -> hf.GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 262, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **drops, bos_token_id=1, eos_token_id=2))


def train(model: torch.nn.Module, steps: int, watch: LayerWatch | None) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(7)
    model.train()
    for step in range(1, steps + 1):
        batch = torch.randint(6, 262, (4, 12))
        model(input_ids=batch, labels=batch).loss.backward()
        if watch is not None:
            watch.measure(step)  # with gradients in place, before they are used
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def reference(x: np.ndarray) -> dict[str, float]:
    """Entropy and effective rank of centered unit rows."""
    y = x - x.mean(0)
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    sigma = np.linalg.svd(y, compute_uv=False)
    sigma = sigma[sigma > 1e-6 * sigma.max()]
    p, q = sigma**2 / (sigma**2).sum(), sigma / sigma.sum()
    return {"entropy": float(-(p * np.log(p)).sum()), "rank": float(np.exp(-(q * np.log(q)).sum()))}


def test_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain = train(language_model(), 4, None)
    watched = language_model()
    watch = LayerWatch(watched, TEXTS, tiny_tokenizer(), out=tmp_path / "layers.csv")
    after = train(watched, 4, watch)
    assert plain.keys() == after.keys()
    for name, value in plain.items():
        assert torch.equal(value, after[name]), name
    assert watched.training
    assert watch.table["step"].nunique() == 4


def test_modes_gradients_and_random_numbers_are_left_as_they_were(tmp_path: Path) -> None:
    model = language_model()
    model.train()
    model.transformer.h[1].eval()  # a part that is kept frozen
    ids = torch.randint(6, 262, (2, 9))
    model(input_ids=ids, labels=ids).loss.backward()
    modes = [part.training for part in model.modules()]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert gradients
    state = torch.get_rng_state()
    LayerWatch(model, TEXTS, tiny_tokenizer(), out=tmp_path / "layers.csv").measure(1)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            gradients, (p.grad for p in model.parameters() if p.grad is not None), strict=True
        )
    )
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_numbers_match_numpy_on_the_models_hidden_states(tmp_path: Path) -> None:
    module, tokenizer = build_tiny("llama"), tiny_tokenizer()
    watch = LayerWatch(module, TEXTS, tokenizer, out=tmp_path / "layers.csv")
    rows = watch.measure(3).set_index(["layer", "metric", "sink"])["value"]
    states = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden = module(
                torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True
            ).hidden_states
        states.append([h[0].double().numpy() for h in hidden])
    for layer in range(3):
        each = [s[layer] for s in states]
        kept = [reference(x)["entropy"] for x in each]
        norms = [np.linalg.norm(x, axis=1) for x in each]
        dropped = [
            reference(np.delete(x, n.argmax(), axis=0))["entropy"]
            for x, n in zip(each, norms, strict=True)
        ]
        pooled = reference(np.stack([x.mean(0) for x in each]))
        assert rows[layer, "prompt_entropy", "keep"] == pytest.approx(np.mean(kept), abs=1e-4)
        assert rows[layer, "prompt_entropy", "drop"] == pytest.approx(np.mean(dropped), abs=1e-4)
        assert rows[layer, "sink_ratio", "keep"] == pytest.approx(
            np.mean([n.max() / np.median(n) for n in norms]), rel=0.05
        )
        assert rows[layer, "dataset_entropy", "keep"] == pytest.approx(pooled["entropy"], abs=1e-4)
        assert rows[layer, "effective_rank", "keep"] == pytest.approx(pooled["rank"], abs=1e-3)
        assert (layer, "curvature", "keep") in rows.index


def test_measuring_takes_its_share_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(watch_module.time, "perf_counter", lambda: now[0])
    real = watch_module.measure_layers

    def measure(*given: object) -> object:
        now[0] += 1.0
        return real(*given)

    monkeypatch.setattr(watch_module, "measure_layers", measure)
    watch = LayerWatch(
        build_tiny("llama"), TEXTS, tiny_tokenizer(), share=0.1, out=tmp_path / "layers.csv"
    )
    measured = []
    for step in range(1, 201):
        now[0] += 0.5
        if watch.step(step):
            measured.append(step)
            assert step == 1 or watch.spent <= 0.1 + 1e-9
    assert 8 <= len(measured) <= 12
    assert sorted(watch.table["step"].unique()) == measured


def test_csv_can_be_read_back_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "layers.csv"
    for step in (1, 2):
        LayerWatch(build_tiny("llama"), TEXTS, tiny_tokenizer(), out=path).measure(step)
    table = pd.read_csv(path)
    assert list(table.columns) == COLUMNS
    assert sorted(table["step"].unique()) == [1, 2]
    held = json.loads(path.with_suffix(".json").read_text())
    assert held["final_norm"] == "raw"
    assert held["held_out"]["texts"] == 4
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunFolderError, match="is no table of layers"):
        LayerWatch(build_tiny("llama"), TEXTS, tiny_tokenizer(), out=tmp_path / "other.csv")


def test_numbers_are_sent_as_they_are_measured(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[dict[str, float]] = []
    tokenizer = tiny_tokenizer()
    watch = LayerWatch(build_tiny("llama"), TEXTS, tokenizer, out=None, on_rows=sent.append)
    rows = watch.measure(9)
    (numbers,) = sent
    assert numbers["step"] == 9
    assert len(numbers) == 1 + len(rows)
    entropy = rows[(rows["layer"] == 2) & (rows["metric"] == "prompt_entropy")]
    assert numbers["layers/prompt_entropy/02"] == entropy[entropy["sink"] == "keep"]["value"].item()

    def broken(numbers: dict[str, float]) -> None:
        raise ConnectionError("no network")

    watch = LayerWatch(build_tiny("llama"), TEXTS, tiny_tokenizer(), out=None, on_rows=broken)
    assert len(watch.measure(1))
    assert "on_rows failed (ConnectionError: no network): not logged" in caplog.text


def test_broken_states_do_not_end_a_training(tmp_path: Path) -> None:
    module = build_tiny("llama")
    module.layers[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    broken = LayerWatch(module, TEXTS, tiny_tokenizer(), out=tmp_path / "broken.csv")
    with pytest.warns(UserWarning, match="step 4: layers not measured. NaN"):
        assert broken.measure(4).empty


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one string"):
        LayerWatch(build_tiny("llama"), "one", tiny_tokenizer(), out=tmp_path / "x.csv")
    with pytest.raises(DataError, match="no token"):
        LayerWatch(build_tiny("llama"), [], tiny_tokenizer(), out=tmp_path / "x.csv")
    with pytest.raises(LayerscopeError, match="between 0 and 1"):
        LayerWatch(build_tiny("llama"), TEXTS, tiny_tokenizer(), share=3, out=tmp_path / "x.csv")


def test_chosen_metrics_are_measured(tmp_path: Path) -> None:
    names = ["curvature", "anisotropy", "sink_first"]
    watch = LayerWatch(language_model(0.0), TEXTS, tiny_tokenizer(), out=None, metrics=names)
    table = watch.measure(1)
    assert list(dict.fromkeys(table["metric"])) == names
    profile = layerscope.profile(
        watch.model, TEXTS, metrics=names, final_norm="raw", progress=False
    )
    for name in names:
        got = table[(table["metric"] == name) & (table["sink"] == "keep")]["value"].to_numpy()
        np.testing.assert_allclose(got, profile.curve(name)["value"], rtol=1e-5, atol=1e-6)
    with pytest.raises(LayerscopeError, match="infonce compares augmented views"):
        LayerWatch(
            language_model(),
            TEXTS,
            tiny_tokenizer(),
            out=tmp_path / "other.csv",
            metrics=["infonce"],
        )


def test_a_metric_from_outside_is_watched_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = MetricInfo(
        name="token_count", title="Tokens", level="tokens", unit="tokens", higher_means="longer", citation="",
        bounds="at least 0", sinks=("keep", "drop"), compare_sinks=True,
    )  # fmt: skip
    tokens = Metric(info, measure=lambda states, mask, options: mask.sum(-1).double())
    REGISTRY.load()
    monkeypatch.setitem(REGISTRY._things, "token_count", tokens)
    watch = LayerWatch(language_model(), TEXTS, tiny_tokenizer(), out=None)
    table = watch.measure(1)
    lengths = np.array([len(ids) for ids in watch.prompts])
    for sink, less in (("keep", 0), ("drop", 1)):
        rows = table[(table["metric"] == "token_count") & (table["sink"] == sink)]
        assert len(rows) == 4
        assert rows["value"].to_numpy() == pytest.approx(lengths.mean() - less)
