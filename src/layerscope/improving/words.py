"""An improvement in one plain sentence, and the numbers that stand under it."""

from __future__ import annotations

from typing import Any

from layerscope.core.readout import describe_readout, row_words
from layerscope.improving.result import Improved
from layerscope.selection.judges.agreement import NEIGHBORS

_CLEARLY = 1.05
"""A ratio that is told has to be more than this; what rounds to "1.0 ×" is no improvement."""


def sentence(result: Improved) -> str:
    """What was found, for somebody who knows nothing of layers and readouts; without a full
    stop."""
    choice, evidence = result.choice, result.manifest["evidence"]
    if choice.abstained or evidence["kept_default"]:
        return choice.headline().removesuffix(".")
    asks = (evidence.get("search") or {}).get("query", str(choice.readout))
    doing = _doing(asks, choice.layer, choice.layers)
    doing += f" (documents: {row_words(str(choice.readout))[0]})" if asks != choice.readout else ""
    if evidence.get("trained"):
        doing = f"Training the first {choice.layer} of {choice.layers} blocks on the texts"
    return f"{doing} {_effect(evidence)}{_cost(evidence)}"


def page_words(result: Improved) -> list[str]:
    """For a page: the sentence, then the numbers behind it. What the readout and what the layer
    bring is told apart."""
    choice, evidence = result.choice, result.manifest["evidence"]
    if choice.abstained or evidence["kept_default"]:
        return [choice.headline()]
    if evidence.get("trained"):
        return [
            sentence(result),
            f"Today is the last layer, the mean of its tokens. {_capital(evidence['trained']['words'])}",
        ]
    low, high = evidence["interval"]
    search = evidence.get("search")
    on = (
        f"{search['queries']:,} queries that did not choose"
        if search
        else f"{result.manifest['texts']['sampled']:,} texts"
    )
    numbers = (
        f"{_capital(evidence['score_name'])}: {evidence['before']:.3f} today → {evidence['after']:.3f} "
        f"(95 % interval of the gain: {low:+.3f} to {high:+.3f}), on {on}"
    )
    parts = (
        "Today is the last layer, the mean of its tokens. Reading that layer in the new way brings "
        f"{evidence['readout_gain']:+.3f}; read alike, layer {choice.layer} instead of {choice.layers} brings "
        f"{evidence['layer_gain']:+.3f}"
    )
    right = [f"Right neighbors are {told}" for told in right_neighbors(evidence)]
    return [sentence(result), *right, numbers, parts]


def _doing(readout: str, layer: int, blocks: int) -> str:
    at = "the last layer" if layer == blocks else f"layer {layer} of {blocks}"
    return f"Reading {at} ({describe_readout(readout)})"


def _ratio(evidence: dict[str, Any]) -> float | None:
    """How many times as many of the right neighbors are found; None where that was not measured or
    is no gain."""
    found = evidence.get("found") or {"before": 0.0, "after": 0.0}
    return (
        found["after"] / found["before"]
        if 0 < _CLEARLY * found["before"] < found["after"]
        else None
    )


def _effect(evidence: dict[str, Any]) -> str:
    ratio = _ratio(evidence)
    if ratio is not None:
        return f"finds the right neighbors {ratio:.1f} × as often as today"
    return f"raises the {evidence['score_name']} from {evidence['before']:.3f} to {evidence['after']:.3f}"


def _cost(evidence: dict[str, Any]) -> str:
    cost = evidence.get("relative_cost")
    if cost is None:
        return ""
    if 0.95 <= cost <= 1.05:
        return ", at today's computation"
    return f", at {cost:.2f} × today's computation"


def right_neighbors(evidence: dict[str, Any]) -> list[str]:
    """Which neighbors the sentence calls right, and how many of them are found; nothing where it
    does not speak of them."""
    if _ratio(evidence) is None:
        return []
    found = evidence["found"]
    whose = (
        f"those by {found['by']}"
        if found["by"]
        else "those on which the model's most consistent readings agree"
    )
    before, after = (NEIGHBORS * found[when] for when in ("before", "after"))
    return [
        f"{whose}: of a text's {NEIGHBORS} nearest, {before:.1f} are found today, {after:.1f} now"
    ]


def _capital(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]  # nDCG is written so
