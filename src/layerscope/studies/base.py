"""What a study is: what it asks for, what it is given, what it gives back. One file per study builds on this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from layerscope.errors import LayerscopeError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from layerscope.data import Corpus
    from layerscope.models import LoadedModel
    from layerscope.progress import Progress

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """One setting of one study. A value given as text is read as the default's type; lists are comma-separated.

    >>> Option("levels", [0.0, 1.0], "shares of tokens").parse("0,0.5,1")
    [0.0, 0.5, 1.0]
    """

    name: str
    default: Any
    help: str

    def parse(self, value: Any) -> Any:
        """A value as this option holds it, from text or from Python."""
        if value is None:
            return self.default
        if isinstance(self.default, (list, tuple)):
            parts = [p.strip() for p in value.split(",") if p.strip()] if isinstance(value, str) else value
            if isinstance(parts, (str, bytes, Mapping)) or not hasattr(parts, "__iter__"):
                parts = [parts]
            kind = type(self.default[0]) if self.default else str
            return [self._read(part, kind) for part in parts]
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
            return kind(value)
        except (TypeError, ValueError):
            what = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, kind.__name__)
            raise LayerscopeError(f"option {self.name} takes {what}, not {value!r} (default: {self.shown}).") from None

    @property
    def shown(self) -> str:
        """The default as a user would write it."""
        if isinstance(self.default, (list, tuple)):
            return ",".join(str(part) for part in self.default)
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


@dataclass
class Request:
    """What a user asked for; `options` are complete. What is put into `work` survives a crash and is found again."""

    models: list[str | Path | LoadedModel]
    texts: Corpus | None
    options: dict[str, Any]
    seed: int
    model_options: dict[str, Any]
    final_norm: str
    max_length: int
    work: Path
    engine: Any = None
    offline: bool = False


@dataclass
class Result:
    """What a study found. `table` is tidy: one row per model, site, setting and metric, with value, ci_low, ci_high and n.

    `verdict` is plain sentences, the answer first, with the numbers and intervals they rest on; `conventions` go into the
    manifest (model identities under "models").
    """

    table: pd.DataFrame
    verdict: list[str]
    conventions: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Study(ABC):
    """One experiment: what it varies, what it measures, how it is drawn."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]  # e.g. "Fig. 6, App. F"
    models: ClassVar[tuple[int, int | None]]  # least and most; (0, 0): none
    texts: ClassVar[bool]  # whether it reads a corpus
    options: ClassVar[tuple[Option, ...]] = ()

    @abstractmethod
    def run(self, request: Request, bar: Progress) -> Result:
        """Do it."""

    @abstractmethod
    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A matplotlib figure like the paper's."""

    def identify(self, request: Request) -> Any:
        """What tells these models from others, without loading them; part of the study's key."""
        from layerscope.studies.shared.specs import read_specs

        return [spec.identity(request) for spec in read_specs(request.models)]

    def passes(self, options: dict[str, Any]) -> float:
        """Forward passes over all texts, for each model: what an estimate of a study's time starts from."""
        return 1.0

    def sites(self, blocks: int) -> int:
        """Places where a model of so many blocks is read, for the same estimate."""
        return blocks + 1

    def fill(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options, from what was given and the defaults."""
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                hint = f"`layerscope study list {self.name}` shows what each does." if known else f"{self.name} has no options."
                raise UnknownNameError(f"option of the study {self.name}", name, known, hint)
        return {name: option.parse(given.get(name)) for name, option in known.items()}

    def check_models(self, count: int) -> None:
        """Refuse a number of models that the study has no use for."""
        least, most = self.models
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
            plural = "" if (least, most) == (1, 1) else "s"
            what = "no model" if most == 0 else f"{wanted} model{plural}"
            raise LayerscopeError(f"the study {self.name} takes {what}, and was given {count}.")
