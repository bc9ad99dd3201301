"""The answer of every selection: a layer, its readout, the expected gain and its uncertainty; as a
value, as JSON, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import view
from layerscope.core.sites import layer_ranges, site_of
from layerscope.core.statistics import Interval
from layerscope.errors import RunFolderError, clean_values
from layerscope.store.atomic import plain

KEYS = (
    "layer",
    "site",
    "readout",
    "expected_gain",
    "ci_low",
    "ci_high",
    "risk_of_loss",
    "tied",
    "rule",
    "blocks_saved",
)
"""The keys of the answer that programs read, in this order; the rest follows."""

NOTHING = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Choice:
    """The layer to use and its readout. Measured scores, labels, label-free rules and `improve` all
    answer with one; parts may be unknown.

    Gains are in points (score × 100), None if the rule makes no claim. Every gain is relative to
    the default: the last layer under the default readout. It has two parts: `gain_readout` is the
    last layer under the chosen readout minus the last layer under the default one, and `gain_layer`
    is the chosen layer minus the last layer, both under the chosen readout. `gain` is their sum,
    also known as `expected_gain`, `ci_low` and `ci_high`; `risk_of_loss` is the chance that it is
    below zero.

    `tied` are the layers that the evidence cannot tell from the chosen one under the same readout.
    Rules without labels have nothing to resample and so no ties: `near` are the layers that they
    expect to be about as good. `layers` is the number of blocks, so `layer == layers` is the last
    layer. `metric` names the user's own measure; `before` and `after` are its values. `table` has a
    row per candidate, where several were compared.

    An export needs `identity` (the facts of the model's identity), `readout`, `layer`,
    `max_length`, `unit_length`, and `center_on` (the run or file whose mean a centered readout
    subtracts). `passed_over` names better candidates that could not be used, each with the reason.
    """

    layer: int
    readout: str | None = None
    gain: Interval | None = None
    risk_of_loss: float | None = None
    tied: tuple[int, ...] = ()
    rule: str = ""
    layers: int = 0
    model: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    abstained: bool = False
    gain_readout: Interval | None = None
    gain_layer: Interval | None = None
    metric: str = ""
    before: float | None = None
    after: float | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = field(default=None, compare=False)
    max_length: int | None = None
    unit_length: bool | None = None
    center_on: str | None = None
    passed_over: tuple[str, ...] = ()
    near: tuple[int, ...] = ()
    table: Any = field(default=None, repr=False, compare=False)

    @property
    def site(self) -> str:
        """The layer as a place in the network."""
        return site_of(self.layer)

    @property
    def expected_gain(self) -> float | None:
        """The expected gain over the last layer under the default readout, in points."""
        return None if self.gain is None else self.gain.value

    @property
    def ci_low(self) -> float | None:
        """The lower end of the gain's 95 % interval."""
        return None if self.gain is None or not self.gain.known else self.gain.low

    @property
    def ci_high(self) -> float | None:
        """The upper end of the gain's 95 % interval."""
        return None if self.gain is None or not self.gain.known else self.gain.high

    @property
    def blocks_saved(self) -> int:
        """The number of blocks that need not run."""
        return max(0, self.layers - self.layer)

    @property
    def is_last(self) -> bool:
        """True if the answer is the last layer."""
        return self.layer == self.layers

    @property
    def is_default(self) -> bool:
        """True if the answer is the default: the last layer under the default readout."""
        return self.is_last and self.readout in (None, DEFAULT_READOUT)

    @property
    def how(self) -> Readout | None:
        """The readout as a value; None if the rule says nothing about it."""
        return None if self.readout is None else Readout.parse(self.readout)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks; text is escaped."""
        return view("choice", "html")(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the documented keys first."""
        values = {name: getattr(self, name) for name in (*KEYS, *_STORED)}
        for name in ("gain_readout", "gain_layer"):
            values[name] = None if values[name] is None else asdict(values[name])
        return plain(values)

    def to_json(self, indent: int | None = 2) -> str:
        """Return the choice as JSON text."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> Choice:
        """Return the choice that `to_json` or `layerscope select --json` wrote.

        The source is a file, text or parsed values.
        """
        try:
            values = dict(_parse(source))
            missing = [name for name in KEYS if name not in values]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            for name, kinds in _KINDS.items():
                value = values.get(name)
                if name in values and (isinstance(value, bool) or not isinstance(value, kinds)):
                    raise ValueError(f"{name} is {value!r}")
            stored = {name: clean_values(values[name]) for name in _STORED if name in values}
            for name in ("tied", "warnings", "passed_over", "near"):
                stored[name] = tuple(stored.get(name, ()))
            for name in ("gain_readout", "gain_layer"):
                stored[name] = _interval(values.get(name))
            bounds = (values["ci_low"], values["ci_high"])
            gain = {"value": values["expected_gain"], "low": bounds[0], "high": bounds[1]}
            stored["gain"] = None if gain["value"] is None else _interval(gain)
            return Choice(**stored)
        except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            is_text = isinstance(source, Mapping) or str(source).lstrip().startswith("{")
            place = "the given text" if is_text else str(source)
            raise RunFolderError(
                f"{place} holds no choice of a layer ({error}). `layerscope select --json` writes "
                "one."
            ) from None

    def headline(self) -> str:
        """Return the layer, its readout, and the expected gain of each in one sentence."""
        prefix = f"{self.model}: " if self.model else ""
        place = f"layer {self.layer} of {self.layers} ({self.site})"
        if self.abstained:
            return f"{prefix}keep the last layer, {place}."
        if self.is_default and not self.expected_gain:
            return f"{prefix}read the last layer, {place}."
        if self.readout not in (None, DEFAULT_READOUT):
            place += f" with {self.readout}"
        measured = _measured_words(self)
        if self.gain is None:
            measured = measured or "this rule says nothing about what it gains"
            return f"{prefix}read {place}; {measured}."
        measured = f" ({measured})" if measured else ""
        return f"{prefix}read {place}: {gains_in_words(self)}{measured}."


_STORED = tuple(item.name for item in fields(Choice) if item.name not in ("gain", "table"))
_TEXT = (str, type(None))
_NUMBER = (int, float, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("layer", "layers"), int),
    **dict.fromkeys(("tied", "near", "warnings", "passed_over"), list),
    **dict.fromkeys(("rule", "model", "reason", "metric"), str),
    **dict.fromkeys(("readout", "source", "center_on"), _TEXT),
    **dict.fromkeys(("risk_of_loss", "before", "after"), _NUMBER),
    "max_length": (int, type(None)),
    "identity": Mapping,
}


def _parse(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a file, a text or a mapping."""
    if isinstance(source, Mapping):
        return source
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return json.loads(source)
    return json.loads(Path(source).read_text(encoding="utf-8"))


def _interval(values: Mapping[str, Any] | None) -> Interval | None:
    """Return an interval from plain values; a bound of None is not known."""
    if values is None:
        return None
    numbers = {name: values.get(name) for name in ("value", "low", "high")}
    bounds = {name: math.nan if x is None else float(x) for name, x in numbers.items()}
    return Interval(**bounds, n=int(values.get("n") or 0))


def gains_in_words(choice: Choice) -> str:
    """Return the expected gains of the readout and of the layer in words; never their sum.

    >>> moved = Choice(26, "one-word/last/applied/keep/none", Interval(43.5, 40.0, 47.0), layers=30,
    ...     gain_readout=Interval(43.4, 40.0, 46.0), gain_layer=Interval(0.1, -0.5, 0.7))
    >>> gains_in_words(moved)
    'template +43.4 (+40.0 to +46.0), layer +0.1 (-0.5 to +0.7) points expected, 95 %'
    """
    if choice.gain is None:
        return "nothing is claimed about its gain"
    readout = choice.gain_readout
    layer = choice.gain_layer
    if readout is None or layer is None:
        over = "points expected over the last layer under the default readout, 95 %"
        return f"{_points(choice.gain)} {over}"
    if readout == NOTHING:
        return f"{_points(layer)} points expected over the last layer, same readout, 95 %"
    words = f"{readout_word(choice.readout)} {_points(readout)}"
    if choice.is_last:
        return f"{words} points expected, same layer, 95 %"
    return f"{words}, layer {_points(layer)} points expected, 95 %"


def readout_word(readout: str | None) -> str:
    """Return in a word what differs from the default readout: the template, or the readout."""
    is_plain = readout is None or readout.startswith("plain/")
    return "readout" if is_plain else "template"


def lines(choice: Choice) -> list[tuple[str, str]]:
    """Return the lines below the headline: (name, value)."""
    # rules without labels resample nothing, so that they have no ties
    has_ties = choice.rule in ("measured", "labels", "improve")
    alike = choice.near or choice.tied
    saved = "nothing"
    if choice.blocks_saved:
        share = choice.blocks_saved / choice.layers
        saved = (
            f"{choice.blocks_saved} of {choice.layers} blocks need not run ({share:.0%} of their "
            "compute)"
        )
    return [
        ("rule", choice.rule),
        ("why", choice.reason),
        ("read as", choice.readout or "not said"),
        (
            "tied" if has_ties else "near",
            ", ".join(layer_ranges(alike)) if len(alike) > 1 else "no other layer",
        ),
        ("risk", _risk_words(choice)),
        ("saves", saved),
        *(("passed over", text) for text in choice.passed_over),
        *(("note", warning) for warning in choice.warnings),
    ]


def _risk_words(choice: Choice) -> str:
    if choice.is_default and not choice.risk_of_loss:
        return "none: it is the last layer"
    if choice.risk_of_loss is None:
        return "not known"
    words = f"{choice.risk_of_loss:.0%} that it scores below the last layer"
    return words if choice.gain_readout == NOTHING else f"{words} under the default readout"


def _measured_words(choice: Choice) -> str:
    """Return the user's own measure before and after; a judge's score is not a percentage."""
    if choice.before is None or choice.after is None or not choice.metric:
        return ""
    digits = 3 if choice.gain is None else 1
    unit = " %" if choice.metric == "accuracy" else ""
    return f"{choice.metric} {choice.before:.{digits}f} → {choice.after:.{digits}f}{unit}"


def _points(gain: Interval) -> str:
    return gain.format(1) if gain.known else f"{gain.value:+.1f}"
