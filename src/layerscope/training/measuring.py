"""Every layer of a model in training on held-out texts: one reduced pass, a few numbers per layer;
the model stays as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.capture import Batch, Reducer
from layerscope.errors import DataError, LayerscopeError
from layerscope.forward import BatchRunner
from layerscope.metrics import (
    Metric,
    Options,
    SiteVectors,
    estimate_vectors,
    expand_names,
    get_metric,
    main_metrics,
    prepare_rows,
)
from layerscope.metrics.entropy import smaller_gram, spectrum_entropy
from layerscope.metrics.ranks import effective_rank
from layerscope.metrics.registry import MetricName, check_plugin, is_plugin
from layerscope.metrics.tokens.fields import values_of
from layerscope.models import LoadedModel
from layerscope.spectra import eigvalsh


def read_held_out(model: LoadedModel, given: Any, max_length: int) -> list[np.ndarray]:
    """Token ids of texts, of a batch with `input_ids` (and `attention_mask`), or of a tensor of
    ids, cut to `max_length`."""
    if isinstance(given, str):
        raise DataError(
            "held-out texts are a list of strings, and one string was given. Wrap it in a list."
        )
    if isinstance(given, Mapping) or hasattr(given, "input_ids"):
        ids, mask = given["input_ids"], given.get("attention_mask")
        rows = _rows(ids, mask)
    elif isinstance(given, Tensor):
        rows = _rows(given, None)
    else:
        texts = list(given)
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                "held-out data is a list of strings, a batch with input_ids, or a tensor of token ids."
            )
        limit = max_length if model.max_length is None else min(max_length, model.max_length)
        rows = [np.asarray(ids, dtype=np.int64) for ids in model.tokenize(texts, limit).ids]
    rows = [row[:max_length] for row in rows if len(row)]
    if not rows:
        raise DataError(
            "the held-out data holds no token. Give some texts that the model is not trained on."
        )
    return rows


def _rows(ids: Tensor, mask: Tensor | None) -> list[np.ndarray]:
    if ids.ndim != 2:
        raise DataError(f"a batch of token ids has two dimensions (texts, tokens), not {ids.ndim}.")
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return [row[real].cpu().numpy().astype(np.int64) for row, real in zip(ids, keep, strict=True)]


def fingerprint(rows: Sequence[np.ndarray]) -> str:
    """What tells these held-out texts from others."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.tobytes() + b"|")
    return digest.hexdigest()


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part is in the mode it was in, and random numbers go
    on where they were."""
    modes = [(part, part.training) for part in module.modules()]
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        _usable_again(module)


def _usable_again(module: nn.Module) -> None:
    """Buffers that a forward pass made anew in inference mode (caches, say) could not be used in
    training: copy them."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_inference():
                part._buffers[name] = buffer.clone()


def without_wrappers(module: nn.Module) -> nn.Module:
    """The model inside data-parallel and compiled wrappers: running it alone involves no other
    process and no graph."""
    seen = module
    while True:
        inner = getattr(seen, "_orig_mod", None)
        if inner is None and type(seen).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = seen.module
        if not isinstance(inner, nn.Module):
            return seen
        seen = inner


COLUMNS = ["step", "site", "layer", "depth", "metric", "sink", "value", "n"]
DEFAULT_METRICS = ("prompt_entropy", "curvature", "sink_ratio", "dataset_entropy", "effective_rank")
_OF_SPECTRUM: dict[str, Callable[[Tensor, Options], Tensor]] = {
    "dataset_entropy": lambda spectra, options: spectrum_entropy(spectra, options.alpha),
    "effective_rank": lambda spectra, options: effective_rank(spectra),
}


def choose_metrics(
    names: MetricName | Sequence[MetricName] | None, options: Options
) -> list[Metric]:
    """The metrics that a watch measures: those named, or a few built-in ones and all main ones of
    other packages."""
    if names is None:
        known = {name: get_metric(name) for name in main_metrics()}
        outside = [
            n
            for n, m in known.items()
            if is_plugin(m) and m.info.by_default and m.info.level != "views"
        ]
        names = [*DEFAULT_METRICS, *outside]
    chosen = [get_metric(name) for name in expand_names(names)]
    for metric in chosen:
        if metric.info.level == "views":
            raise LayerscopeError(
                f"{metric.info.name} compares augmented views, which a watch does not make. Leave it out."
            )
        if is_plugin(metric):
            check_plugin(metric, options)
    return chosen


def measure_layers(
    model: LoadedModel,
    reducer: Reducer,
    prompts: Sequence[np.ndarray],
    options: Options,
    step: int,
    metrics: Sequence[Metric],
) -> list[dict[str, Any]]:
    """One row per layer, metric and sink setting. Undefined prompts are left out of a mean; `n`
    says how many were in."""
    pooled: list[np.ndarray] = []
    tokens: dict[str, list[np.ndarray]] = {}

    def keep(_: list[int], batch: Batch) -> None:
        reduced = reducer.run(batch, model.run, token_level=True)
        pooled.append(reduced.pooled)
        for name, values in reduced.tokens.items():
            tokens.setdefault(name, []).append(values)

    with reducer:
        BatchRunner(model).run(prompts, keep)
    numbers = {name: np.concatenate(blocks, axis=1) for name, blocks in tokens.items()}
    vectors = torch.from_numpy(np.concatenate(pooled, axis=1)).double()
    of_vectors = _of_vectors(vectors, metrics, options)
    rows: list[dict[str, Any]] = []
    for k, site in enumerate(reducer.sites):
        place = {"step": step, "site": site.name, "layer": site.layer, "depth": site.depth}
        for metric in metrics:
            name = metric.info.name
            if metric.info.level != "tokens":
                if np.isfinite(of_vectors[name][k]):
                    rows.append(
                        {
                            **place,
                            "metric": name,
                            "sink": "keep",
                            "value": of_vectors[name][k],
                            "n": len(prompts),
                        }
                    )
                continue
            for sink in metric.info.sinks:
                values = values_of(name, sink, numbers)[k]
                defined = values[np.isfinite(values)]
                if len(defined):
                    rows.append(
                        {
                            **place,
                            "metric": name,
                            "sink": sink,
                            "value": float(defined.mean()),
                            "n": len(defined),
                        }
                    )
    return rows


def _of_vectors(
    vectors: Tensor, metrics: Sequence[Metric], options: Options
) -> dict[str, list[float]]:
    """Metrics of the pooled vectors (sites, texts, D): the common ones from one batch of spectra,
    without intervals."""
    pooled = [metric for metric in metrics if metric.info.level == "pooled"]
    values: dict[str, list[float]] = {}
    if any(metric.info.name in _OF_SPECTRUM for metric in pooled):
        spectra = eigvalsh(smaller_gram(prepare_rows(vectors, options.pooled_rows))).clamp(min=0)
        values = {
            name: function(spectra, options).tolist() for name, function in _OF_SPECTRUM.items()
        }
    for metric in pooled:
        if metric.info.name not in values:
            values[metric.info.name] = [
                estimate_vectors(metric, SiteVectors(site), options).value for site in vectors
            ]
    return values
