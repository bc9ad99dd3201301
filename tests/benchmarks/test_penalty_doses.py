"""Many small models trained as one: each is what it would be alone, and the tables say what a step of strength does."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import interventions_table as tables
import penalty_doses as doses
import pytest
import torch
import torch.nn.functional as F
from controlled_set import architectures
from layer_penalties import LayerPenalty, middle_layers, token_entropies


@pytest.fixture(scope="module")
def models() -> list[Any]:
    found = [architectures.build("ar", 300, 32, 3, 4, 32, seed) for seed in (0, 1)]
    for model in found:
        for weight in model.parameters():  # far from the first weights, so that norms and biases count
            torch.nn.init.normal_(weight, std=0.3)
        model.set_attn_implementation("eager")
    return found


def test_a_stack_has_the_losses_attention_and_gradients_of_its_models(models: list[Any]) -> None:
    stack = doses.Stack(models, torch.device("cpu"))
    ids, following = torch.randint(4, 300, (2, 2, 3, 20), generator=torch.Generator().manual_seed(0))
    losses, states = stack.losses(ids, following)
    _, shares = stack.states(ids, on_first=True)
    middle = middle_layers(3)
    entropy = torch.stack([token_entropies(states[k].flatten(0, 1)).view(2, -1).mean(1) for k in middle]).mean(0)
    (losses + 0.1 * entropy).sum().backward()  # type: ignore[no-untyped-call]
    for i, model in enumerate(models):
        model.zero_grad()
        with LayerPenalty(model, "compress", weight=0.1) as penalty:
            found = model(input_ids=ids[i], output_attentions=True)
            loss = F.cross_entropy(found.logits.flatten(0, 1), following[i].flatten())
            (loss + penalty.term()).backward()
        assert losses[i].item() == pytest.approx(loss.item(), rel=1e-5)
        for block, attention in enumerate(found.attentions):
            torch.testing.assert_close(shares[block][i], attention[:, :, 1:, 0].mean((0, 2)))
        for name, weight in model.named_parameters():
            torch.testing.assert_close(stack.weights[name].grad[i], weight.grad, rtol=1e-3, atol=2e-5)  # type: ignore[index]


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


def test_a_trend_is_a_line_through_the_strengths_of_each_seed() -> None:
    flat = dict.fromkeys(["entropy_keep", "dataset_entropy", "sink_ratio", "found_again", tables.SCORED_PAIRS], [1.0] * 13)
    layers = {**flat, **dict.fromkeys(tables.CLASSIFICATION, [0.5] * 13)}

    def run(arm: str, step: int, seed: int) -> dict[str, Any]:
        loss = 4 + seed + step * (0.1 + 0.01 * seed)
        return {"objective": "ar", "arm": arm, "seed": seed, "held_out_loss": loss, "layers": layers, "valleys": {}}

    arms = ["none", "compress 0.1", "compress 0.01"]
    runs = [run(arm, [0, 2, 1][i], seed) for seed in range(3) for i, arm in enumerate(arms)]
    runs += [run("spread 0.01", 0, seed) for seed in range(3)]
    found = {(row["effect"], row["quantity"]): row for row in tables.trends(runs)}
    compress, spread = (found[effect, "held_out_loss"] for effect in ("compress", "spread"))
    assert compress["per_step"] == pytest.approx(0.11)
    assert compress["low"] > 0
    assert compress["monotone"] == pytest.approx(1)
    assert spread["per_step"] == pytest.approx(0)


def test_kept_measures_are_told_as_paired_differences_and_as_a_trend(tmp_path: Path) -> None:
    arms = {"none": 0, "compress 0.01": 1, "compress 0.1": 2, "spread 0.1": -1}
    rows = [
        {"arm": arm, "weight": 0.0, "seed": seed, "steps": 5, "held_out_loss": 4 + 2 * seed + step * (0.1 + 0.01 * seed)}
        for seed in range(3)
        for arm, step in arms.items()
    ]
    tables.write_table(rows, tmp_path / "doses.csv")
    tables.tell_doses(tmp_path)
    with (tmp_path / "summary.csv").open(encoding="utf-8") as stream:
        found = {row["arm"]: row for row in csv.DictReader(stream)}
    assert float(found["compress 0.1"]["value"]) == pytest.approx(0.22)
    assert float(found["compress 0.1"]["low"]) > 0  # seeds differ by two, but the arms of a seed do not
    assert float(found["compress, per step of strength"]["value"]) == pytest.approx(0.11)
    assert float(found["spread 0.1"]["high"]) < 0
