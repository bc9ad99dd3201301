"""Loss terms on the states of chosen layers: compress them, spread them, or decorrelate their
features while a model trains.

`LayerPenalty` adds a term to the loss of any training loop, `PenaltyCallback` inside the Hugging
Face Trainer. The functions are the terms themselves, differentiable everywhere they are defined.
`train_interventions.py` says what they do to small models; to use them elsewhere, copy this file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.trainer_callback import TrainerCallback

from layerscope.capture.hooks import first_tensor
from layerscope.errors import InvalidValueError, LayerscopeError, ModelError, UnknownNameError
from layerscope.metrics.entropy import check_alpha, spectrum_entropy
from layerscope.metrics.options import RowPreparation, check_rows
from layerscope.models import modules
from layerscope.models.families import family_for
from layerscope.training.measuring import without_wrappers

Effect = Literal["compress", "spread", "decorrelate"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
MIDDLE = (1 / 3, 2 / 3)
"""The depths between which layers count as the middle ones."""

_LEAST_VARIANCE = 1e-4  # under the root, as in VICReg: the slope at a constant feature stays finite


def token_entropies(
    states: Tensor,
    mask: Tensor | None = None,
    alpha: float = 2.0,
    rows: RowPreparation = "centered-unit",
) -> Tensor:
    """S_α of each text's token states (B, T, D), in nats (B,): the metric `prompt_entropy`, with
    gradients.

    α = 2 needs no eigenvalues and is by far the cheapest. Rows without a direction, such as
    padding, count as zero and receive no gradient. Half-precision states are measured in float32. A
    text without any direction has no entropy: NaN.

    >>> import torch
    >>> round(token_entropies(torch.eye(3).unsqueeze(0)).item(), 4)  # three centered, orthogonal tokens span a plane: log 2
    0.6931
    """
    check_rows(rows)
    alpha = check_alpha(alpha)
    if alpha == 0:
        raise ValueError(
            "the entropy of order 0 counts directions: it has no slope to train by. Use alpha > 0."
        )
    with torch.autocast(states.device.type, enabled=False):
        return _token_entropies(
            states if states.dtype == torch.float64 else states.float(), mask, alpha, rows
        )


def _token_entropies(x: Tensor, mask: Tensor | None, alpha: float, rows: RowPreparation) -> Tensor:
    keep = (
        torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask.bool()
    )
    x = x.masked_fill(~keep.unsqueeze(-1), 0.0)
    if rows.startswith("centered"):
        mean = x.sum(1, keepdim=True) / keep.sum(1).clamp(min=1)[:, None, None]
        before = x.detach().square().sum(-1)
        x = (x - mean).masked_fill(~keep.unsqueeze(-1), 0.0)
        # a token that equals the mean has no direction: what is left of it is rounding
        floor = before * torch.finfo(x.dtype).eps ** 2
    else:
        floor = x.new_zeros(x.shape[:2])
    if rows.endswith("unit"):
        squares = x.square().sum(-1)
        there = squares > floor
        scale = torch.where(there, squares, 1.0).rsqrt()
        x = x * torch.where(there, scale, 0.0).unsqueeze(-1)
    gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
    if alpha == 2:
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return 2 * trace.log() - gram.square().sum((-2, -1)).log()
    # torch's own solver: its gradient needs the eigenvectors alone, so equal eigenvalues do no harm
    return spectrum_entropy(_above_rounding(torch.linalg.eigvalsh(gram)), alpha)


def _above_rounding(eigenvalues: Tensor) -> Tensor:
    """Zero, without a gradient, where an eigenvalue is rounding: the slope of p log p there would
    be endless."""
    floor = (
        eigenvalues.shape[-1]
        * torch.finfo(eigenvalues.dtype).eps
        * eigenvalues.detach().amax(-1, keepdim=True)
    )
    return torch.where(eigenvalues > floor, eigenvalues, 0.0)


def variance_covariance(
    states: Tensor, mask: Tensor | None = None, target: float = 1.0, relative: bool = True
) -> tuple[Tensor, Tensor]:
    """VICReg's variance and covariance terms of all tokens of a batch (B, T, D): they penalize
    constant and correlated features.

    The variance term is the mean over features of max(0, target − standard deviation), the
    covariance term the sum of squared covariances of different features over D (Bardes, Ponce &
    LeCun 2022). `relative` scales the states first so that the mean variance is 1: the terms then
    cannot be lowered by making all states larger or smaller.

    >>> import torch
    >>> tokens = torch.tensor([[[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]])  # two independent features
    >>> [round(term.item(), 3) for term in variance_covariance(tokens)]
    [0.0, 0.0]
    """
    with torch.autocast(states.device.type, enabled=False):
        return _variance_covariance(
            states if states.dtype == torch.float64 else states.float(), mask, target, relative
        )


def _variance_covariance(
    x: Tensor, mask: Tensor | None, target: float, relative: bool
) -> tuple[Tensor, Tensor]:
    x = x.flatten(0, 1) if mask is None else x[mask.bool()]
    if len(x) < 2:
        raise LayerscopeError(
            f"variances need at least 2 tokens in a batch, and there {'is' if len(x) == 1 else 'are'} {len(x)}."
        )
    x = x - x.mean(0)
    if relative:
        x = x * (x.square().sum() / (len(x) - 1) / x.shape[1] + torch.finfo(x.dtype).tiny).rsqrt()
    covariance = x.T @ x / (len(x) - 1)
    spread = (covariance.diagonal() + _LEAST_VARIANCE).sqrt()
    variance = torch.relu(target - spread).mean()
    others = (covariance.square().sum() - covariance.diagonal().square().sum()) / x.shape[1]
    return variance, others


def middle_layers(blocks: int) -> list[int]:
    """The layers from a third to two thirds of the depth.

    >>> middle_layers(12)
    [4, 5, 6, 7, 8]
    """
    low, high = MIDDLE
    chosen = [
        layer for layer in range(1, blocks + 1) if low - 1e-9 <= layer / blocks <= high + 1e-9
    ]
    return chosen or [max(1, round(blocks / 2))]


class LayerPenalty:
    """A loss term on the states of chosen layers. Use it in a `with` block, or call `close`.

    `effect`: `compress` adds the mean entropy of each text's tokens at the layers (in nats) to the
    loss, `spread` subtracts it, `decorrelate` adds the variance and covariance terms. `layers` are
    numbers from 0 (embeddings) to the number of blocks; None takes the middle third. `weight`
    multiplies the mean over layers. States are those of the residual stream, without the final
    norm; padding is left out where the model is given an `attention_mask`.

        with LayerPenalty(model, "compress", weight=0.1) as penalty:
            for batch in batches:
                loss = model(**batch).loss + penalty.term()
    """

    def __init__(
        self,
        model: nn.Module,
        effect: Effect,
        *,
        weight: float = 0.1,
        layers: Sequence[int] | None = None,
        alpha: float = 2.0,
        rows: RowPreparation = "centered-unit",
    ) -> None:
        if effect not in EFFECTS:
            raise UnknownNameError("effect of a penalty", str(effect), EFFECTS)
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidValueError(
                f"the weight of a penalty is a number of 0 or more, not {weight}. The effect says the direction."
            )
        self.effect, self.weight, self.alpha, self.rows = (
            effect,
            float(weight),
            check_alpha(alpha),
            rows,
        )
        check_rows(rows)
        outer = without_wrappers(model)
        inner = modules.unwrap(outer)
        anatomy = family_for(inner).resolve(inner)
        self.layers = (
            middle_layers(anatomy.n_blocks)
            if layers is None
            else sorted({int(layer) for layer in layers})
        )
        wrong = [layer for layer in self.layers if not 0 <= layer <= anatomy.n_blocks]
        if wrong or not self.layers:
            raise LayerscopeError(
                f"layers of this model run from 0 to {anatomy.n_blocks}; given: {wrong or 'none'}."
            )
        self._last: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}
        self._mask: Tensor | None = None
        self._reading = False
        self._handles: list[RemovableHandle] = [
            inner.register_forward_pre_hook(self._begin, with_kwargs=True),
            inner.register_forward_hook(self._end),
        ]
        for layer in self.layers:
            block = anatomy.blocks[max(0, layer - 1)]
            self._handles.append(self._hook(block, layer))

    def _hook(self, block: nn.Module, layer: int) -> RemovableHandle:
        def keep(states: Tensor) -> None:
            # a checkpointed block runs again during the backward pass, when nothing is read
            if self._reading:
                self._states[layer] = states

        if layer == 0:
            return block.register_forward_pre_hook(
                lambda _m, args, kwargs: keep(first_tensor(args, kwargs)), with_kwargs=True
            )
        return block.register_forward_hook(lambda _m, _args, output: keep(first_tensor(output)))

    def _begin(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        self._mask = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
        self._states, self._reading = {}, torch.is_grad_enabled()

    def _end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._reading = False

    def term(self) -> Tensor:
        """The term of the forward pass just made, to add to its loss; each pass's states are used
        once."""
        if not self._states:
            raise ModelError(
                "no forward pass with gradients was seen since the last term. Call term() once after each pass of the model "
                "that the penalty was made for."
            )
        parts = {layer: self._measure(states) for layer, states in self._states.items()}
        self._states = {}
        self._last = {layer: part.detach() for layer, part in parts.items()}
        device = next(iter(parts.values())).device
        mean = torch.stack([part.to(device) for part in parts.values()]).mean()
        return (-self.weight if self.effect == "spread" else self.weight) * mean

    @property
    def values(self) -> dict[int, float]:
        """What the last term was made of: per layer, the entropy in nats, or the two terms' sum."""
        return {
            layer: float(part) for layer, part in self._last.items()
        }  # read when asked for: a GPU need not wait

    def _measure(self, states: Tensor) -> Tensor:
        mask = self._mask
        if mask is not None:
            mask = mask[:, -states.shape[1] :].to(states.device)
        if self.effect == "decorrelate":
            variance, covariance = variance_covariance(states, mask)
            return variance + covariance
        values = token_entropies(states, mask, self.alpha, self.rows)
        there = torch.isfinite(values)  # a text of one token has no entropy
        return torch.where(there, values, 0.0).sum() / there.sum().clamp(min=1)

    def close(self) -> None:
        """Take the hooks off the model."""
        while self._handles:
            self._handles.pop().remove()
        self._states = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PenaltyCallback(TrainerCallback):
    """Adds a penalty on the states of chosen layers to the loss that the model returns, while the
    Trainer trains.

    `settings` are those of `LayerPenalty`. Evaluation passes keep their own loss. The loss must
    come from the model: a Trainer with a loss of its own (`compute_loss_func`, label smoothing)
    takes `LayerPenalty` inside it instead. What was added last is in `penalty.values` (per layer)
    and in the logs as `layer_penalty`.

        Trainer(model, args, train_dataset=data, callbacks=[PenaltyCallback("compress", weight=0.1, layers=[5, 6, 7])])
    """

    def __init__(self, effect: Effect, **settings: Any) -> None:
        self.effect, self.settings = effect, settings
        self.penalty: LayerPenalty | None = None
        self._handle: Any = None
        self._share = 1.0
        self._last: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self._detach()
        self.penalty = LayerPenalty(model, self.effect, **self.settings)
        # A loss divided by the tokens of all accumulated batches is summed over them, and scaled by
        # the number of processes; any other is averaged. The penalty is a mean, and must be
        # averaged in both cases.
        processes = args.world_size if getattr(args, "average_tokens_across_devices", False) else 1
        self._share = 1 / (args.gradient_accumulation_steps * max(1, processes))
        self._handle = model.register_forward_hook(self._add, with_kwargs=True)

    def _add(self, module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if not module.training or self.penalty is None:
            return output
        if getattr(output, "loss", None) is None:
            raise ModelError(
                "the model returned no loss to add the penalty to: its loss is computed outside, or the batch has no labels. "
                "Use LayerPenalty inside your own loss function."
            )
        term = self.penalty.term()
        self._last = term.detach()
        share = 1.0 if kwargs.get("num_items_in_batch") is None else self._share
        output["loss"] = output.loss + share * term.to(output.loss.device)
        return output

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write the last term beside the loss."""
        if logs is not None and self._last is not None and "loss" in logs:
            logs["layer_penalty"] = float(self._last)
            if state.log_history:  # the Trainer has written its line already
                state.log_history[-1]["layer_penalty"] = logs["layer_penalty"]

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._detach()

    def _detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self.penalty is not None:
            self.penalty.close()
