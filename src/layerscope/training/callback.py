"""Callbacks for the Hugging Face Trainer: `LayerscopeCallback` watches layers, `PenaltyCallback` adds a loss term on them."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from layerscope.errors import ModelError
from layerscope.training.penalties import Effect, LayerPenalty
from layerscope.training.watch import LayerWatch


class LayerscopeCallback(TrainerCallback):
    """Measures every layer on held-out texts during training, within a share of the run's time.

    `settings` are those of `LayerWatch`. The tokenizer is the Trainer's (its `processing_class`) unless one is given. Of several
    processes the first measures.

        Trainer(model, args, train_dataset=data, callbacks=[LayerscopeCallback(held_out, tokenizer, out="layers.csv")])
    """

    def __init__(self, texts: Any, tokenizer: Any = None, **settings: Any) -> None:
        self.texts, self.tokenizer, self.settings = texts, tokenizer, settings
        self.watch: LayerWatch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        tokenizer = self.tokenizer if self.tokenizer is not None else kwargs.get("processing_class")
        self.watch = LayerWatch(model, self.texts, tokenizer, **self.settings)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.close()


class PenaltyCallback(TrainerCallback):
    """Adds a penalty on the states of chosen layers to the loss that the model returns, while the Trainer trains.

    `settings` are those of `LayerPenalty`. Evaluation passes keep their own loss. The loss must come from the model: a Trainer
    with a loss of its own (`compute_loss_func`, label smoothing) takes `LayerPenalty` inside it instead. What was added last is
    in `penalty.values` (per layer) and in the logs as `layer_penalty`.

        Trainer(model, args, train_dataset=data, callbacks=[PenaltyCallback("compress", weight=0.1, layers=[5, 6, 7])])
    """

    def __init__(self, effect: Effect, **settings: Any) -> None:
        self.effect, self.settings = effect, settings
        self.penalty: LayerPenalty | None = None
        self._handle: Any = None
        self._share = 1.0
        self._last: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._detach()
        self.penalty = LayerPenalty(model, self.effect, **self.settings)
        # A loss divided by the tokens of all accumulated batches is summed over them, and scaled by the number of processes;
        # any other is averaged. The penalty is a mean, and must be averaged in both cases.
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
