"""What a study is (its options, what it returns), and the registry of all studies.

A study is one file: in this folder, a module whose `STUDY` is an instance of a `Study`; in another
package, an entry point of the group `layerscope_paper.studies` that names such an instance, its class, or
its module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from layerscope.core.formatting import split_names
from layerscope.core.plugins import Registry
from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError
from layerscope_paper.drawing import Figure
from layerscope_paper.studies.shared.models import CURVES, Request, read_specs

if TYPE_CHECKING:
    import pandas as pd

    from layerscope.progress import Progress

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """One setting of one study. A value given as text is read as the default's type; lists are
    comma-separated.

    `valid` are the names it may have, `least` and `most` the bounds of its numbers; a list that is
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
        """A value as this option holds it, from text or from Python."""
        if value is None:
            return self.default
        if isinstance(self.default, (list, tuple)):
            parts = split_names(value) if isinstance(value, str) else value
            if isinstance(parts, (str, bytes, Mapping)) or not hasattr(parts, "__iter__"):
                parts = [parts]
            kind = type(self.default[0]) if self.default else str
            values = [self._read(part, kind) for part in parts]
            if self.filled and not values:
                raise InvalidValueError(
                    f"option {self.name} is an empty list: give at least one value (default: "
                    f"{self.shown})."
                )
            return values
        return value if self.default is None else self._read(value, type(self.default))

    def _read(self, value: Any, kind: type) -> Any:
        try:
            if kind is bool:
                if isinstance(value, bool):
                    return value
                word = str(value).strip().lower()
                if word in _TRUE or word in _FALSE:
                    return word in _TRUE
                raise ValueError
            if kind is int and isinstance(value, float) and value != int(value):
                raise ValueError
            found = kind(value)
        except (TypeError, ValueError):
            what = {bool: "true or false", int: "a whole number", float: "a number"}.get(
                kind, kind.__name__
            )
            raise InvalidValueError(
                f"option {self.name} takes {what}, not {value!r} (default: {self.shown})."
            ) from None
        return self._checked(found)

    def _checked(self, value: Any) -> Any:
        """The value, if it is one of the valid names or within the bounds; NaN is in no bounds."""
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
            return ",".join(str(part) for part in self.default)
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


METRICS = Option("metrics", CURVES, "metrics of every layer, as for `layerscope profile --metrics`")
DATA_DIR = Option("data_dir", "", "folder with the data of tasks")


@dataclass
class Result:
    """What a study found. `table` is tidy: one row per model, site, setting and metric, with a
    value, its interval and n.

    `verdict` is plain sentences, the answer first, with the numbers and intervals they rest on;
    `conventions` go into the manifest (model identities under "models").
    """

    table: pd.DataFrame
    verdict: list[str]
    conventions: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Study(ABC):
    """One experiment: what it varies, what it measures, how it is drawn."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""  # such as "Fig. 6, App. F"
    models: ClassVar[tuple[int, int | None]]  # least and most; (0, 0): none
    texts: ClassVar[bool] = True  # whether it reads a corpus
    final_norm: ClassVar[str] = "raw"  # what states are measured, unless the user says otherwise
    options: ClassVar[tuple[Option, ...]] = ()

    @abstractmethod
    def run(self, request: Request, bar: Progress) -> Result:
        """Measure, tabulate, and say what came out."""

    @abstractmethod
    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A matplotlib figure like the paper's."""

    def identify(self, request: Request) -> Any:
        """What tells these models from others, without loading them; part of the study's key."""
        return [spec.identity(request) for spec in read_specs(request.models)]

    def fill(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options, from what was given and the defaults."""
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                hint = (
                    f"`layerscope-paper study list {self.name}` shows what each does."
                    if known
                    else f"{self.name} has no options."
                )
                raise UnknownNameError(f"option of the study {self.name}", name, known, hint)
        return {name: option.parse(given.get(name)) for name, option in known.items()}

    def check_models(self, count: int) -> None:
        """Refuse a number of models that the study cannot use."""
        least, most = self.models
        if count < least or (most is not None and count > most):
            plural = "" if (least, most) == (1, 1) else "s"
            what = "no model" if most == 0 else f"{self.model_count} model{plural}"
            raise LayerscopeError(f"the study {self.name} takes {what}, and was given {count}.")

    @property
    def model_count(self) -> str:
        """How many models it takes, in words."""
        least, most = self.models
        if most == 0:
            return "none"
        return (
            f"{least}"
            if most == least
            else f"{least} or more"
            if most is None
            else f"{least} to {most}"
        )


def _find(source: Any) -> list[Study]:
    """The study of a module (its `STUDY`), or of a class that an entry point names."""
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
