"""Entropy along the sequence on tiny models, against numpy on the models' own hidden states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model

from layerscope.errors import LayerscopeError
from layerscope_paper.studies.run import study

TEXTS = [
    "first a rather long sentence about nothing in particular, and then some more of it",
    "numbers: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21",
    "short one",
    "another text that has a length of its own and ends here.",
]


def entropy(x: np.ndarray) -> float:
    y = x / np.linalg.norm(x, axis=1, keepdims=True)
    p = np.linalg.svd(y, compute_uv=False) ** 2
    p = p[p > 1e-14 * p.sum()] / p.sum()
    return float(-(p * np.log(p)).sum())


def by_hand(model, center: str, sink: str) -> dict[tuple[int, int], list[float]]:  # type: ignore[no-untyped-def]
    out: dict[tuple[int, int], list[float]] = {}
    for ids in model.tokenize(TEXTS, 256).ids:
        with torch.inference_mode():
            states = model.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in range(model.n_blocks):  # the last one is normed there
            x = states[layer][0].double().numpy()
            place = int(np.linalg.norm(x, axis=1).argmax())
            for n in range(2, len(ids) + 1):
                kept = np.array([i for i in range(n) if sink == "keep" or i != place])
                whole = np.array([i for i in range(len(ids)) if sink == "keep" or i != place])
                centre = x[kept].mean(0) if center == "prefix" else x[whole].mean(0)
                value = entropy(x[kept] - centre) if len(kept) > 1 or center == "prompt" else np.nan
                if np.isfinite(value):
                    out.setdefault((layer, n), []).append(value)
    return out


@pytest.mark.parametrize("center", ["prompt", "prefix"])
def test_every_prefix_of_every_layer_matches_numpy(center: str) -> None:
    model = tiny_model("llama")
    run = study("reasoning", model, data=TEXTS, center=center)
    for sink in ("keep", "drop"):
        rows = run.table[run.table["sink"] == sink].set_index(["layer", "position"])["value"]
        wanted = by_hand(model, center, sink)
        assert len(wanted) > 150
        for key, values in wanted.items():
            assert rows[key] == pytest.approx(np.mean(values), abs=2e-4), (sink, key)


@pytest.mark.usefixtures("figure_files")
def test_two_models_are_compared_prompt_by_prompt(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one, two = tiny_model("llama"), tiny_model("llama", seed=3)
    two.name = "tiny-llama-taught"
    run = study("reasoning", one, two, data=TEXTS, stride=5, out=tmp_path / "run")
    assert (tmp_path / "run" / "figure.png").stat().st_size > 10_000
    assert run.verdict[0].startswith(
        "In short: over all layers, prompt entropy of tiny-llama-taught is"
    )
    assert run.verdict[1].startswith("tiny-llama-taught against tiny-llama, prompt by prompt")
    table = run.table[(run.table["sink"] == "keep")]
    assert set(table["position"] % 5) <= {0, table["position"].max() % 5}
    # the difference in the verdict is the mean over prompts of the mean over positions and layers,
    # here of the middle third
    from layerscope.data import load_corpus
    from layerscope.progress import Silent
    from layerscope_paper.studies import Request
    from layerscope_paper.studies.reasoning import STUDY, measure
    from layerscope_paper.studies.shared.models import read_specs

    request = Request(
        [one, two],
        load_corpus(TEXTS),
        STUDY.fill({"stride": 5}),
        0,
        {},
        "raw",
        256,
        tmp_path / "again",
    )
    held = [measure(request, spec, Silent()).values["keep"] for spec in read_specs(request.models)]
    difference = np.nanmean(np.nanmean(held[1][:, 1] - held[0][:, 1], axis=1))
    assert f"{difference:+.2f}" in run.verdict[1]


def test_finished_prompts_are_not_run_again(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from layerscope_paper.studies import reasoning as module

    calls = []
    real = module._prompt

    def once(*args):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, "_prompt", once)
    with pytest.raises(KeyboardInterrupt):
        study("reasoning", tiny_model("llama"), data=TEXTS, out=tmp_path / "run", stride=4)
    run = study("reasoning", tiny_model("llama"), data=TEXTS, out=tmp_path / "run", stride=4)
    assert len(calls) == 5  # two before, one broken off, two after
    assert run.table["n"].max() == 4


def test_different_tokens_are_noted_and_invalid_options_are_refused() -> None:
    run = study("reasoning", tiny_model("llama"), tiny_model("bert"), data=TEXTS, stride=8)
    assert any("different tokens" in note for note in run.manifest["warnings"])
    for wrong, message in ({"stride": 0}, "1 or more"), ({"center": "moon"}, "prompt"):
        with pytest.raises(LayerscopeError, match=message):
            study("reasoning", tiny_model("llama"), data=TEXTS, **wrong)


def test_traces_are_greedy_and_followed() -> None:
    """What is written is what transformers' own greedy decoding gives; the verdict speaks about the
    trace."""
    import torch
    from tests.tiny import _LLAMA, hf, tiny_tokenizer

    from layerscope.models import wrap
    from layerscope_paper.studies.reasoning import output_weights, write_on

    torch.manual_seed(0)
    full = hf.LlamaForCausalLM(hf.LlamaConfig(**_LLAMA, tie_word_embeddings=True)).eval()
    model = wrap(full, tiny_tokenizer(), "tied")
    ids = model.tokenize(["a question about numbers"]).ids[0]
    expected = full.generate(torch.tensor([ids]), max_new_tokens=9, do_sample=False)[
        0, len(ids) :
    ].tolist()
    stop = model.module.config.eos_token_id
    expected = expected[: expected.index(stop)] if stop in expected else expected
    assert write_on(model, output_weights(model), ids, 9) == expected
    run = study(
        "reasoning",
        model,
        data=["a question about numbers", "another one, longer than the first"],
        generate=9,
    )
    assert (
        run.table["position"].max()
        == len(model.tokenize(["another one, longer than the first"]).ids[0]) + 9
    )
    assert any("wrote 9 tokens after 2 of 2 texts" in line for line in run.verdict)
    assert run.manifest["conventions"]["trace"].startswith("up to 9 tokens")
    room = write_on(model, output_weights(model), list(range(10, 10 + 126)), 9)
    assert len(room) <= 2  # the context is full


def test_a_model_without_its_output_layer_cannot_write() -> None:
    with pytest.raises(LayerscopeError, match="its output layer is not loaded"):
        study("reasoning", tiny_model("llama"), data=["some words to read"], generate=3)
    with pytest.raises(LayerscopeError, match="it is not a decoder"):
        study("reasoning", tiny_model("bert"), data=["some words to read"], generate=3)
