"""What a profile measures and under which conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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

__all__ = ["make_config"]

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
        """Whether any chosen metric reads this level (tokens, pooled, views)."""
        return any(get_metric(name).info.level == level for name in self.metrics)

    @property
    def n_views(self) -> int:
        """Augmented views that are encoded: none if no metric compares views."""
        return self.views if self.needs("views") else 0

    @property
    def read_settings(self) -> ReadSettings:
        """What is read of each item."""
        return ReadSettings(self.max_length, self.reading)

    @property
    def view_settings(self) -> ViewSettings:
        """Which views are encoded."""
        return ViewSettings(self.n_views, self.seed, self.augmenter)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest and the run's key."""
        values = asdict(self)
        values |= values.pop("reading")
        plugins = {
            name: origin(get_metric(name)) for name in self.metrics if is_plugin(get_metric(name))
        }  # another version may measure something else
        return {**values, "plugins": plugins} if plugins else values


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
    """A checked configuration for items of a kind: the defaults, changed by whatever is given."""
    known = get_kind(kind)
    own_settings = {name: options.pop(name) for name in setting_names() if name in options}
    for name, value in own_settings.items():
        if value is not None and name not in known.settings:
            raise InvalidValueError(f"{name} is no setting for {kind}. Leave it out.")
    asked = {"max_length": max_length, "augmenter": augmenter, **own_settings}
    reading = {
        name: value for name, value in known.reading_settings(asked).items() if value is not None
    }
    given = {"final_norm": final_norm, "views": views, "augmenter": reading.pop("augmenter", None)}
    own = {k: v for k, v in given.items() if v is not None}
    merged = {k: v for k, v in options.items() if v is not None}
    unknown = [k for k in merged if k not in Options.__dataclass_fields__]
    if unknown:
        names = {
            *signature(make_config).parameters,
            *Options.__dataclass_fields__,
            *setting_names(),
            # a misspelled option of these ends up here as well
            *(n for g in (ModelOptions, DataOptions, EngineOptions) for n in g.names()),
        }
        raise UnknownNameError("setting", unknown[0], names - {"kind", "options"})
    config = ProfileConfig(
        metrics=tuple(expand_names(metrics)),
        sites=tuple(sites) if sites else DEFAULT_SITES,
        seed=seed,
        options=replace(Options(seed=seed), **merged),
        reading={name: reading.pop(name) for name in known.settings},
        **reading,
        **own,
    )
    _check(config)
    return config


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
            f"views must be 2 to 16, not {config.views}. Metrics that compare views can be left out."
        )
    if not config.metrics:
        raise InvalidValueError(
            "no metrics were chosen. Leave them out for all, or name some; `layerscope list metrics` shows them."
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
