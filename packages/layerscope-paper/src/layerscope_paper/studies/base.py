"""The base class of studies, their options and results, and the registry of all studies.

A study is one file: in this folder, a module whose `STUDY` is an instance of a `Study`; in another
package, an entry point of the group `layerscope_paper.studies` that names such an instance, its
class, or its module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from layerscope.core.options import split_names
from layerscope.core.plugins import Registry
from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError
from layerscope_paper.drawing import Figure
from layerscope_paper.studies.shared.models import CURVES, Request, read_specs

if TYPE_CHECKING:
    import pandas as pd

    from layerscope.progress import Progress

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True)
class Option:
    """One setting of one study. A value given as text is read as the default's type; lists are
    comma-separated.

    `valid` lists the names it may have, `least` and `most` bound its numbers; a list that is
    `filled` must not be empty.

    >>> Option("levels", [0.0, 1.0], "shares of tokens").parse("0,0.5,1")
    [0.0, 0.5, 1.0]
    """

    name: str
    default: Any
    help: str
    valid: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    filled: bool = False

    def parse(self, value: Any) -> Any:
        """Return a value as this option holds it, from text or from Python."""
        if value is None:
            return self.default
        if not isinstance(self.default, (list, tuple)):
            return self._read(value, type(self.default))
        items = split_names(value) if isinstance(value, str) else value
        if isinstance(items, (bytes, Mapping)) or not hasattr(items, "__iter__"):
            items = [items]
        kind = type(self.default[0]) if self.default else str
        values = [self._read(item, kind) for item in items]
        if self.filled and not values:
            raise InvalidValueError(
                f"option {self.name} is an empty list: give at least one value (default: "
                f"{self.shown})."
            )
        return values

    def _read(self, value: Any, kind: type) -> Any:
        """Return a value of a kind, if it is valid."""
        try:
            if kind is bool:
                return _BOOLEANS[str(value).strip().lower()]
            if kind is int and isinstance(value, float) and value != int(value):
                raise ValueError
            converted = kind(value)
        except (KeyError, TypeError, ValueError):
            kinds = {bool: "true or false", int: "a whole number", float: "a number"}
            raise InvalidValueError(
                f"option {self.name} takes {kinds.get(kind, kind.__name__)}, not {value!r} "
                f"(default: {self.shown})."
            ) from None
        return self._check(converted)

    def _check(self, value: Any) -> Any:
        """Return the value, if it is one of the valid names or within the bounds (NaN is not)."""
        if self.valid and value not in self.valid:
            raise UnknownNameError(f"value of the option {self.name}", str(value), self.valid)
        low = self.least
        high = self.most
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            bounds = f"of {low:g} or more" if high is None else f"from {low:g} to {high:g}"
            raise InvalidValueError(
                f"option {self.name} takes numbers {bounds}, not {value} (default: {self.shown})."
            )
        return value

    @property
    def shown(self) -> str:
        """The default as a user would write it."""
        if isinstance(self.default, (list, tuple)):
            return ",".join(map(str, self.default))
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


METRICS = Option("metrics", CURVES, "metrics of every layer, as for `layerscope profile --metrics`")
DATA_DIR = Option("data_dir", "", "folder with the data of tasks")


@dataclass
class Result:
    """The result of a study. `table` is tidy: one row per model, site, setting and metric, with a
    value, its interval and n.

    `verdict` is plain sentences, the answer first, with its numbers and intervals; `conventions` go
    into the manifest (model identities under "models").
    """

    table: pd.DataFrame
    verdict: list[str]
    conventions: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Study(ABC):
    """One experiment: its options, its measurement and its figure."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""  # such as "Fig. 6, App. F"
    models: ClassVar[tuple[int, int | None]]  # smallest and largest number; (0, 0): none
    texts: ClassVar[bool] = True  # True if it reads a corpus
    final_norm: ClassVar[str] = "raw"  # the default of the states that are measured
    options: ClassVar[tuple[Option, ...]] = ()

    @abstractmethod
    def run(self, request: Request, bar: Progress) -> Result:
        """Measure, tabulate, and give a verdict."""

    @abstractmethod
    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Return a matplotlib figure like the paper's."""

    def identify(self, request: Request) -> Any:
        """Identify the models without loading them; part of the study's key."""
        return [spec.identity(request) for spec in read_specs(request.models)]

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options, from these values and the defaults."""
        options = {option.name: option for option in self.options}
        for name in values:
            if name not in options:
                hint = f"`layerscope-paper study list {self.name}` describes its options."
                raise UnknownNameError(f"option of the study {self.name}", name, options, hint)
        return {name: option.parse(values.get(name)) for name, option in options.items()}

    def check_models(self, count: int) -> None:
        """Refuse a number of models that the study cannot use."""
        fewest, most = self.models
        if count < fewest or (most is not None and count > most):
            number = "no" if most == 0 else self.model_count
            noun = "model" if number == "1" else "models"
            raise LayerscopeError(
                f"the study {self.name} takes {number} {noun}, and was given {count}."
            )

    @property
    def model_count(self) -> str:
        """The number of models it takes, in words."""
        fewest, most = self.models
        if most is None:
            return f"{fewest} or more"
        if most == fewest:
            return str(fewest or "none")
        return f"{fewest} to {most}"


def _find(source: Any) -> list[Study]:
    """Return the study of a module (its `STUDY`), or of a class that an entry point names."""
    if isinstance(source, type):
        return [source()] if issubclass(source, Study) else []
    study = getattr(source, "STUDY", None)
    return [study] if isinstance(study, Study) else []


STUDIES: Registry[Study] = Registry(
    "study",
    "layerscope_paper.studies",
    name=lambda study: study.name,
    check=lambda thing: isinstance(thing, Study),
    package="layerscope_paper.studies",
    find=_find,
    hint="`layerscope-paper study list` describes them.",
)
