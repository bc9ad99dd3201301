"""Measure every layer of a model on held-out texts while it trains, within a share of the time."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from layerscope.capture import FINAL_NORMS, Reduced, Reducer, expand_sites
from layerscope.core.identity import Reading
from layerscope.errors import (
    DataError,
    InvalidValueError,
    LayerscopeError,
    ModelError,
    NonFiniteStatesError,
    RunFolderError,
    UnknownNameError,
)
from layerscope.forward import BatchRunner
from layerscope.metrics import Metric, Options, SiteVectors, estimate_vectors, expand_names
from layerscope.metrics.registry import MetricName, check_plugin, get_metric, is_plugin, metrics
from layerscope.metrics.tokens import values_of
from layerscope.models import LoadedModel
from layerscope.models.families import family_for
from layerscope.models.modules import inner_tokenizer, unwrap
from layerscope.progress import OnRows, send
from layerscope.store import atomic
from layerscope.version import VERSION

COLUMNS = ["step", "site", "layer", "depth", "metric", "sink", "value", "n"]
DEFAULT_METRICS = ("prompt_entropy", "curvature", "sink_ratio", "dataset_entropy", "effective_rank")


class LayerWatch:
    """Measure the layers of a model while it trains. Call `step` after every training step.

    The first call measures. Later ones do whenever measuring, with what the last measurement took,
    stays within `share` of the time since then.

    - `texts`: held-out texts, a list of strings; `tokenizer` reads them.
    - `out`: a CSV file to which rows are appended, or None.
    - `on_rows`: a function such as `wandb.log`. It is called with a dictionary of the step and a
      number for each metric and layer.
    - `metrics`: names of metrics of tokens or pooled vectors. None: a few common ones and those of
      other packages.

    The model, its gradients and its random numbers are untouched.

        watch = LayerWatch(model, held_out, tokenizer, share=0.02, out="layers.csv")
        for step, batch in enumerate(batches):
            ...
            watch.step(step)
    """

    def __init__(
        self,
        model: nn.Module,
        texts: Sequence[str],
        tokenizer: Any = None,
        *,
        share: float = 0.02,
        out: str | Path | None = "layers.csv",
        on_rows: OnRows | None = None,
        max_length: int = 128,
        final_norm: str = "raw",
        metrics: MetricName | Sequence[MetricName] | None = None,
    ) -> None:
        if not 0 < share < 1:
            raise InvalidValueError(
                f"share={share} is not between 0 and 1: it is the share of the run's time that "
                "measuring may take."
            )
        if final_norm not in FINAL_NORMS:
            raise UnknownNameError("final_norm", final_norm, FINAL_NORMS)
        if isinstance(texts, str):
            raise DataError("held-out texts are a list of strings, not one string.")
        self.share = share
        self.on_rows = on_rows
        self.options = Options()
        self.metrics = choose_metrics(metrics, self.options)
        self.model = _load(model, tokenizer)
        limit = min(max_length, self.model.max_length or max_length)
        ids = self.model.tokenize(list(texts), limit).ids
        self.prompts = [np.asarray(row, dtype=np.int64) for row in ids if len(row)]
        if not self.prompts:
            raise DataError("the held-out texts hold no token. Give at least one text.")
        anatomy = self.model.anatomy
        sites = expand_sites(None, anatomy)
        self.reducer = Reducer(
            anatomy, sites, final_norm, self.options, self.metrics, self.model.device
        )
        digest = hashlib.sha256(b"|".join(row.tobytes() for row in self.prompts))
        self.conventions = {
            "layerscope": VERSION,
            "model": self.model.name,
            "held_out": {"texts": len(self.prompts), "sha256": digest.hexdigest()},
            **Reading(final_norm, max_length, anatomy.final_norm_name).as_conventions(),
            "pooled_rows": self.options.pooled_rows,
            "metrics": [metric.info.name for metric in self.metrics],
            "share": share,
        }
        self.out = None if out is None else Path(out)
        if self.out is not None:
            _start_csv(self.out)
            atomic.write_json(self.out.with_suffix(".json"), self.conventions)
        self._rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()
        self._spent = 0.0
        self._last_cost = 0.0
        self._has_failed = False

    @property
    def table(self) -> pd.DataFrame:
        """Return all measurements: a row per step, layer, metric and sink setting."""
        return pd.DataFrame(self._rows, columns=COLUMNS)

    @property
    def spent(self) -> float:
        """Return the share of the time so far that went into measuring."""
        return self._spent / max(time.perf_counter() - self._start, 1e-9)

    def step(self, step: int) -> bool:
        """Measure if there is time after a training step; return whether there was."""
        elapsed = time.perf_counter() - self._start
        if self._spent and self._spent + self._last_cost > self.share * (elapsed + self._last_cost):
            return False
        self.measure(step)
        return True

    def measure(self, step: int) -> pd.DataFrame:
        """Measure now at any cost, and return the rows; the next measurements wait for it."""
        if self.model.device.type == "cuda":  # which may still work for the training
            torch.cuda.synchronize(self.model.device)
        start = time.perf_counter()
        rows: list[dict[str, Any]] = []
        with evaluation_mode(self.model.module):
            try:
                rows = measure_layers(
                    self.model, self.reducer, self.prompts, self.options, self.metrics
                )
            except NonFiniteStatesError as error:
                # training has diverged, and its owner decides whether to stop it
                if not self._has_failed:
                    warnings.warn(f"step {step}: layers not measured. {error}", stacklevel=2)
                self._has_failed = True
        rows = [{"step": step, **row} for row in rows]
        table = pd.DataFrame(rows, columns=COLUMNS)
        if self.out is not None:
            with atomic.explained(self.out):
                table.to_csv(self.out, mode="a", header=False, index=False)
        send(self.on_rows, step, {_curve_name(row): row["value"] for row in rows})
        self._rows += rows
        self._last_cost = time.perf_counter() - start
        self._spent += self._last_cost
        return table


def choose_metrics(
    names: MetricName | Sequence[MetricName] | None, options: Options
) -> list[Metric]:
    """Return metrics by name; without names a few built-in ones and those of other packages."""
    if names is None:
        plugins = [metric.info for metric in metrics().values() if is_plugin(metric)]
        names = [*DEFAULT_METRICS]
        names += [i.name for i in plugins if i.main and i.by_default and i.level != "views"]
    chosen = [get_metric(name) for name in expand_names(names)]
    for metric in chosen:
        if metric.info.level == "views":
            raise LayerscopeError(
                f"{metric.info.name} compares augmented views, which a watch does not make. Leave "
                "it out."
            )
        if is_plugin(metric):
            check_plugin(metric, options)
    return chosen


def measure_layers(
    model: LoadedModel,
    reducer: Reducer,
    prompts: Sequence[np.ndarray],
    options: Options,
    metrics: Sequence[Metric],
) -> list[dict[str, Any]]:
    """Return a row per layer, metric and sink setting, from one pass over the prompts.

    A mean leaves out the prompts for which the metric is undefined; `n` counts the others.
    """
    batches: list[Reduced] = []
    with reducer:
        BatchRunner(model).run(
            prompts, lambda numbers, batch: batches.append(reducer.measure(batch, model.run))
        )
    numbers = {
        name: np.concatenate([batch.tokens[name] for batch in batches], axis=1)
        for name in batches[0].tokens
    }
    pooled = np.concatenate([batch.pooled for batch in batches], axis=1)
    vectors = torch.from_numpy(pooled).double()
    rows: list[dict[str, Any]] = []
    for k, site in enumerate(reducer.sites):
        place = {"site": site.name, "layer": site.layer, "depth": site.depth}
        for metric in metrics:
            name = metric.info.name
            if metric.info.level == "tokens":
                by_sink = {s: values_of(name, s, numbers)[k] for s in metric.info.sinks}
            else:
                value = estimate_vectors(metric, SiteVectors(vectors[k]), options).value
                by_sink = {"keep": np.full(len(prompts), value)}
            for sink, values in by_sink.items():
                defined = values[np.isfinite(values)]
                if len(defined):
                    mean = float(defined.mean())
                    row = {"metric": name, "sink": sink, "value": mean, "n": len(defined)}
                    rows.append({**place, **row})
    return rows


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode; afterwards restore every part's mode and the random numbers."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    devices = {p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            module.eval()
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training
            # buffers that were made in inference mode (caches, say) cannot be used in training
            for name, buffer in submodule.named_buffers(recurse=False):
                if buffer.is_inference():
                    submodule._buffers[name] = buffer.clone()


def _load(model: nn.Module, tokenizer: Any) -> LoadedModel:
    """Return a module in training as a loaded model, without its data-parallel wrappers."""
    # running the inner module involves no other process and no compiled graph
    module: Any = model
    while hasattr(module, "_orig_mod") or isinstance(
        module, nn.DataParallel | nn.parallel.DistributedDataParallel
    ):
        module = module._orig_mod if hasattr(module, "_orig_mod") else module.module
    inner = unwrap(module)
    family = family_for(inner)
    if family.kind != "texts":
        raise ModelError(f"a watch reads texts, and {type(inner).__name__} reads {family.kind}.")
    config = getattr(inner, "config", None)
    name = getattr(config, "name_or_path", "") or type(inner).__name__
    return LoadedModel(inner, inner_tokenizer(model, tokenizer), family.resolve(inner), str(name))


def _start_csv(path: Path) -> None:
    """Write the header; a file with this very header is appended to."""
    header = ",".join(COLUMNS)
    with atomic.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as stream:
            stream.seek(0)
            first_line = stream.readline().rstrip()
            if not first_line:
                stream.write(f"{header}\n")
    if first_line not in ("", header):
        raise RunFolderError(
            f"{path} is no table of layers: its first line is {first_line!r}. Choose another file."
        )


def _curve_name(row: dict[str, Any]) -> str:
    """Return the name of a row's curve in a dashboard."""
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"
