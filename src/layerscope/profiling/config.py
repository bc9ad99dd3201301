"""The settings of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any

from layerscope.capture import DEFAULT_SITES, FINAL_NORMS, FinalNorm
from layerscope.core.options import DataOptions, EngineOptions, ModelOptions
from layerscope.data.items import get_kind, setting_names
from layerscope.data.views import AUGMENTERS
from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.metrics import ROW_PREPARATIONS, Options, expand_names, get_metric
from layerscope.metrics.entropy import check_alpha
from layerscope.metrics.registry import MetricName, check_plugin, is_plugin, origin
from layerscope.models.inputs import ReadSettings, ViewSettings

__all__ = ["ProfileConfig", "make_config"]

DEFAULT_MAX_LENGTH = 256


@dataclass(frozen=True)
class ProfileConfig:
    """Settings of a profile that decide its numbers. Batch size and device are not among them."""

    metrics: tuple[str, ...] = ()
    sites: tuple[str, ...] = DEFAULT_SITES
    final_norm: FinalNorm = "applied"
    max_length: int = DEFAULT_MAX_LENGTH
    views: int = 4
    augmenter: str = "builtin"
    seed: int = 0
    options: Options = field(default_factory=Options)
    reading: Mapping[str, str] = field(default_factory=dict)
    """The settings for reading items of this kind (`ItemKind.settings`); texts have none."""

    def needs(self, level: str) -> bool:
        """Return whether a chosen metric reads this level (tokens, pooled, views)."""
        return any(get_metric(name).info.level == level for name in self.metrics)

    @property
    def n_views(self) -> int:
        """Return the number of augmented views: none if no metric compares views."""
        return self.views if self.needs("views") else 0

    @property
    def read_settings(self) -> ReadSettings:
        """Return what is read of each item."""
        return ReadSettings(self.max_length, self.reading)

    @property
    def view_settings(self) -> ViewSettings:
        """Return which views are encoded."""
        return ViewSettings(self.n_views, self.seed, self.augmenter)

    @property
    def plugins(self) -> dict[str, str]:
        """Return the package and version of each metric from elsewhere: another version may measure
        something else."""
        metrics = {name: get_metric(name) for name in self.metrics}
        return {name: origin(metric) for name, metric in metrics.items() if is_plugin(metric)}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for the manifest and the run's key."""
        values = asdict(self)
        values |= values.pop("reading")
        return {**values, "plugins": self.plugins} if self.plugins else values


def make_config(
    *,
    metrics: MetricName | Sequence[MetricName] | None = None,
    sites: Sequence[str] | None = None,
    final_norm: str | None = None,
    max_length: int | None = None,
    views: int | None = None,
    augmenter: str | None = None,
    seed: int = 0,
    kind: str = "texts",
    **options: Any,
) -> ProfileConfig:
    """Return a checked configuration for items of a kind: the defaults, changed by what is
    given."""
    item_kind = get_kind(kind)
    own_settings = {name: options.pop(name) for name in setting_names() if name in options}
    for name, value in own_settings.items():
        if value is not None and name not in item_kind.settings:
            raise InvalidValueError(f"{name} is no setting for {kind}. Leave it out.")
    settings = item_kind.reading_settings(
        {"max_length": max_length, "augmenter": augmenter, **own_settings}
    )
    settings |= {"final_norm": final_norm, "views": views}
    reading = {name: settings.pop(name) for name in item_kind.settings}
    options = _without_none(options)
    unknown = [name for name in options if name not in Options.__dataclass_fields__]
    if unknown:
        groups = (ModelOptions, DataOptions, EngineOptions)
        valid = {name for group in groups for name in group.names()}
        valid |= {*signature(make_config).parameters, *Options.__dataclass_fields__}
        valid |= setting_names()
        raise UnknownNameError("setting", unknown[0], valid - {"kind", "options"})
    config = ProfileConfig(
        metrics=tuple(expand_names(metrics)),
        sites=tuple(sites) if sites else DEFAULT_SITES,
        seed=seed,
        options=Options(seed=seed, **options),
        reading=reading,
        **_without_none(settings),
    )
    _check(config)
    return config


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check(config: ProfileConfig) -> None:
    options = config.options
    named = {"final_norm": FINAL_NORMS, "augmenter": AUGMENTERS.all()}
    named |= dict.fromkeys(("rows", "pooled_rows", "view_rows", "lidar_rows"), ROW_PREPARATIONS)
    for name, valid in named.items():
        value = getattr(config if hasattr(config, name) else options, name)
        if value not in valid:
            raise UnknownNameError(name, str(value), valid)
    if config.needs("views") and not 2 <= config.views <= 16:
        raise InvalidValueError(
            f"views must be 2 to 16, not {config.views}. Metrics that compare views can be left "
            "out."
        )
    if not config.metrics:
        raise InvalidValueError(
            "no metrics were chosen. Leave them out for all, or name some; "
            "`layerscope list metrics` shows them."
        )
    if config.seed < 0:
        raise InvalidValueError(f"seed must be 0 or more, not {config.seed}.")
    if config.max_length < 1:
        raise InvalidValueError(f"max_length must be at least 1 token, not {config.max_length}.")
    for metric in map(get_metric, config.metrics):
        if is_plugin(metric):
            check_plugin(metric, options)
    try:
        check_alpha(options.alpha)
    except ValueError as error:
        raise LayerscopeError(f"{error}.") from None
    if options.permutations < 2 or options.dime_samples < 2:
        raise InvalidValueError("permutations and dime_samples must be at least 2.")
    if options.temperature <= 0 or options.delta < 0:
        raise InvalidValueError("temperature must be above 0 and delta at least 0.")
