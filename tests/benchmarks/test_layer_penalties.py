"""Penalties on layers: the terms' values and gradients, the hooks, and the callback inside the
Trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from layer_penalties import (
    LayerPenalty,
    PenaltyCallback,
    middle_layers,
    token_entropies,
    variance_covariance,
)

from layerscope.errors import LayerscopeError, ModelError, UnknownNameError
from layerscope.metrics import Options
from layerscope.metrics.tokens.measures import prompt_entropies
from tests.tiny import build_tiny
from tests.training.test_callback import Data
from tests.training.test_watch import language_model


def states(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.mark.parametrize("rows", ["raw", "unit", "centered", "centered-unit"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("width", [3, 8])  # fewer and more features than tokens
def test_entropy_is_the_metric_and_its_gradient_is_right(
    rows: Any, alpha: float, width: int
) -> None:
    x = states(2, 5, width)
    expected = prompt_entropies(x, MASK.bool(), Options(alpha=alpha, rows=rows))
    assert torch.allclose(token_entropies(x, MASK, alpha, rows), expected, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda z: token_entropies(z, MASK, alpha, rows), x.requires_grad_()
    )


def test_padding_changes_neither_value_nor_gradient() -> None:
    x = states(1, 3, 6)
    padded = torch.cat([x, 1e6 * torch.ones(1, 2, 6, dtype=torch.float64)], dim=1).requires_grad_()
    alone = x.clone().requires_grad_()
    short, long = token_entropies(alone), token_entropies(padded, MASK[1:])
    assert torch.allclose(short, long, atol=1e-12)
    short.sum().backward()
    long.sum().backward()
    assert torch.allclose(alone.grad, padded.grad[:, :3], atol=1e-12)  # type: ignore[index]
    assert not padded.grad[:, 3:].any()  # type: ignore[index]


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_gradient_is_finite_where_a_token_has_no_direction_or_two_are_equal(alpha: float) -> None:
    x = states(1, 6, 4)
    x[0, 1] = x[0, 0]
    x[0, 2] = x[0].mean(0) * 6 / 5 - x[0, 2] / 5  # makes this token the mean of all six
    x = x.requires_grad_()
    value = token_entropies(x, alpha=alpha)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]


def test_a_step_against_the_gradient_compresses_to_one_direction_and_with_it_spreads() -> None:
    for sign, goal in (
        (-1, 0.0),
        (1, math.log(3)),
    ):  # four centered tokens have three directions at most
        x = states(1, 4, 8, seed=1).requires_grad_()
        for _ in range(400):
            value = token_entropies(x)
            (slope,) = torch.autograd.grad(value.sum(), x)
            x = (x + sign * 0.2 * slope).detach().requires_grad_()
        assert float(token_entropies(x.detach())) == pytest.approx(goal, abs=0.02)


def test_order_zero_has_no_slope_and_is_refused() -> None:
    with pytest.raises(ValueError, match="no slope"):
        token_entropies(states(1, 3, 3), alpha=0)


def test_variance_and_covariance_known_answers() -> None:
    corners = torch.tensor(
        [[[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]], dtype=torch.float64
    )
    variance, covariance = variance_covariance(corners, relative=False)
    assert float(variance) == 0.0  # 4/3 > 1
    assert float(covariance) == 0.0
    same = corners[..., :1].expand(
        -1, -1, 2
    )  # one feature twice: both covariances are 4/3, and 2 · (4/3)² / 2 remains
    assert float(variance_covariance(same, relative=False)[1]) == pytest.approx(16 / 9)
    assert float(variance_covariance(same)[1]) == pytest.approx(1.0)
    small = 0.1 * corners  # standard deviation 0.1 · √(4/3)
    left = 1 - math.sqrt(0.01 * 4 / 3 + 1e-4)
    assert float(variance_covariance(small, relative=False)[0]) == pytest.approx(left)
    flat = corners * torch.tensor([1.0, 0.0], dtype=torch.float64)  # relative: variances 2 and 0
    assert float(variance_covariance(flat)[0]) == pytest.approx((1 - 0.01) / 2)


@pytest.mark.parametrize("relative", [True, False])
def test_variance_and_covariance_gradients(relative: bool) -> None:
    x = 0.3 * states(2, 5, 3) * torch.tensor([1.0, 2.0, 3.0])
    assert torch.autograd.gradcheck(
        lambda z: sum(variance_covariance(z, MASK, relative=relative)), x.requires_grad_()
    )


def test_relative_terms_do_not_depend_on_the_scale() -> None:
    x = states(2, 5, 3)
    one, two = (torch.stack(variance_covariance(scale * x)) for scale in (1.0, 50.0))
    assert torch.allclose(one, two, atol=1e-4)


def test_variance_of_a_single_token_is_refused() -> None:
    with pytest.raises(LayerscopeError, match="at least 2 tokens"):
        variance_covariance(states(1, 1, 3))


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "bert", "gpt2"])
def test_the_term_is_the_mean_over_the_chosen_layers(family: str) -> None:
    module = build_tiny(family)
    ids = torch.randint(6, 200, (2, 7), generator=torch.Generator().manual_seed(0))
    hidden = module(input_ids=ids, output_hidden_states=True).hidden_states
    with LayerPenalty(module, "compress", weight=0.5, layers=[0, 2]) as penalty:
        module(input_ids=ids)
        term = penalty.term()
        expected = torch.stack([token_entropies(hidden[layer]).mean() for layer in (0, 2)])
        assert float(term) == pytest.approx(0.5 * float(expected.mean()), rel=1e-5)
        assert penalty.values == pytest.approx(
            dict(zip((0, 2), expected.tolist(), strict=True)), rel=1e-5
        )
        term.backward()
    reached = [name for name, p in module.named_parameters() if p.grad is not None and p.grad.any()]
    assert reached
    late = [name for name in reached if ".2." in name]
    assert not late, "a penalty at layer 2 must not reach the third block"


def test_padding_is_left_out_of_the_term() -> None:
    module = build_tiny("llama")
    ids = torch.randint(6, 200, (1, 9), generator=torch.Generator().manual_seed(0))
    with LayerPenalty(module, "spread", layers=[1]) as penalty:
        module(input_ids=ids[:, :6])
        short = penalty.term()
        module(input_ids=ids, attention_mask=torch.tensor([[1] * 6 + [0] * 3]))
        assert float(penalty.term()) == pytest.approx(float(short), rel=1e-5)
    assert float(short) < 0


def test_a_term_is_made_once_per_pass_with_gradients_and_hooks_go_away() -> None:
    module = build_tiny("llama")
    before = sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()
    )
    ids = torch.arange(6, 12)[None]
    with LayerPenalty(module, "decorrelate") as penalty:
        assert penalty.layers == middle_layers(3)
        module(input_ids=ids)
        penalty.term()
        with pytest.raises(ModelError, match="once after each pass"):
            penalty.term()
        with torch.no_grad():
            module(input_ids=ids)
        with pytest.raises(ModelError, match="with gradients"):
            penalty.term()
    assert before == sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()
    )


def test_wrong_settings_say_what_is_valid() -> None:
    module = build_tiny("llama")
    with pytest.raises(UnknownNameError, match="compress"):
        LayerPenalty(module, "squeeze")  # type: ignore[arg-type]
    with pytest.raises(LayerscopeError, match="from 0 to 3"):
        LayerPenalty(module, "compress", layers=[4])
    with pytest.raises(LayerscopeError, match="0 or more"):
        LayerPenalty(module, "compress", weight=-1.0)


def weights_after(
    folder: Path, callbacks: list[Any], accumulate: int = 1, **more: Any
) -> tuple[Any, hf.Trainer]:
    pytest.importorskip("accelerate")
    args = hf.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8 // accumulate, seed=3, report_to=[],
        gradient_accumulation_steps=accumulate, save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=1,
        learning_rate=1e-2, max_grad_norm=1e9, optim="sgd", **more,
    )  # fmt: skip
    model = language_model(dropout=0.0)
    trainer = hf.Trainer(model, args, train_dataset=Data(), callbacks=callbacks)
    trainer.train()
    return {name: value.clone() for name, value in model.state_dict().items()}, trainer


def test_the_callback_trains_towards_the_penalty_and_logs_it(tmp_path: Path) -> None:
    values = {}
    for effect in ("compress", "spread"):
        callback = PenaltyCallback(effect, weight=5.0, layers=[1, 2])  # type: ignore[arg-type]
        _, trainer = weights_after(tmp_path / effect, [callback])
        assert callback.penalty is not None
        values[effect] = sum(callback.penalty.values.values())
        logged = [
            line["layer_penalty"] for line in trainer.state.log_history if "layer_penalty" in line
        ]
        assert len(logged) == 4
        assert logged[-1] < logged[0]
        assert not trainer.model._forward_hooks
    assert values["compress"] < values["spread"]


def test_a_weight_of_zero_leaves_training_as_it_is(tmp_path: Path) -> None:
    plain, _ = weights_after(tmp_path / "a", [])
    same, _ = weights_after(tmp_path / "b", [PenaltyCallback("compress", weight=0.0)])
    for name, value in plain.items():
        assert torch.allclose(value, same[name], atol=1e-7), name


def test_accumulated_batches_weigh_the_penalty_as_one_batch_does(tmp_path: Path) -> None:
    whole, _ = weights_after(tmp_path / "a", [PenaltyCallback("compress", weight=3.0)])
    parts, _ = weights_after(
        tmp_path / "b", [PenaltyCallback("compress", weight=3.0)], accumulate=4
    )
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], atol=1e-5), name


def test_a_loss_from_outside_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="own loss function"):
        weights_after(tmp_path, [PenaltyCallback("compress")], label_smoothing_factor=0.1)
