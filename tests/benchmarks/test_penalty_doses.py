"""Many small models trained as one: each is what it would be alone, and the tables say what a step
of strength does."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import interventions_table as tables
import penalty_doses as doses
import pytest
import torch
import torch.nn.functional as F
from controlled_set import architectures, training
from layer_penalties import LayerPenalty, middle_layers, token_entropies


@pytest.fixture(scope="module")
def models() -> list[Any]:
    found = [architectures.build("ar", 300, 32, 3, 4, 32, seed) for seed in (0, 1)]
    for model in found:
        for (
            weight
        ) in model.parameters():  # far from the first weights, so that norms and biases count
            torch.nn.init.normal_(weight, std=0.3)
        model.set_attn_implementation("eager")
    return found


def test_a_stack_has_the_losses_attention_and_gradients_of_its_models(models: list[Any]) -> None:
    stack = doses.Stack(models, torch.device("cpu"))
    ids, following = torch.randint(
        4, 300, (2, 2, 3, 20), generator=torch.Generator().manual_seed(0)
    )
    losses, states = stack.losses(ids, following)
    _, shares = stack.states(ids, on_first=True)
    middle = middle_layers(3)
    entropy = torch.stack(
        [token_entropies(states[k].flatten(0, 1)).view(2, -1).mean(1) for k in middle]
    ).mean(0)
    (losses + 0.1 * entropy).sum().backward()  # type: ignore[no-untyped-call]
    for i, model in enumerate(models):
        model.zero_grad()
        with LayerPenalty(model, "compress", weight=0.1) as penalty:
            found = model(input_ids=ids[i], output_attentions=True)
            loss = F.cross_entropy(found.logits.flatten(0, 1), following[i].flatten())
            (loss + penalty.term()).backward()
        assert losses[i].item() == pytest.approx(loss.item(), rel=1e-5)
        for block, attention in enumerate(found.attentions):
            torch.testing.assert_close(shares[block][i], attention[..., 0])
        for name, weight in model.named_parameters():
            torch.testing.assert_close(
                stack.weights[name].grad[i], weight.grad, rtol=1e-3, atol=2e-5
            )  # type: ignore[index]


def test_gradients_are_clipped_per_model() -> None:
    grads = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[[4.0]], [[0.4]]])]
    doses.clip(grads)
    torch.testing.assert_close(grads[0], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(grads[1].flatten(), torch.tensor([0.8, 0.4]))


def test_every_seed_has_every_strength_of_both_signs() -> None:
    jobs = doses.all_jobs(doses.WEIGHTS, 3)
    assert len(jobs) == 33
    signed = [tables.signed_weight(job.arm) for job in jobs if job.seed == 2]
    assert sorted(signed) == sorted([0.0, *doses.WEIGHTS, *(-weight for weight in doses.WEIGHTS)])


def test_batches_drawn_ahead_are_those_of_one_model_alone() -> None:
    stream, plan = torch.arange(1000), training.Plan(batch=3, length=8)
    found = doses.drawn(stream, plan, [0, 4], ahead=2)
    alone = [torch.Generator().manual_seed(seed + 1) for seed in (0, 4)]
    for _ in range(5):
        ids, following = next(found)
        for i, draw in enumerate(alone):
            for mine, theirs in zip(
                (ids[i], following[i]), training.windows(stream, 3, 8, draw), strict=True
            ):
                assert torch.equal(mine, theirs)


def test_heads_with_a_sink_are_counted_in_each_text(
    monkeypatch: pytest.MonkeyPatch, models: list[Any]
) -> None:
    stack = doses.Stack(models, torch.device("cpu"))
    given = torch.full((2, 2, 4, 128), 0.1)  # (models, texts, heads, tokens)
    given[0, 0, 0, :64] = (
        0.5  # one head of one model, in one of two texts, and only of the early tokens
    )
    given[1, :, 1] = 0.4
    states = [torch.ones(2, 2, 128, 32)] * 4
    monkeypatch.setattr(stack, "states", lambda *_, **__: (states, [given] * 3))
    held = torch.arange(4, 300).repeat(3)
    found = doses.sinks(stack, held, doses.arms.Size(batch=2))
    assert found["sink_heads"].tolist() == pytest.approx([1 / 8, 1 / 4])
    assert found["sink_heads_strict"].tolist() == pytest.approx([0, 1 / 4])


def test_kept_measures_are_told_as_paired_differences_and_as_a_trend(tmp_path: Path) -> None:
    arms = {"none": 0, "compress 0.01": 1, "compress 0.1": 2, "spread 0.1": -1}
    rows = [
        {
            "arm": arm,
            "weight": 0.0,
            "seed": seed,
            "steps": 5,
            "held_out_loss": 4 + 2 * seed + step * (0.1 + 0.01 * seed),
        }
        for seed in range(3)
        for arm, step in arms.items()
    ]
    tables.write_table(rows, tmp_path / "doses.csv")
    tables.tell_doses(tmp_path)
    with (tmp_path / "summary.csv").open(encoding="utf-8") as stream:
        found = {row["arm"]: row for row in csv.DictReader(stream)}
    assert float(found["compress 0.1"]["value"]) == pytest.approx(0.22)
    assert (
        float(found["compress 0.1"]["low"]) > 0
    )  # seeds differ by two, but the arms of a seed do not
    assert float(found["compress, per step of strength"]["value"]) == pytest.approx(0.11)
    assert float(found["spread 0.1"]["high"]) < 0


def test_a_study_ends_in_a_table_for_people(tmp_path: Path) -> None:
    flat = dict.fromkeys(
        ["entropy_keep", "dataset_entropy", "sink_ratio", "found_again", tables.SCORED_PAIRS],
        [1.0] * 13,
    )
    layers = {**flat, **dict.fromkeys(tables.CLASSIFICATION, [0.5] * 13), "first_ratio": [2.0] * 13}
    runs = [
        {"objective": "ar", "arm": arm, "weight": 0.0, "seed": seed, "steps": 4000, "batch": 64, "device": "none", "date": "now",
         "commit": "abc", "held_out_loss": 4 + seed + step * (0.1 + 0.01 * seed), "layers": layers, "valleys": {},
         "sink_heads": 0.2, "sink_heads_strict": 0.05, "attention_first": [0.1], "sink_curve": {"500": [0.1, 0.0, 1.0, 5.0]}}
        for seed in range(3)
        for step, arm in enumerate(["none", "compress 0.01", "compress 0.1"])
    ]  # fmt: skip
    runs += [{**run, "arm": "spread 0.1"} for run in runs if run["arm"] == "none"]
    tables.write_doses(runs, tmp_path)
    said = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| compress 0.1 | **+0.22** (+0.17 to +0.27) |" in said
    assert "12 autoregressive models, 4,000 steps" in said
    assert "10 % at 500" in said
