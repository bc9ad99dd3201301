"""The answer of every selection: a layer, how it is read, what it gains and how sure that is; as a
value, as JSON, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import view
from layerscope.core.sites import layer_ranges, site_of
from layerscope.core.statistics import Interval
from layerscope.errors import RunFolderError, clean_values
from layerscope.store.atomic import plain

# The keys of the answer that programs read, in this order; the rest follows.
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
NOTHING = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Choice:
    """The layer to use, and how to read it. Every rule, the scores, labels and `improve` answer
    with one; parts may be unknown.

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
    row per candidate, where several were compared; `extra` has what else the rule knows.

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
    extra: Mapping[str, Any] = field(default_factory=dict)
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

    def __post_init__(self) -> None:
        for name in ("tied", "warnings", "passed_over", "near"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

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
        """The lower end of its 95 % interval."""
        return None if self.gain is None or not self.gain.known else self.gain.low

    @property
    def ci_high(self) -> float | None:
        """The upper end of its 95 % interval."""
        return None if self.gain is None or not self.gain.known else self.gain.high

    @property
    def blocks_saved(self) -> int:
        """The number of blocks that need not run."""
        return max(0, self.layers - self.layer)

    @property
    def is_last(self) -> bool:
        """Whether the answer is the last layer."""
        return self.layer == self.layers

    @property
    def is_default(self) -> bool:
        """Whether the answer is the default: the last layer under the default readout."""
        return self.is_last and self.readout in (None, DEFAULT_READOUT)

    @property
    def how(self) -> Readout | None:
        """The readout as a value; None if the rule says nothing about it."""
        return None if self.readout is None else Readout.parse(self.readout)

    @property
    def compute_saved(self) -> float:
        """The share of the blocks that need not run."""
        return self.blocks_saved / self.layers if self.layers else 0.0

    def _repr_html_(self) -> str:
        """For notebooks; text is escaped."""
        return view("choice", "html")(self)

    def as_dict(self, table: bool = False) -> dict[str, Any]:
        """Plain values for JSON, the documented keys first; the rows of the table where asked."""
        names = [
            *KEYS,
            "gain_readout",
            "gain_layer",
            *(f.name for f in fields(Choice) if f.name not in _NOT_WRITTEN),
        ]
        out = {name: _plain(getattr(self, name)) for name in dict.fromkeys(names)}
        out["compute_saved"] = self.compute_saved
        if table:
            out["table"] = [] if self.table is None else plain(self.table.to_dict(orient="records"))
        return out

    def to_json(self, indent: int | None = 2) -> str:
        """The same as JSON text."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def headline(self) -> str:
        """One sentence: which layer under which readout, and what each of the two is expected to
        gain."""
        where = f"layer {self.layer} of {self.layers} ({self.site})"
        who = f"{self.model}: " if self.model else ""
        if self.abstained:
            return f"{who}keep the last layer, {where}."
        other = self.readout not in (None, DEFAULT_READOUT)
        how = f" with {self.readout}" if other else ""
        if self.is_default and not self.expected_gain:
            return f"{who}read the last layer, {where}."
        measured = _measured(self)
        if self.gain is None:
            return f"{who}read {where}{how}{f': {measured}' if measured else '; this rule says nothing about what it gains'}."
        return (
            f"{who}read {where}{how}: {gains_in_words(self)}{f' ({measured})' if measured else ''}."
        )

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> Choice:
        """A choice from what `to_json` or `layerscope select --json` wrote: a file, text or parsed
        values.

        What other kinds of choice add (a choice with labels) is in `extra`.
        """
        where = "the given text"
        try:
            if isinstance(source, Mapping):
                values = dict(source)
            else:
                is_text = isinstance(source, str) and source.lstrip().startswith("{")
                where = where if is_text else str(source)
                values = json.loads(
                    source
                    if isinstance(source, str) and is_text
                    else Path(source).read_text(encoding="utf-8")
                )
            missing = [name for name in KEYS if name not in values]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            for name, kind in _KINDS.items():
                value = values.get(name)
                if name in values and (isinstance(value, bool) or not isinstance(value, kind)):
                    raise ValueError(f"{name} is {value!r}")
            known = {f.name for f in fields(Choice)} - _NOT_WRITTEN
            own = {name: clean_values(value) for name, value in values.items() if name in known}
            more = {name: values[name] for name in values if name not in known | _TOLD}
            for name in ("gain_readout", "gain_layer"):
                own[name] = _interval(values.get(name))
            gain = {key: values.get(name) for key, name in _GAIN.items()}
            own["gain"] = None if gain["value"] is None else _interval(gain)
            return Choice(**own | {"extra": {**(own.get("extra") or {}), **clean_values(more)}})
        except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            raise RunFolderError(
                f"{where} holds no choice of a layer ({error}). `layerscope select --json` writes one."
            ) from None


_LIST = (list, tuple)
_TEXT = (str, NoneType)
_NUMBER = (int, float, NoneType)
_KINDS: dict[str, Any] = {
    "layer": int, "layers": int, "max_length": (int, NoneType),
    "tied": _LIST, "near": _LIST, "warnings": _LIST, "passed_over": _LIST,
    "rule": str, "model": str, "reason": str, "metric": str,
    "readout": _TEXT, "source": _TEXT, "center_on": _TEXT,
    "risk_of_loss": _NUMBER, "before": _NUMBER, "after": _NUMBER,
    "extra": Mapping, "identity": Mapping,
}  # fmt: skip
_NOT_WRITTEN = {"gain", "table"}
_GAIN = {"value": "expected_gain", "low": "ci_low", "high": "ci_high"}
_TOLD = {"site", "blocks_saved", "compute_saved", *_GAIN.values()}  # follow from the rest


def _interval(given: Mapping[str, Any] | None) -> Interval | None:
    if given is None:
        return None
    bounds = {
        key: math.nan if given.get(key) is None else float(given[key])
        for key in ("value", "low", "high")
    }
    return Interval(**bounds, n=int(given.get("n") or 0))


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return plain({name: getattr(value, name) for name in ("value", "low", "high", "n")})
    if isinstance(value, tuple):
        return plain(list(value))
    return plain(dict(value) if isinstance(value, Mapping) else value)


# --- in words
#   ------------------------------------------------------------------------------------------------------------------


def gains_in_words(choice: Choice) -> str:
    """Return the expected gains of the readout and of the layer in words; never their sum.

    >>> moved = Choice(26, "one-word/last/applied/keep/none", Interval(43.5, 40.0, 47.0), layers=30,
    ...     gain_readout=Interval(43.4, 40.0, 46.0), gain_layer=Interval(0.1, -0.5, 0.7))
    >>> gains_in_words(moved)
    'template +43.4 (+40.0 to +46.0), layer +0.1 (-0.5 to +0.7) points expected, 95 %'
    """
    if choice.gain is None:
        return "nothing is claimed about its gain"
    readout, layer = choice.gain_readout, choice.gain_layer
    if readout is None or layer is None:
        return f"{_points(choice.gain)} points expected over the last layer under the default readout, 95 %"
    if readout == NOTHING:
        return f"{_points(layer)} points expected over the last layer, same readout, 95 %"
    part = f"{readout_word(choice.readout)} {_points(readout)}"
    if choice.is_last:
        return f"{part} points expected, same layer, 95 %"
    return f"{part}, layer {_points(layer)} points expected, 95 %"


def readout_word(readout: str | None) -> str:
    """Return in a word what differs from the default readout: the template, or the readout."""
    return (
        "readout"
        if readout is None or readout.startswith(f"{DEFAULT_READOUT.split('/')[0]}/")
        else "template"
    )


def _measured(choice: Choice) -> str:
    """The user's own measure before and after; a judge's score is not a percentage."""
    if choice.before is None or choice.after is None or not choice.metric:
        return ""
    digits = 1 if choice.gain is not None else 3
    unit = " %" if choice.metric == "accuracy" else ""
    return f"{choice.metric} {choice.before:.{digits}f} → {choice.after:.{digits}f}{unit}"


def lines(choice: Choice) -> list[tuple[str, str]]:
    """Return the lines below the headline: (name, value)."""
    below = "that it scores below the last layer" + (
        "" if choice.gain_readout == NOTHING else " under the default readout"
    )
    risk = "not known" if choice.risk_of_loss is None else f"{choice.risk_of_loss:.0%} {below}"
    saved = f"{choice.blocks_saved} of {choice.layers} blocks need not run ({choice.compute_saved:.0%} of their compute)"
    like = choice.near or choice.tied
    # rules without labels resample nothing, so that they have no ties
    name = "tied" if choice.rule in ("measured", "labels", "improve") else "near"
    rows = [
        ("rule", choice.rule),
        ("why", choice.reason),
        ("read as", choice.readout or "not said"),
        (name, ", ".join(layer_ranges(like)) if len(like) > 1 else "no other layer"),
        (
            "risk",
            "none: it is the last layer" if choice.is_default and not choice.risk_of_loss else risk,
        ),
        ("saves", saved if choice.blocks_saved else "nothing"),
    ]
    rows += [("passed over", text) for text in choice.passed_over]
    return [*rows, *(("note", warning) for warning in choice.warnings)]


def _points(gain: Interval) -> str:
    return gain.format(1) if gain.known else f"{gain.value:+.1f}"
