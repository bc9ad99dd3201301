"""`LayerscopeCallback`: layers watched inside the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from layerscope.training.watch import LayerWatch


class LayerscopeCallback(TrainerCallback):
    """Measures every layer on held-out texts during training, within a share of the run's time.

    `settings` are those of `LayerWatch`. The tokenizer is the Trainer's (its `processing_class`)
    unless one is given. Of several processes the first measures.

        Trainer(model, args, train_dataset=data, callbacks=[LayerscopeCallback(held_out, tokenizer, out="layers.csv")])
    """

    def __init__(self, texts: Any, tokenizer: Any = None, **settings: Any) -> None:
        self.texts, self.tokenizer, self.settings = texts, tokenizer, settings
        self.watch: LayerWatch | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
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
