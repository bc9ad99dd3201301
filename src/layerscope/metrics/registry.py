"""All metrics by name: those of this folder, those that other packages add (entry points
`layerscope.metrics`), and functions."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

from layerscope.core.formatting import split_names
from layerscope.core.plugins import PluginError, Registry
from layerscope.metrics.base import Estimate, Metric, MetricInfo, PromptMean
from layerscope.metrics.options import Options

__all__ = ["is_plugin"]

M = TypeVar("M", bound=type[Metric[Any]])
MetricName = str | type[Metric[Any]] | Callable[..., Any]
"""What a user may ask for: a metric's name, its class, or a function of states."""


def _is_metric(thing: Any) -> bool:
    return (
        isinstance(thing, type)
        and issubclass(thing, Metric)
        and isinstance(vars(thing).get("info"), MetricInfo)
    )


def _metrics_in(module: Any) -> list[type[Metric[Any]]]:
    things = list(getattr(module, "__dict__", {}).values())
    return [thing for thing in things if _is_metric(thing) and thing.__module__ == module.__name__]


REGISTRY: Registry[type[Metric[Any]]] = Registry(
    "metric",
    "layerscope.metrics",
    name=lambda metric: metric.info.name,
    check=_is_metric,
    package="layerscope.metrics",
    find=_metrics_in,
    hint="`layerscope list metrics` shows them.",
)


def register(metric: M) -> M:
    """Class decorator: register a metric in this process. Metrics in this folder or from entry
    points do not need it."""
    REGISTRY.add(metric)
    return metric


def metrics() -> dict[str, type[Metric[Any]]]:
    """Every known metric by name: the paper's first, then the others."""
    return dict(sorted(REGISTRY.all().items(), key=lambda item: (not item[1].info.core, item[0])))


def get_metric(name: str) -> type[Metric[Any]]:
    """The class of a metric. An unknown name raises an error that suggests the nearest one."""
    return REGISTRY.get(name)


def expand_names(names: MetricName | Iterable[MetricName] | None) -> list[str]:
    """Metric names from a user's list, or from names with commas.

    `all` (or None) is every metric that is measured by default, `paper` the paper's own.

    A metric's class or a plain function may stand for a name; it is registered in this process (see
    `metric_of_function`).
    """
    given: Iterable[MetricName]
    if isinstance(names, str):
        given = split_names(names)
    elif names is None or callable(names):
        given = ["all" if names is None else names]
    else:
        given = names
    known = metrics()
    wanted: list[str] = []
    for name in given:
        if not isinstance(name, str):
            made: Any = name if _is_metric(name) else metric_of_function(name)
            wanted.append(register(made).info.name)
        elif name == "all":
            wanted += [n for n, m in known.items() if m.info.by_default and not is_function(m)]
        elif name == "paper":
            wanted += [n for n, m in known.items() if m.info.core]
        else:
            get_metric(name)
            wanted.append(name)
    return list(dict.fromkeys(wanted))


