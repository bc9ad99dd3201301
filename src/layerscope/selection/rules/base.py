"""What a label-free rule is: a function from evidence to an answer, known under a name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.selection.evidence import Evidence
from layerscope.selection.prior import Forecast


@dataclass(frozen=True)
class Answer:
    """A layer and why; `forecast` where the rule says what each layer gains."""

    layer: int
    reason: str
    forecast: Forecast | None = None
    tied: tuple[int, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    abstained: bool = False


Rule = Callable[[Evidence], Answer]


@dataclass(frozen=True)
class Registered:
    """A rule with its name and what it does in a line. `parameter` rules are also known as `name:number`."""

    name: str
    summary: str
    make: Callable[[float | None], Rule]
    parameter: bool = False


_RULES: dict[str, Registered] = {}


def register(name: str, summary: str, *, parameter: bool = False) -> Callable[[Callable[[float | None], Rule]], None]:
    """Make a rule known: decorate the function that makes it."""

    def add(make: Callable[[float | None], Rule]) -> None:
        _RULES[name] = Registered(name, summary, make, parameter)

    return add


@cache
def _discover() -> None:
    package = importlib.import_module("layerscope.selection.rules")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def rules() -> dict[str, Registered]:
    """Every rule by name."""
    _discover()
    return dict(sorted(_RULES.items()))


def get_rule(name: str) -> Rule:
    """The rule of that name; `fixed_depth:0.7` sets the number of a rule that has one."""
    known = rules()
    base, _, number = name.partition(":")
    if base not in known:
        raise UnknownNameError("rule", name, [*known, "measured"], "`measured` reads an evaluation's folder.")
    if not number:
        return known[base].make(None)
    if not known[base].parameter:
        raise LayerscopeError(f"the rule {base!r} takes no number; {name!r} was given.")
    try:
        return known[base].make(float(number))
    except ValueError:
        raise LayerscopeError(f"{name!r}: after the colon comes a number, such as {base}:0.7.") from None
