"""The answer of every selection, as a value, as JSON and in words: a layer, its readout, the
expected gain and its uncertainty."""

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
    *("layer", "site", "readout", "expected_gain", "ci_low", "ci_high"),
    *("risk_of_loss", "tied", "rule", "blocks_saved"),
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
    `layers` is the number of blocks, so `layer == layers` is the last layer. `metric` names the
    user's own measure; `before` and `after` are its values. `table` has a row per candidate, where
    several were compared.

    An export needs `identity` (the facts of the model's identity), `readout`, `layer`,
    `max_length`, `unit_length`, and `center_on` (the run or file whose mean a centered readout
    subtracts).
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
    def how(self) -> Readout | None:
        """The readout as a value; None if the rule says nothing about it."""
        return None if self.readout is None else Readout.parse(self.readout)

    def headline(self) -> str:
        """Return the layer, its readout, and the expected gain of each in one sentence."""
        return _headline(self)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks; text is escaped."""
        return view("choice", "html")(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the documented keys first."""
        values = {name: getattr(self, name) for name in (*KEYS, *_STORED)}
        for name in ("gain_readout", "gain_layer"):
            values[name] = values[name] and asdict(values[name])
        return plain(values)

    def to_json(self, indent: int | None = 2) -> str:
        """Return the choice as JSON text."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> Choice:
        """Return the choice that `to_json` or `layerscope select --json` wrote.

        The source is a file, text or parsed values.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        try:
            values: Any = source
            if is_text or isinstance(source, Path | str):
                text = source if is_text else Path(str(source)).read_text(encoding="utf-8")
                values = json.loads(str(text))
            stored = {name: clean_values(values[name]) for name in _STORED if name in values}
            for name in ("tied", "warnings"):
                stored[name] = tuple(stored.get(name, ()))
            for name in ("gain_readout", "gain_layer"):
                stored[name] = _interval(stored.get(name) or {})
            bounds = {"low": values["ci_low"], "high": values["ci_high"]}
            stored["gain"] = _interval({"value": values["expected_gain"], **bounds})
            choice = Choice(**stored)
            for name, kind in _KINDS.items():
                value = getattr(choice, name)
                if isinstance(value, bool) or not isinstance(value, kind):
                    raise ValueError(f"{name} is {value!r}")
            return choice
        except (KeyError, ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            place = "the given text" if is_text or isinstance(source, Mapping) else str(source)
            raise RunFolderError(
                f"{place} holds no choice of a layer ({error}). `layerscope select --json` writes "
                "one."
            ) from None


_STORED = tuple(item.name for item in fields(Choice) if item.name not in ("gain", "table"))
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("layer", "layers"), int),
    **dict.fromkeys(("rule", "model", "reason", "metric"), str),
    **dict.fromkeys(("readout", "source", "center_on"), str | None),
    **dict.fromkeys(("risk_of_loss", "before", "after"), float | int | None),
    "max_length": int | None,
    "identity": Mapping,
}
"""The types of what an export, a report or a card reads from a file that a user may have edited."""


def _interval(values: Mapping[str, Any]) -> Interval | None:
    """Return an interval from plain values; a bound of None is not known."""
    if values.get("value") is None:
        return None
    low, high = (math.nan if values[end] is None else float(values[end]) for end in ("low", "high"))
    return Interval(float(values["value"]), low, high, int(values.get("n") or 0))


# In words
# ------------------------------------------------------------------------------------------------


def _headline(choice: Choice) -> str:
    prefix = f"{choice.model}: " if choice.model else ""
    place = f"layer {choice.layer} of {choice.layers} ({choice.site})"
    if choice.abstained:
        return f"{prefix}keep the last layer, {place}."
    if choice.readout not in (None, DEFAULT_READOUT):
        place += f" with {choice.readout}"
    elif choice.layer == choice.layers and not choice.expected_gain:
        return f"{prefix}read the last layer, {place}."
    measured = ""
    if choice.metric and choice.before is not None and choice.after is not None:
        # a judge's score is not a percentage
        digits = 3 if choice.gain is None else 1
        unit = " %" if choice.metric == "accuracy" else ""
        change = f"{choice.before:.{digits}f} → {choice.after:.{digits}f}{unit}"
        measured = f"{choice.metric} {change}"
    if choice.gain is None:
        return f"{prefix}read {place}; {measured or 'this rule says nothing about what it gains'}."
    measured = measured and f" ({measured})"
    return f"{prefix}read {place}: {gains_in_words(choice)}{measured}."


def gains_in_words(choice: Choice) -> str:
    """Return the expected gains of the readout and of the layer in words; never their sum.

    >>> moved = Choice(26, "one-word/last/applied/keep/none", Interval(43.5, 40.0, 47.0), layers=30,
    ...     gain_readout=Interval(43.4, 40.0, 46.0), gain_layer=Interval(0.1, -0.5, 0.7))
    >>> gains_in_words(moved)
    'template +43.4 (+40.0 to +46.0), layer +0.1 (-0.5 to +0.7) points expected, 95 %'
    """
    readout = choice.gain_readout
    layer = choice.gain_layer
    if choice.gain is None or readout is None or layer is None:
        return "nothing is claimed about its gain"
    if readout == NOTHING:
        return f"{_points(layer)} points expected over the last layer, same readout, 95 %"
    is_plain = (choice.readout or "plain/").startswith("plain/")
    words = f"{'readout' if is_plain else 'template'} {_points(readout)}"
    if choice.layer == choice.layers:
        return f"{words} points expected, same layer, 95 %"
    return f"{words}, layer {_points(layer)} points expected, 95 %"


def lines(choice: Choice) -> list[tuple[str, str]]:
    """Return the lines below the headline: (name, value)."""
    saved = "nothing"
    if choice.blocks_saved:
        share = choice.blocks_saved / choice.layers
        blocks = f"{choice.blocks_saved} of {choice.layers} blocks"
        saved = f"{blocks} need not run ({share:.0%} of their compute)"
    risk = "not known"
    if choice.risk_of_loss is not None:
        risk = f"{choice.risk_of_loss:.0%} that it scores below the last layer"
        if choice.gain_readout != NOTHING:
            risk += " under the default readout"
    tied = []
    if choice.rule in ("measured", "labels", "improve"):  # other rules resample nothing
        alike = layer_ranges(choice.tied) if len(choice.tied) > 1 else ["no other layer"]
        tied = [("tied", ", ".join(alike))]
    return [
        ("rule", choice.rule),
        ("why", choice.reason),
        ("read as", choice.readout or "not said"),
        *tied,
        ("risk", risk),
        ("saves", saved),
        *(("note", warning) for warning in choice.warnings),
    ]


def _points(gain: Interval) -> str:
    return gain.format(1) if gain.known else f"{gain.value:+.1f}"
