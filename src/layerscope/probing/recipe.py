"""How probes are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layerscope.errors import LayerscopeError


@dataclass(frozen=True)
class Recipe:
    """AdamW; a linear warm-up over a tenth of the steps, then half a cosine to zero.

    Every learning rate is tried with a whole schedule of `trial` epochs; each layer then begins anew with the one that was best
    on the validation part and trains for up to `epochs`; once its rate has come down, it stops when nothing has been
    gained there for `patience` epochs. The epoch that was best there is the one that counts.
    `batch` 0 means: as `batch_for` says.
    """

    learning_rates: tuple[float, ...] = (2e-3, 1e-2, 5e-2)
    trial: int = 3
    epochs: int = 15
    patience: int = 5
    batch: int = 0
    weight_decay: float = 0.1
    seed: int = 0

    @staticmethod
    def batch_for(items: int) -> int:
        """Items per step where nothing is said: 256, fewer of a small training part so that an epoch has about 16 steps.

        >>> Recipe.batch_for(60000), Recipe.batch_for(1000), Recipe.batch_for(50)
        (256, 62, 32)
        """
        return min(256, max(32, items // 16))

    def check(self) -> None:
        """Refuse what cannot work."""
        if not self.learning_rates or any(not (math.isfinite(rate) and rate > 0) for rate in self.learning_rates):
            raise LayerscopeError(f"learning rates must be numbers above 0, not {list(self.learning_rates)}.")
        for name in ("trial", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise LayerscopeError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.batch < 0:
            raise LayerscopeError(f"the training batch must be at least 1 item, not {self.batch}.")

    @property
    def most_epochs(self) -> int:
        """Epochs that a bar counts: the trial's and the training's."""
        return self.epochs + (self.trial if len(self.learning_rates) > 1 else 0)


def schedule(step: int, steps: int) -> float:
    """The share of the learning rate at a step."""
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
