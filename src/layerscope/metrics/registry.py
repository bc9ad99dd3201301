"""All metrics by name: those of this folder, those that other packages add (entry points
`layerscope.metrics`), and functions."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from layerscope.core.options import split_names
from layerscope.core.plugins import PluginError, Registry
from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.vectors import Options, SiteVectors

__all__ = ["is_plugin"]

MetricName = str | Metric | Callable[..., Any]
"""A user's choice: a metric's name, a metric, or a function of states."""


def _metrics_in(module: ModuleType) -> list[Metric]:
    return [thing for thing in vars(module).values() if isinstance(thing, Metric)]


REGISTRY: Registry[Metric] = Registry(
    "metric",
    "layerscope.metrics",
    name=lambda metric: metric.info.name,
    check=lambda thing: isinstance(thing, Metric),
    package="layerscope.metrics",
    find=_metrics_in,
    hint="`layerscope list metrics` shows them.",
)


def register(metric: Metric) -> Metric:
    """Make a metric known in this process. Metrics in this folder or from entry points do not need
    it."""
    return REGISTRY.add(metric)


def metrics() -> dict[str, Metric]:
    """Return every known metric by name: the paper's first, then the others."""
    return dict(sorted(REGISTRY.all().items(), key=lambda item: (not item[1].info.core, item[0])))


def get_metric(name: str) -> Metric:
    """Return the metric of a name. An unknown name raises an error that suggests the nearest
    one."""
    return REGISTRY.get(name)


def expand_names(names: MetricName | Iterable[MetricName] | None) -> list[str]:
    """Return metric names from a user's list, or from names with commas.

    `all` (or None) is every metric that is measured by default, `paper` the paper's own. A metric
    or a plain function may stand for a name; it is registered in this process (see
    `metric_of_function`).
    """
    requested: Iterable[MetricName]
    if names is None or isinstance(names, str):
        requested = split_names(names or "all")
    elif isinstance(names, Metric) or callable(names):
        requested = [names]
    else:
        requested = names
    by_name = metrics()
    expanded: list[str] = []
    for name in requested:
        if isinstance(name, Metric):
            expanded.append(register(name).info.name)
        elif not isinstance(name, str):
            expanded.append(register(metric_of_function(name)).info.name)
        elif name == "all":
            expanded += [n for n, metric in by_name.items() if metric.info.by_default]
        elif name == "paper":
            expanded += [n for n, metric in by_name.items() if metric.info.core]
        else:
            expanded.append(get_metric(name).info.name)
    return list(dict.fromkeys(expanded))


# How metrics are shown


def in_reading_order(names: Iterable[str]) -> list[str]:
    """Return metric names as tables and figures show them; names that are not metrics here (of a
    published table, say) come last."""
    orders = {name: metric.info.order for name, metric in REGISTRY.all().items()}
    return sorted(dict.fromkeys(names), key=lambda name: (orders.get(name, math.inf), name))


def main_metrics(names: Iterable[str] | None = None) -> list[str]:
    """Return the metrics among `names` (every known one if None) that are shown where there is no
    room for all, in reading order."""
    by_name = REGISTRY.all()
    ordered = in_reading_order(by_name if names is None else names)
    return [name for name in ordered if name in by_name and by_name[name].info.main]


def metric_title(name: str, sink: str = "keep") -> str:
    """Return a metric's title; its name where it is not a metric here."""
    metric = REGISTRY.all().get(name)
    title = name.replace("_", " ") if metric is None else metric.info.title
    return title + (", sink dropped" if sink == "drop" else "")


def on_log_scale(name: str) -> bool:
    """Return True for a metric that is drawn on a logarithmic axis."""
    metric = REGISTRY.all().get(name)
    return metric is not None and metric.info.log_scale


