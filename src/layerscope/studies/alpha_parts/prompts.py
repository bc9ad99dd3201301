"""Spectra of a model's prompts at a few layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import Capture, expand_sites, make_batch
from layerscope.errors import LayerscopeError
from layerscope.metrics import many_intervals, prepare_rows
from layerscope.metrics.entropy import smaller_gram, spectrum_entropy
from layerscope.metrics.prompt_entropy import mean_over_prompts
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.spectra import eigvalsh
from layerscope.studies.alpha_parts.laws import COLUMNS, top_weight
from layerscope.studies.base import Request
from layerscope.studies.shared.specs import Spec


def prompt_spectra(request: Request, spec: Spec, bar: Progress) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Entropy and top weight at every chosen layer and α: means over prompts, with intervals."""
    assert request.texts is not None
    model = spec.open(request)
    layers = _layers(request.options["layers"], model.n_blocks)
    prompts = [ids for ids in model.tokenize(list(request.texts.texts), request.max_length).ids if len(ids) > 2]
    if not prompts:
        raise LayerscopeError("every text has fewer than three tokens: there is no spectrum to speak of.")
    alphas, top = request.options["alphas"], request.options["top"]
    found: dict[tuple[int, float, str, str], list[float]] = {}
    bar.begin(f"{spec.label}|prompts", len(prompts))
    for spectra in _read(model, layers, prompts, request.final_norm):
        for (layer, sink), spectrum in spectra.items():
            for alpha in alphas:
                found.setdefault((layer, alpha, "entropy", sink), []).append(float(spectrum_entropy(spectrum, alpha)))
                found.setdefault((layer, alpha, "top_weight", sink), []).append(float(top_weight(spectrum, alpha, top)))
        bar.advance(1)
    estimates = [mean_over_prompts(np.array(values), model.width) for values in found.values()]
    ends = many_intervals(estimates, request.seed)
    rows = [
        [spec.label, f"layer {layer}", layer, alpha, metric, sink, e.value, low, high, e.n]
        for (layer, alpha, metric, sink), e, (low, high) in zip(found, estimates, ends, strict=True)
    ]
    rows.sort(key=lambda row: int(str(row[2])))
    return pd.DataFrame(rows, columns=COLUMNS), model.identity


def _read(model: LoadedModel, layers: list[int], prompts: list[list[int]], final_norm: Any) -> Any:
    """For each prompt: eigenvalues of its prepared tokens by layer and sink setting."""
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer in layers]
    spectra: dict[tuple[int, str], Tensor] = {}

    def keep(index: int, raw: Tensor, state: Tensor) -> None:
        rows, layer = state[0].double().cpu(), sites[index].layer
        sink = int(torch.linalg.vector_norm(raw[0].double(), dim=-1).argmax())
        others = torch.arange(len(rows)) != sink
        for name, kept in (("keep", rows), ("drop", rows[others])):
            spectra[layer, name] = eigvalsh(smaller_gram(prepare_rows(kept, "centered-unit")))

    with Capture(model.anatomy, sites, final_norm, keep) as capture:
        for ids in prompts:
            spectra = {}
            batch = make_batch([ids], model.pad_id, model.device)
            capture.run(lambda batch=batch: model.run(batch))  # type: ignore[misc]
            yield spectra


def _layers(wanted: list[int], blocks: int) -> list[int]:
    layers = [0, blocks // 2, blocks] if wanted in ([], [-1]) else list(dict.fromkeys(wanted))
    wrong = [layer for layer in layers if not 0 <= layer <= blocks]
    if wrong:
        raise LayerscopeError(f"layer {wrong[0]} does not exist: layers run from 0 to {blocks}.")
    return layers
