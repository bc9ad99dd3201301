"""A choice in words, for the terminal."""

from __future__ import annotations

from layerscope.core.sites import layer_ranges
from layerscope.selection.choice import Choice


def headline(choice: Choice) -> str:
    """One sentence: which layer, and what it is expected to gain."""
    where = f"layer {choice.layer} of {choice.layers} ({choice.site})"
    who = f"{choice.model}: " if choice.model else ""
    if choice.abstained:
        return f"{who}keep the last layer, {where}."
    if choice.expected_gain is None:
        return f"{who}read {where}; this rule says nothing about what it gains."
    if choice.is_last and choice.expected_gain == 0:
        return f"{who}read the last layer, {where}."
    return (
        f"{who}read {where}: {choice.expected_gain:+.1f} points over the last layer are expected "
        f"({_signed(choice.ci_low)} to {_signed(choice.ci_high)}, 95 %)."
    )


def lines(choice: Choice) -> list[tuple[str, str]]:
    """What stands below the headline: (name, value)."""
    risk = "not known" if choice.risk_of_loss is None else f"{choice.risk_of_loss:.0%} that it scores below the last layer"
    saved = f"{choice.blocks_saved} of {choice.layers} blocks need not run ({choice.compute_saved:.0%} of their compute)"
    rows = [
        ("rule", choice.rule),
        ("why", choice.reason),
        ("read as", choice.readout or "not said"),
        ("tied", ", ".join(layer_ranges(choice.tied)) if len(choice.tied) > 1 else "no other layer"),
        ("risk", risk if not choice.is_last or choice.risk_of_loss else "none: it is the last layer"),
        ("saves", saved if choice.blocks_saved else "nothing"),
    ]
    return [*rows, *(("note", warning) for warning in choice.warnings)]


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.1f}"