class FunctionMetric(PromptMean):
    """The mean over prompts of what a user's function gives. Asked for by the function, never by
    `all`."""

    function: FunctionType
    takes_mask: bool

    def measure(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One value per prompt: from the whole batch, or prompt by prompt from the states without
        padding."""
        function = type(self).function
        if self.takes_mask:
            return function(states, mask)
        return torch.tensor(
            [self._number(function(rows[real])) for rows, real in zip(states, mask, strict=True)]
        )

    def _number(self, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise PluginError(
                f"metric {self.info.name!r}: the function is given the states (tokens, width) of one prompt and must return one "
                f"number; it returned {_in_words(value)}."
            ) from None


def _in_words(value: Any) -> str:
    is_tensor = isinstance(value, torch.Tensor)
    return f"a tensor of shape {tuple(value.shape)}" if is_tensor else type(value).__name__


def is_function(metric: type[Metric[Any]]) -> bool:
    """Whether a metric is a user's function, which is measured where it is named and nowhere
    else."""
    return issubclass(metric, FunctionMetric)


def metric_of_function(function: Any) -> type[FunctionMetric]:
    """A plain function as a metric under its own name, which is the mean over prompts of what it
    returns.

    A function of one argument is given the token states (tokens, width) of one prompt and returns a
    number; one of two is given a batch, `(states, mask)`, and returns a number per prompt.
    """
    if not isinstance(function, FunctionType) or not function.__name__.isidentifier():
        raise PluginError(
            f"{function!r} is not a metric: give a name, a metric's class, or a function with a name of its own "
            "(def my_metric(states): …)."
        )
    name = function.__name__
    needed = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) not in (1, 2):
        raise PluginError(
            f"metric {name!r}: the function takes {len(needed)} arguments; it must take the states of one prompt, or "
            "(states, mask) of a batch."
        )
    info = MetricInfo(
        name=name, title=name.replace("_", " ").capitalize(), level="tokens", unit="", citation="",
        higher_means=f"{name} is larger", bounds=lambda n, d, o: (-math.inf, math.inf), bounds_text="not known",
    )  # fmt: skip
    members = {
        "function": staticmethod(function),
        "takes_mask": len(needed) == 2,
        "info": info,
        "__doc__": function.__doc__,
    }
    made: type[FunctionMetric] = type(name, (FunctionMetric,), members)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def _code_digest(function: FunctionType) -> str:
    """What tells two functions of one name apart, so that a run is not resumed with another one."""

    def told(thing: Any) -> str:
        if isinstance(thing, CodeType):
            return f"{thing.co_code.hex()} {thing.co_names} {[told(inner) for inner in thing.co_consts]}"
        return (
            repr(thing)
            if isinstance(thing, (int, float, str, bytes, tuple, type(None)))
            else type(thing).__name__
        )

    closed = [told(cell.cell_contents) for cell in function.__closure__ or ()]
    parts = [told(function.__code__), *map(told, function.__defaults__ or ()), *closed]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def in_reading_order(names: Iterable[str]) -> list[str]:
    """Metric names as tables and figures show them; names that are not metrics here (of a published
    table, say) come last."""
    known = REGISTRY.all()
    return sorted(
        dict.fromkeys(names),
        key=lambda name: (known[name].info.order, name) if name in known else (math.inf, name),
    )


def main_metrics(names: Iterable[str] | None = None) -> list[str]:
    """The metrics among `names` (every known one if None) that are shown where there is no room for
    all, in reading order."""
    known = REGISTRY.all()
    return [
        name
        for name in in_reading_order(known if names is None else names)
        if name in known and known[name].info.main
    ]


def metric_title(name: str, sink: str = "keep") -> str:
    """What a metric is called in titles and tables; its name where it is not a metric here."""
    known = REGISTRY.all()
    title = known[name].info.title if name in known else name.replace("_", " ")
    return title + (", sink dropped" if sink == "drop" else "")


def on_log_scale(name: str) -> bool:
    """Whether a metric is drawn on a logarithmic axis."""
    known = REGISTRY.all()
    return name in known and known[name].info.log_scale


def shown_series(names: Iterable[str]) -> list[tuple[str, str]]:
    """The main metrics among `names` with their sink settings, as tables by layer and panels show
    them."""
    known = REGISTRY.all()
    return [
        (name, sink)
        for name in main_metrics(names)
        for sink in ("keep", *["drop"] * known[name].info.compare_sinks)
    ]


def is_plugin(metric: type[Metric[Any]]) -> bool:
    """Whether a metric comes from outside this package."""
    return not metric.__module__.startswith("layerscope.metrics.")


def origin(metric: type[Metric[Any]]) -> str:
    """Where a metric from outside comes from, for the manifest and the run's key: its class, its
    package and version."""
    source = REGISTRY.source(metric.info.name)
    if issubclass(metric, FunctionMetric):
        source = f"code {_code_digest(metric.function)}"
    return f"{metric.__module__}.{metric.__qualname__}" + (f" ({source})" if source else "")


def check_plugin(metric: type[Metric[Any]], options: Options) -> None:
    """Try a metric from outside on small random samples: what is wrong with it is better known
    before a model is run."""
    info = metric.info
    if info.level not in ("tokens", "pooled", "views"):
        raise PluginError(
            f"metric {info.name!r}: level must be tokens, pooled or views, not {info.level!r}."
        )
    if "keep" not in info.sinks or (info.level != "tokens" and info.sinks != ("keep",)):
        raise PluginError(
            f'metric {info.name!r}: sinks must be ("keep",), or ("keep", "drop") for a token metric.'
        )
    generator = torch.Generator().manual_seed(0)
    try:
        made = metric(options)
        if isinstance(made, PromptMean):
            _try_prompts(made, generator)
            return
        if info.level == "tokens":
            raise PluginError(
                f"metric {info.name!r} is a token metric: derive it from layerscope.metrics.PromptMean."
            )
        data = made.new_data()
        shape = (24, 16) if info.level == "pooled" else (24, 2, 16)
        data.update(torch.randn(shape, generator=generator))
        _check_estimate(info, made.estimate(data))
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(
            f"metric {info.name!r} failed on random samples: {type(error).__name__}: {error}."
        ) from error


def _try_prompts(metric: PromptMean, generator: torch.Generator) -> None:
    states = torch.randn((3, 24, 16), generator=generator)
    mask = torch.arange(24).expand(3, -1) < torch.tensor([[24], [20], [17]])
    name = metric.info.name
    values = checked_values(metric, metric.measure(states, mask), 3)
    if bool(torch.isnan(values).any()):
        raise PluginError(
            f"metric {name!r}: measure gives NaN for ordinary states (17 to 24 tokens of width 16). "
            "NaN is for prompts for which the metric is not defined."
        )
    if bool(torch.isinf(values).any()):
        raise PluginError(f"metric {name!r}: measure gives infinite values for ordinary states.")
    padded = checked_values(
        metric, metric.measure(torch.where(mask.unsqueeze(-1), states, 100.0), mask), 3
    )
    if not torch.allclose(values, padded, rtol=1e-4, atol=1e-6):
        raise PluginError(
            f"metric {name!r}: measure reads padding. Leave out the tokens where `mask` is False."
        )


def checked_values(metric: PromptMean, values: Any, prompts: int) -> torch.Tensor:
    """What `measure` returned, float64; an error that names the metric unless it is one number per
    prompt."""
    if (
        not isinstance(values, torch.Tensor)
        or tuple(values.shape) != (prompts,)
        or values.is_complex()
    ):
        raise PluginError(
            f"metric {metric.info.name!r}: measure must return one real number per prompt, a tensor of shape ({prompts},) here; "
            f"it returned {_in_words(values)}."
        )
    return values.detach().double()


def _check_estimate(info: MetricInfo, estimate: Any) -> None:
    if not isinstance(estimate, Estimate):
        raise PluginError(
            f"metric {info.name!r}: estimate must return an Estimate, not {type(estimate).__name__}."
        )
    if not math.isfinite(estimate.value):
        raise PluginError(
            f"metric {info.name!r}: estimate gives {estimate.value} for 24 random vectors of width 16."
        )
