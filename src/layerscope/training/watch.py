"""Measure every layer of a model on held-out texts while it trains, within a share of the time."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import nn

from layerscope.capture import FINAL_NORMS, Batch, expand_sites
from layerscope.capture.reduce import Reducer
from layerscope.core.conventions import Reading
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
_LAST_COSTS = 3


class Pace:
    """The rule by which measuring takes at most a share of the time.

    A measurement is due when its expected cost, the largest of the last three, still fits. The
    first cost is estimated from a small trial, which is assumed to cost no more than a training
    step.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < share < 1:
            raise InvalidValueError(
                f"share={share} is not between 0 and 1: it is the share of the run's time that "
                "measuring may take."
            )
        self.share = share
        self.clock = clock
        self.training = 0.0
        self.measuring = 0.0
        self._costs: deque[float] = deque(maxlen=_LAST_COSTS)
        self._step = 0.0
        self._start = clock()
        self._end: float | None = None
        self._measured_at = -np.inf

    @property
    def spent(self) -> float:
        """Return the share of the time so far that went into measuring."""
        return self.measuring / max(self.training + self.measuring, 1e-12)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count the time inside as measuring, and the time since the last turn as training."""
        self._start = self.clock()
        if self._end is not None:
            self._step = self._start - self._end
            self.training += self._step
        try:
            yield
        finally:
            self._end = self.clock()
            self.measuring += self._end - self._start

    def is_trial_due(self) -> bool:
        """Return whether a trial as long as a training step fits, and no cost is known."""
        return not self._costs and self._step > 0 and self._fits(self._step)

    def is_due(self) -> bool:
        """Return whether a measurement fits, and the last one is long enough ago.

        Time that was saved up is spent over some steps, not at one moment.
        """
        if not self._costs:
            return False
        cost = max(self._costs)
        return self._fits(cost) and self.training - self._measured_at >= 0.5 * cost / self.share

    def expect(self, seconds: float) -> None:
        """Record the cost that a trial predicts."""
        self._costs.append(seconds)

    def record(self, seconds: float) -> None:
        """Record the cost of a measurement."""
        self._costs.append(seconds)
        self._measured_at = self.training

    def _fits(self, cost: float) -> bool:
        measuring = self.measuring + self.clock() - self._start + cost
        return measuring <= self.share * (self.training + measuring)


class LayerWatch:
    """Measure the layers of a model while it trains. Call `step` after every training step.

    - `texts`: held-out texts, a list of strings; `tokenizer` reads them.
    - `share`: the largest share of the run's time that measuring may take.
    - `out`: a CSV file to which rows are appended, or None.
    - `on_rows`: a function such as `wandb.log`. It is called with a dictionary of the step and a
      number for each metric and layer.
    - `metrics`: names of metrics of tokens or pooled vectors. None: a few common ones and those of
      other packages.
    - `at_start`: measure at the first call, and make up for the time later.

    The model, its gradients and its random numbers are untouched.

        watch = LayerWatch(model, held_out, tokenizer, share=0.02, out="layers.csv")
        for step, batch in enumerate(batches):
            ...
            watch.step(step)
        watch.close()
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
        at_start: bool = False,
    ) -> None:
        if final_norm not in FINAL_NORMS:
            raise UnknownNameError("final_norm", final_norm, FINAL_NORMS)
        if isinstance(texts, str):
            raise DataError("held-out texts are a list of strings, not one string.")
        self.pace = Pace(share)
        self.on_rows = on_rows
        self.options = Options()
        self.metrics = choose_metrics(metrics, self.options)
        with self.pace.turn():
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
        self._at_start = at_start
        self._has_failed = False

    def step(self, step: int) -> bool:
        """Measure if there is time after a training step; return whether layers were measured."""
        with self._turn():
            if self._at_start:
                self._at_start = False
                return self._measure(step)
            if self.pace.is_trial_due():
                self._try()
            return self.pace.is_due() and self._measure(step)

    def measure(self, step: int) -> pd.DataFrame:
        """Measure now, whatever it costs, and return the rows; the next measurements wait for it."""
        with self._turn():
            self._measure(step)
        return self.table[self.table["step"] == step]

    @property
    def table(self) -> pd.DataFrame:
        """Return all measurements: a row per step, layer, metric and sink setting."""
        return pd.DataFrame(self._rows, columns=COLUMNS)

    @property
    def spent(self) -> float:
        """Return the share of the time so far that went into measuring."""
        return self.pace.spent

    def close(self) -> None:
        """Warn if the run was too short for a single measurement."""
        if not self._rows and not self._has_failed:
            warnings.warn(
                f"layers were never measured: {self.pace.training:.3g} s of training leave too "
                f"little time at share={self.pace.share:g}. Give fewer or shorter texts, a larger "
                "share, or at_start=True.",
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # a GPU may still work for the training, which is not time of measuring
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        with self.pace.turn():
            yield

    def _try(self) -> None:
        """Measure the shortest text alone, and expect the cost of all from that."""
        start = self.pace.clock()
        shortest = min(self.prompts, key=len)
        self._run([shortest], -1)
        scale = sum(len(ids) for ids in self.prompts) / len(shortest)
        self.pace.expect((self.pace.clock() - start) * scale)

    def _measure(self, step: int) -> bool:
        start = self.pace.clock()
        rows = self._run(self.prompts, step)
        if self.out is not None:
            with atomic.explained(self.out):
                table = pd.DataFrame(rows, columns=COLUMNS)
                table.to_csv(self.out, mode="a", header=False, index=False)
        send(self.on_rows, step, {_curve_name(row): row["value"] for row in rows})
        self._rows += rows
        self.pace.record(self.pace.clock() - start)
        return bool(rows)

    def _run(self, prompts: Sequence[np.ndarray], step: int) -> list[dict[str, Any]]:
        with evaluation_mode(self.model.module):
            try:
                rows = measure_layers(self.model, self.reducer, prompts, self.options, self.metrics)
            except NonFiniteStatesError as error:
                # training has diverged, and its owner decides whether to stop it
                if not self._has_failed:
                    warnings.warn(f"step {step}: layers not measured. {error}", stacklevel=4)
                self._has_failed = True
                return []
        return [{"step": step, **row} for row in rows]


def choose_metrics(
    names: MetricName | Sequence[MetricName] | None, options: Options
) -> list[Metric]:
    """Return metrics by name; without names a few built-in ones and those of other packages."""
    if names is None:
        others = [
            name
            for name, metric in metrics().items()
            if is_plugin(metric)
            and metric.info.main
            and metric.info.by_default
            and metric.info.level != "views"
        ]
        names = [*DEFAULT_METRICS, *others]
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
    pooled: list[np.ndarray] = []
    tokens: dict[str, list[np.ndarray]] = {}

    def collect(numbers: list[int], batch: Batch) -> None:
        reduced = reducer.measure(batch, model.run)
        pooled.append(reduced.pooled)
        for name, values in reduced.tokens.items():
            tokens.setdefault(name, []).append(values)

    with reducer:
        BatchRunner(model).run(prompts, collect)
    numbers = {name: np.concatenate(blocks, axis=1) for name, blocks in tokens.items()}
    vectors = torch.from_numpy(np.concatenate(pooled, axis=1)).double()
    rows: list[dict[str, Any]] = []
    for k, site in enumerate(reducer.sites):
        site_vectors = SiteVectors(vectors[k])
        place = {"site": site.name, "layer": site.layer, "depth": site.depth}
        for metric in metrics:
            name = metric.info.name
            if metric.info.level == "tokens":
                by_sink = {s: values_of(name, s, numbers)[k] for s in metric.info.sinks}
            else:
                value = estimate_vectors(metric, site_vectors, options).value
                by_sink = {"keep": np.full(len(prompts), value)}
            for sink, values in by_sink.items():
                defined = values[np.isfinite(values)]
                if len(defined):
                    mean = float(defined.mean())
                    count = len(defined)
                    row = {"metric": name, "sink": sink, "value": mean, "n": count}
                    rows.append({**place, **row})
    return rows


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode; afterwards restore every part's mode and the random numbers."""
    modes = [(part, part.training) for part in module.modules()]
    devices = {p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
            # buffers that were made in inference mode (caches, say) cannot be used in training
            for name, buffer in part.named_buffers(recurse=False):
                if buffer.is_inference():
                    part._buffers[name] = buffer.clone()


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
        first = ""
        if path.exists():
            with open(path, encoding="utf-8") as stream:
                first = stream.readline().rstrip("\r\n")
        if not first:
            path.write_text(f"{header}\n", encoding="utf-8")
    if first and first != header:
        raise RunFolderError(
            f"{path} is no table of layers: its first line is {first!r}. Choose another file."
        )


def _curve_name(row: dict[str, Any]) -> str:
    """Return the name of a row's curve in a dashboard."""
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"