def shown_series(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the main metrics among `names` with their sink settings, as tables by layer and panels
    show them."""
    series = []
    for name in main_metrics(names):
        series.append((name, "keep"))
        if get_metric(name).info.compare_sinks:
            series.append((name, "drop"))
    return series


# Metrics from outside


def metric_of_function(function: object) -> Metric:
    """Return a plain function as a metric under its own name: the mean over prompts of its result.

    A function of one argument is given the token states (tokens, width) of one prompt and returns a
    number; one of two is given a batch, `(states, mask)`, and returns a number per prompt. `all`
    does not include it.
    """
    if not isinstance(function, FunctionType) or not function.__name__.isidentifier():
        raise PluginError(
            f"{function!r} is not a metric: give a name, a Metric, or a function with a name of "
            "its own (def my_metric(states): …)."
        )
    name = function.__name__
    count = len(inspect.signature(function).parameters)
    if count not in (1, 2):
        raise PluginError(
            f"metric {name!r}: the function takes {count} arguments; it must take the states of "
            "one prompt, or (states, mask) of a batch."
        )
    info = MetricInfo(
        name=name,
        title=name.replace("_", " ").capitalize(),
        level="tokens",
        unit="",
        higher_means=f"{name} is larger",
        bounds="not known",
        citation="",
        by_default=False,
    )
    place = f"{function.__module__}.{function.__qualname__}"
    return Metric(info, measure=FunctionMeasure(place, count == 2, function))


@dataclass(frozen=True)
class FunctionMeasure:
    """The `measure` of a user's function. Two functions of one place are the same metric."""

    place: str
    takes_mask: bool
    function: FunctionType = field(compare=False)

    def __call__(self, states: Tensor, mask: Tensor, options: Options) -> Tensor:
        """Return one value per prompt: from the whole batch, or prompt by prompt from the states
        without padding."""
        if self.takes_mask:
            values: Tensor = self.function(states, mask)
            return values
        prompts = zip(states, mask, strict=True)
        numbers = [torch.as_tensor(self.function(rows[real])) for rows, real in prompts]
        if any(number.numel() != 1 for number in numbers):
            raise PluginError(
                f"metric {self.function.__name__!r} must return one number for the states (tokens, "
                f"width) of a prompt; it returned a tensor of shape {tuple(numbers[0].shape)}."
            )
        return torch.stack([number.reshape(()).double() for number in numbers])


def is_plugin(metric: Metric) -> bool:
    """Return True for a metric from outside this package."""
    return metric.info.name not in _built_in_names()


@cache
def _built_in_names() -> frozenset[str]:
    folder = importlib.import_module("layerscope.metrics")
    modules = [
        importlib.import_module(f"layerscope.metrics.{module.name}")
        for module in pkgutil.iter_modules(folder.__path__)
    ]
    return frozenset(metric.info.name for module in modules for metric in _metrics_in(module))


def origin(metric: Metric) -> str:
    """Return the origin of a metric from outside, for the manifest and the run's key: its function,
    its package and version."""
    function: Any = metric.estimate if metric.measure is None else metric.measure
    if isinstance(function, FunctionMeasure):
        return f"{function.place} (code {_code_digest(function.function)})"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    source = REGISTRY.source(metric.info.name)
    return f"{function.__module__}.{name}" + (f" ({source})" if source else "")


def _code_digest(function: FunctionType) -> str:
    """Return a digest of a function's code, so that a run is not resumed with another one."""

    def describe(thing: object) -> str:
        if isinstance(thing, CodeType):
            constants = [describe(inner) for inner in thing.co_consts]
            return f"{thing.co_code.hex()} {thing.co_names} {constants}"
        is_plain = isinstance(thing, (int, float, str, bytes, tuple, type(None)))
        return repr(thing) if is_plain else type(thing).__name__

    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    pieces = [function.__code__, *(function.__defaults__ or ()), *closed]
    return hashlib.sha256("|".join(map(describe, pieces)).encode()).hexdigest()[:12]


def check_plugin(metric: Metric, options: Options) -> None:
    """Try a metric from outside on small random samples, before a model is run."""
    name = metric.info.name
    needed = "measure" if metric.info.level == "tokens" else "estimate"
    if getattr(metric, needed) is None:
        raise PluginError(f"metric {name!r} is of level {metric.info.level}: it needs {needed}=.")
    problem = ""
    try:
        if needed == "measure":
            problem = _try_measure(metric, options)
        else:
            problem = _try_estimate(metric, options)
    except PluginError:
        raise
    except Exception as error:
        problem = f"failed: {type(error).__name__}: {error}"
    if problem:
        raise PluginError(f"metric {name!r}, tried on random samples, {problem}.")


def _try_measure(metric: Metric, options: Options) -> str:
    """Return what is wrong with the values of three prompts, if anything."""
    states = torch.randn((3, 24, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(24).expand(3, -1) < torch.tensor([[24], [20], [17]])
    values = measured_values(metric, states, mask, options)
    if bool(torch.isnan(values).any()):
        return "gives NaN, which is for prompts for which a metric is not defined"
    filled = torch.where(mask.unsqueeze(-1), states, 100.0)
    padded = measured_values(metric, filled, mask, options)
    if not torch.allclose(values, padded, rtol=1e-4, atol=1e-6):
        return "reads padding: leave out the tokens where `mask` is False"
    return ""


def _try_estimate(metric: Metric, options: Options) -> str:
    """Return what is wrong with the value of 24 prompts, if anything."""
    assert metric.estimate is not None
    views = torch.randn((24, 2, 16), generator=torch.Generator().manual_seed(0))
    estimate: object = metric.estimate(SiteVectors(views[:, 0], views), options)
    if not isinstance(estimate, Estimate):
        return f"returned {type(estimate).__name__}, not an Estimate"
    return "" if math.isfinite(estimate.value) else f"gives {estimate.value}"


def measured_values(metric: Metric, states: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Return what `measure` gives, float64; an error that names the metric unless it is one number
    per prompt."""
    assert metric.measure is not None
    values: object = metric.measure(states, mask, options)
    shape = (len(states),)
    if isinstance(values, Tensor) and tuple(values.shape) == shape and not values.is_complex():
        if bool(torch.isinf(values).any()):
            raise PluginError(f"metric {metric.info.name!r}: measure gives infinite values.")
        return values.detach().double()
    raise PluginError(
        f"metric {metric.info.name!r}: measure must return one real number per prompt, a tensor of "
        f"shape {shape} here; it returned {type(values).__name__} "
        f"{tuple(getattr(values, 'shape', ()))}."
    )
