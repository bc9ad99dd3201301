"""Entropy as a function of α: values against numpy, and the direction of the effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model

from layerscope.errors import LayerscopeError
from layerscope_paper.studies.alpha import top_weight
from layerscope_paper.studies.run import study

TEXTS = [
    "a red fox ran over the hill",
    "numbers: 1 2 3 4 5 6 7 8",
    "one more text, rather short",
    "and the last one of them",
]


def renyi(p: np.ndarray, alpha: float) -> float:
    return (
        float(-(p * np.log(p)).sum())
        if alpha == 1
        else float(np.log((p**alpha).sum()) / (1 - alpha))
    )


def test_power_laws_match_numpy_and_need_no_model() -> None:
    run = study("alpha", exponents=[0.5, 2.0], size=40, alphas=[0.5, 1.0, 3.0])
    rows = run.table[run.table["metric"] == "entropy"].set_index(["spectrum", "alpha"])["value"]
    for beta in (0.5, 2.0):
        p = np.arange(1, 41) ** -beta
        p /= p.sum()
        for alpha in (0.5, 1.0, 3.0):
            assert rows[f"β = {beta:g}", alpha] == pytest.approx(renyi(p, alpha), abs=1e-9)
    assert run.verdict[0].startswith("In short: larger α")
    assert "wrong way round" in run.verdict[0]


def test_top_weight_of_a_spectrum_done_by_hand() -> None:
    spectrum = torch.tensor([4.0, 2.0, 1.0, 1.0])
    assert float(top_weight(spectrum, 1.0, 0.25)) == pytest.approx(0.5)
    assert float(top_weight(spectrum, 2.0, 0.25)) == pytest.approx(16 / 22)
    assert float(top_weight(spectrum, 0.0, 0.25)) == pytest.approx(0.25)
    assert float(top_weight(torch.tensor([1.0, 0.0, 0.0, 0.0]), 1.0, 0.5)) == pytest.approx(1.0)


def test_a_models_prompts_match_its_hidden_states() -> None:
    model = tiny_model("llama")
    run = study(
        "alpha", model, data=TEXTS, layers=[0, 2], alphas=[0.5, 1.0, 2.0], exponents=[1.0], size=10
    )
    rows = run.table[
        (run.table["model"] == model.name) & (run.table["metric"] == "entropy")
    ].set_index(["layer", "alpha", "sink"])
    wanted: dict[tuple[int, str], list[np.ndarray]] = {}
    for ids in model.tokenize(TEXTS).ids:
        with torch.inference_mode():
            states = model.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in (0, 2):
            x = states[layer][0].double().numpy()
            sink = np.linalg.norm(x, axis=1).argmax()
            for name, kept in (("keep", x), ("drop", np.delete(x, sink, axis=0))):
                y = kept - kept.mean(0)
                y /= np.linalg.norm(y, axis=1, keepdims=True)
                p = np.linalg.svd(y, compute_uv=False) ** 2
                wanted.setdefault((layer, name), []).append(p[p > 1e-12] / p.sum())
    for (layer, sink), spectra in wanted.items():
        for alpha in (0.5, 1.0, 2.0):
            value = np.mean([renyi(p, alpha) for p in spectra])
            assert rows.loc[(layer, alpha, sink), "value"] == pytest.approx(value, abs=1e-4)
            assert (
                rows.loc[(layer, alpha, sink), "ci_low"]
                <= value
                <= rows.loc[(layer, alpha, sink), "ci_high"]
            )


def test_invalid_options_are_refused() -> None:
    with pytest.raises(LayerscopeError, match="has layers 0 to 3"):
        study("alpha", tiny_model("llama"), data=TEXTS, layers=[9])
    with pytest.raises(LayerscopeError, match=r"from 0 to 1, not 2\.0"):
        study("alpha", top=2.0)


def test_the_verdict_goes_from_the_first_layer_to_the_last() -> None:
    run = study(
        "alpha",
        tiny_model("llama"),
        data=TEXTS,
        layers=[3, 0, 2, 1],
        alphas=[5.0, 0.5, 1.0],
        exponents=[2.0, 0.5],
    )
    said = [sentence.split(":")[0] for sentence in run.verdict[1:]]
    layers = [f"tiny-llama, layer {k}" for k in range(4)]
    assert said == ["power law, β = 2", "power law, β = 0.5", *layers]
    assert "at α = 0.5, 1 and 5 the" in run.verdict[1]
