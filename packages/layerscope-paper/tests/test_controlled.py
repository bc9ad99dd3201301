"""The controlled set on the CPU, with tiny settings."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import layerscope
from layerscope.errors import ModelError
from layerscope.metrics import matrix_entropy
from layerscope_paper.controlled import (
    OBJECTIVES,
    LayerPenalty,
    Plan,
    Streams,
    build,
    read_texts,
    token_entropies,
    train,
)
from layerscope_paper.controlled.__main__ import main
from layerscope_paper.controlled.model import BOS, EOS, MASK
from layerscope_paper.controlled.train import draw_windows, mask_tokens
from layerscope_paper.studies.run import study

PLAN = Plan(steps=40, batch=16, length=24, width=16, blocks=2, heads=2, learning_rate=1e-2)
TINY = {"steps": 2, "batch": 4, "length": 24, "width": 16, "blocks": 3}


def reviews(count: int) -> list[str]:
    draw = random.Random(0)
    kinds, verdicts = ["film", "story", "scene"], ["good", "dull", "too long", "a surprise"]
    return [
        ". ".join(
            f"The {draw.choice(kinds)} was {draw.choice(verdicts)}"
            for _ in range(draw.randint(3, 9))
        )
        + f". Take {i}."
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def streams() -> Streams:
    return read_texts(reviews(120), 300)


def test_texts_are_split_by_their_own_hash(streams: Streams) -> None:
    again = read_texts(reversed(reviews(120)), 300)
    assert set(again.held_out_texts) == set(streams.held_out_texts)
    assert 0 < len(streams.held_out_texts) < 20
    ends = np.flatnonzero(streams.held_out == EOS)
    assert len(ends) == len(streams.held_out_texts)
    assert streams.tokenizer.decode(streams.held_out[: ends[0]]) == streams.held_out_texts[0]


def test_the_next_token_is_predicted() -> None:
    ids, following = draw_windows(torch.arange(4, 100), 5, 8, torch.Generator().manual_seed(0))
    assert torch.equal(ids[:, 1:], following[:, :-1])
    assert torch.equal(ids[:, 2:], ids[:, 1:-1] + 1)
    assert (ids[:, 0] == BOS).all()


def test_masking() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 300, (200, 100), generator=generator)
    ids[:, 0] = BOS
    shown, targets = mask_tokens(ids, 0.3, 300, generator)
    chosen = targets != -100
    assert not chosen[:, 0].any()
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert torch.equal(targets[chosen], ids[chosen])
    assert float(chosen[:, 1:].float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float((shown[chosen] == MASK).float().mean()) == pytest.approx(0.8, abs=0.02)


def test_the_transformers_differ_in_the_mask_alone() -> None:
    one, other = (build(name, 300, 16, 2, 2, 24, seed=0) for name in ("ar", "mlm"))
    for (name, a), (same, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(a, b)


def test_sizes_are_close() -> None:
    sizes = {
        name: sum(p.numel() for p in build(name, 4096, 128, 12, 4, 128, 0).parameters())
        for name in OBJECTIVES
    }
    assert sizes["ar"] == sizes["mlm"]
    assert sizes["mamba"] == pytest.approx(sizes["ar"], rel=0.12)


def test_the_loss_falls(streams: Streams) -> None:
    losses: list[float] = []
    _, loss = train("ar", streams, PLAN, on_step=lambda step, model, each: losses.append(each))
    assert losses[1] == pytest.approx(np.log(300), abs=0.6)
    assert loss < losses[1] - 1


def test_saved_models_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(reviews(60)), encoding="utf-8")
    sizes = [f"--{name}={value}" for name, value in {**TINY, "heads": 2}.items()]
    main([str(tmp_path / "set"), "--data", str(tmp_path / "texts.txt"), *sizes])
    for name in OBJECTIVES:
        folders = sorted(folder.name for folder in (tmp_path / "set" / name).iterdir())
        assert folders == ["step0", "step2"]
        loaded = layerscope.load(tmp_path / "set" / name / "step2")
        assert loaded.n_blocks == 3
        assert loaded.identity["bidirectional"] == (name == "mlm")
        assert loaded.tokenizer("The film")["input_ids"][0] == BOS


def test_the_penalty_is_the_metric_and_has_its_gradient() -> None:
    states = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    expected = [float(matrix_entropy(each, 2.0, rows="centered-unit")) for each in states.detach()]
    assert token_entropies(states).tolist() == pytest.approx(expected, abs=1e-9)
    assert torch.autograd.gradcheck(token_entropies, (states,))
    with torch.no_grad():
        states[0, 1] = states[0, 0]  # two equal tokens
    token_entropies(states).sum().backward()
    assert states.grad is not None
    assert bool(torch.isfinite(states.grad).all())


def test_a_term_is_made_once_per_pass_and_hooks_go_away() -> None:
    model = build("ar", 50, 16, 3, 2, 24, seed=0)
    ids = torch.randint(4, 50, (2, 9))
    with LayerPenalty(model, 0.5, [1, 2]) as penalty:
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        expected = 0.5 * torch.stack([token_entropies(states[k]).mean() for k in (1, 2)]).mean()
        assert float(penalty.term()) == pytest.approx(float(expected), abs=1e-6)
        with pytest.raises(ModelError, match="once after each forward pass"):
            penalty.term()
    model(input_ids=ids)
    with pytest.raises(ModelError, match="once after each forward pass"):
        penalty.term()


def test_the_study_pairs_by_seed(tmp_path: Path) -> None:
    options = {**TINY, "weights": [1.0], "seeds": [0, 1]}
    run = study("penalties", data=reviews(300), out=tmp_path / "run", progress=False, **options)
    rows = run.table[run.table["metric"] == "loss"]
    values = rows[rows["kind"] == "value"].set_index(["weight", "seed"])["value"]
    (change,) = rows.loc[rows["kind"] == "change", "value"]
    assert change == pytest.approx((values[1.0] - values[0.0]).mean())
    assert run.verdict[0].startswith("In short: ")
    layers = run.table[run.table["metric"] == "found_again"]["layer"]
    assert sorted(layers.unique()) == [0, 1, 2, 3]
