"""The study of a short training: halves, seeds, what it changes and what it says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model

from layerscope.data import Corpus
from layerscope.errors import LayerscopeError
from layerscope_paper.studies.finetune import Trainer, fresh_copy, split
from layerscope_paper.studies.run import study


@pytest.fixture(scope="module")
def many() -> list[str]:
    words = ["river", "market", "winter", "engine", "garden", "letter", "mirror", "planet"]
    return [
        f"the {words[i % 8]} and the {words[(3 * i + 1) % 8]} near number {i} are {words[(5 * i + 2) % 8]}"
        for i in range(40)
    ]


SMALL = {
    "steps": "0,4",
    "batch": 8,
    "rate": 0.003,
    "train_tokens": 24,
    "metrics": "prompt_entropy,infonce,lidar,dime",
}


def test_training_and_measuring_share_no_text(many: list[str]) -> None:
    train, test = split(Corpus.of(many))
    assert not set(train.texts) & set(test.texts)
    assert len(train) == len(test) == 20
    with pytest.raises(LayerscopeError, match="too few"):
        split(Corpus.of(many[:20]))


@pytest.mark.slow  # the next test trains in every run
def test_contrastive_training_makes_views_more_alike(many: list[str], tmp_path: Path) -> None:
    model = tiny_model("llama")
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    run = study("finetune", model, data=many, out=tmp_path / "run", max_length=32, **SMALL)
    for name, weight in model.module.state_dict().items():  # a copy was trained
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    values = run.table[run.table["kind"] == "value"]
    assert set(values["seed"]) == {0, 1, 2}
    assert set(values["step"]) == {0, 4}
    change = run.table[run.table["kind"] == "change"]
    assert (change["n"] == 3).all()
    infonce = change[(change["metric"] == "infonce") & (change["layer"] == 3)]
    assert float(infonce["value"].iloc[0]) < 0  # the loss that was trained on
    assert "3 seeds" in run.verdict[0]
    assert "augmentation invariance" in run.verdict[0]
    mean = run.table[
        (run.table["kind"] == "value")
        & (run.table["metric"] == "infonce")
        & (run.table["layer"] == 3)
    ]
    after, start = (mean[mean["step"] == step].set_index("seed")["value"] for step in (4, 0))
    assert float(infonce["value"].iloc[0]) == pytest.approx(float((after - start).mean()))
    stamp = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    study("finetune", model, data=many, out=tmp_path / "run", max_length=32, **SMALL)
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == stamp


def test_fewer_than_three_seeds_show_no_clear_change(many: list[str]) -> None:
    settings = {**SMALL, "metrics": "prompt_entropy"}
    run = study(
        "finetune",
        tiny_model("llama"),
        data=many,
        max_length=32,
        seeds="0,1",
        objective="language",
        fresh=True,
        **settings,
    )
    assert "fewer than 3: nothing is called clear" in run.verdict[0]
    assert "does not clearly change" in run.verdict[1]
    start = run.table[
        (run.table["kind"] == "value") & (run.table["step"] == 0) & (run.table["layer"] == 2)
    ]
    assert start.groupby("seed")["value"].first().nunique() == 2  # fresh weights differ by seed


def test_the_language_loss_is_that_of_the_tied_head(many: list[str]) -> None:
    model = tiny_model("llama")
    module = fresh_copy(model, fresh=False)
    from layerscope.models import wrap

    options = {"objective": "language", "batch": 4, "rate": 1e-3, "train_tokens": 16}
    trainer = Trainer(wrap(module, model.tokenizer, "copy"), options, many, 0)
    ids = [row[:16] for row in model.tokenize(many[:4], 16).ids]
    loss = float(trainer._language(many[:4]).detach())
    total, count = 0.0, 0
    for row in ids:
        with torch.no_grad():
            states = module(input_ids=torch.tensor([row])).last_hidden_state[0]
        logits = states[:-1] @ module.get_input_embeddings().weight.T
        total += float(
            torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")
        )
        count += len(row) - 1
    assert loss == pytest.approx(total / count, rel=1e-4)
    bert = tiny_model("bert")
    with pytest.raises(LayerscopeError, match="for decoders"):
        Trainer(bert, options, many, 0)
