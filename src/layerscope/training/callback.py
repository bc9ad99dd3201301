"""A watch of the layers inside the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from layerscope.training.watch import LayerWatch


class LayerscopeCallback(TrainerCallback):
    """A `LayerWatch` in the Hugging Face Trainer.

    `settings` are those of `LayerWatch`. The tokenizer is the Trainer's `processing_class` unless
    one is given. Of several processes the first measures.

        callback = LayerscopeCallback(held_out, tokenizer, out="layers.csv")
        Trainer(model, args, train_dataset=data, callbacks=[callback])
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any = None, **settings: Any) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.settings = settings
        self.watch: LayerWatch | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            tokenizer = self.tokenizer or kwargs.get("processing_class")
            self.watch = LayerWatch(model, self.texts, tokenizer, **self.settings)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.step(state.global_step)
