"""Texts per second of today's reading, of the chosen one and of the judge's encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from layerscope.core.readout import Readout
from layerscope.improving.chosen import Chosen
from layerscope.improving.judging import Panel
from layerscope.improving.sample import last_layer
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import TextEncoder

_ROUNDS = 2
_TIMED = 12  # texts on which speeds are compared


def texts_per_second(
    encoders: Mapping[str, Callable[[Sequence[str]], Any]], texts: Sequence[str]
) -> dict[str, float]:
    """How many texts each encodes in a second, timed in turns: what else runs here slows all of
    them alike."""
    seconds = dict.fromkeys(encoders, 0.0)
    for turn in range(_ROUNDS + 1):
        for name, encode in encoders.items():
            start = perf_counter()
            encode(texts if turn else texts[:2])
            seconds[name] += (
                perf_counter() - start if turn else 0.0
            )  # the first pays for what is done once
    return {name: _ROUNDS * len(texts) / max(taken, 1e-9) for name, taken in seconds.items()}


def compare_speeds(
    panel: Panel, today: Chosen, chosen: Chosen, texts: Sequence[str]
) -> dict[str, float]:
    """Texts per second of today's reading, of the chosen one (`now`) and of the judge's encoder, on
    a few texts."""
    encoders: dict[str, Callable[[Sequence[str]], Any]] = {
        "today": today.encode,
        "now": chosen.encode,
    }
    if panel.encoder is not None:
        encoders[panel.encoder.name] = encoder_of(panel.encoder, panel.encoder_readout)
    return texts_per_second(encoders, texts[:_TIMED])


def encoder_seconds(panel: Panel, texts: Sequence[str]) -> float:
    """The seconds that the judge's encoder takes for a text; 0 where there is none."""
    if panel.encoder is None:
        return 0.0
    return (
        1
        / texts_per_second({"": encoder_of(panel.encoder, panel.encoder_readout)}, texts[:_TIMED])[
            ""
        ]
    )


def encoder_of(model: LoadedModel, readout: Readout) -> Callable[[Sequence[str]], Any]:
    """Return a function that encodes texts by a model's own last layer."""
    return TextEncoder(model, last_layer(model, readout)).encode
