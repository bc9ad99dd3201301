"""Effective rank of each prompt's token states at every site, with the sink token and without it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch, Capture, Site, make_batch, run_batches, token_budget
from layerscope.capture.hooks import FinalNorm
from layerscope.metrics import Options
from layerscope.metrics.effective_rank import effective_rank
from layerscope.metrics.tokens.measures import prepare_tokens
from layerscope.metrics.tokens.norms import largest_token, token_norms
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.spectra import eigvalsh

SINKS = ("keep", "drop")


def prompt_ranks(
    model: LoadedModel,
    sites: Sequence[Site],
    ids: Sequence[Sequence[int]],
    final_norm: FinalNorm,
    options: Options,
    bar: Progress,
) -> dict[str, np.ndarray]:
    """exp of the entropy of σ / Σσ of each prompt's rows, prepared as for prompt entropy: (prompts, sites) by sink setting."""
    out = {sink: np.full((len(ids), len(sites)), np.nan) for sink in SINKS}
    batch: Batch | None = None
    items: list[int] = []

    def reduce(index: int, raw: Tensor, state: Tensor) -> None:
        assert batch is not None
        if raw.device.type == "mps":  # float64 does not exist there
            raw, state = raw.cpu(), state.cpu()
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        position = largest_token(token_norms(raw), mask)
        prepared = prepare_tokens(state, mask, position, options, curvature=False, dtype=torch.float64)
        for sink, matrices in prepared.matrices.items():
            out[sink][items, index] = effective_rank(eigvalsh(matrices)).cpu().numpy()

    with Capture(model.anatomy, sites, final_norm, reduce) as capture:

        def measure(chosen: list[int]) -> None:
            nonlocal batch, items
            items, batch = chosen, make_batch([ids[i] for i in chosen], model.pad_id, model.device)
            held = batch
            capture.run(lambda: model.run(held))
            bar.advance(len(chosen))

        run_batches([len(row) for row in ids], measure, token_budget(model.device, model.width))
    return out
