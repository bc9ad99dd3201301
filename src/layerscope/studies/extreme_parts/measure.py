"""Prompt entropy at every layer of prompts that are given as token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Capture, Reducer, Site, expand_sites, make_batch, run_batches, token_budget
from layerscope.capture.hooks import FinalNorm
from layerscope.metrics import Options
from layerscope.models import LoadedModel
from layerscope.progress import Progress

FIELDS = {"keep": "entropy_keep", "drop": "entropy_drop"}


class Meter:
    """Runs token ids through a model; gives prompt entropies by sink setting, (prompts, layers) each."""

    def __init__(self, model: LoadedModel, final_norm: FinalNorm, options: Options) -> None:
        self.model = model
        self.sites: list[Site] = expand_sites(None, model.anatomy)
        self._final_norm = final_norm
        self._reducer = Reducer(model.anatomy, self.sites, final_norm, options, curvature=False)
        self._tokens = token_budget(model.device, model.width)

    def run(self, prompts: Sequence[np.ndarray], bar: Progress) -> dict[str, np.ndarray]:
        """Entropies of all prompts."""
        out = {sink: np.full((len(prompts), len(self.sites)), np.nan) for sink in FIELDS}

        def measure(items: list[int]) -> None:
            batch = make_batch([prompts[i] for i in items], self.model.pad_id, self.model.device)
            held = self._reducer.run(batch, self.model.run, token_level=True).tokens
            for sink, name in FIELDS.items():
                out[sink][items] = held[name].T
            bar.advance(len(items))

        with self._reducer:
            self._tokens = run_batches([len(ids) for ids in prompts], measure, self._tokens)
        alike = [i for i, ids in enumerate(prompts) if len(ids) > 1 and (ids == ids[0]).all()]
        if alike:
            equal = self._equal_states([prompts[i] for i in alike])
            for held in out.values():
                held[alike] = np.where(equal, np.nan, held[alike])
        return out

    def _equal_states(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """(prompts, layers): where the states of one token, repeated, are equal but for rounding.

        A causal model without absolute positions cannot tell such tokens apart: what is left after centring is rounding, and
        its entropy says nothing.
        """
        equal = np.zeros((len(prompts), len(self.sites)), dtype=bool)
        at = {"row": 0}

        def look(index: int, raw: Tensor, state: Tensor) -> None:
            z = state[0].float()
            spread, size = torch.linalg.vector_norm(z - z.mean(0)), torch.linalg.vector_norm(z)
            equal[at["row"], index] = bool(spread <= torch.finfo(state.dtype).eps ** 0.5 * size)

        with Capture(self.model.anatomy, self.sites, self._final_norm, look) as capture:
            for row, ids in enumerate(prompts):
                at["row"] = row
                batch = make_batch([ids], self.model.pad_id, self.model.device)
                capture.run(lambda batch=batch: self.model.run(batch))  # type: ignore[misc]
        return equal
