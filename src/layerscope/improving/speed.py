"""Texts per second of today's reading, of the chosen one and of the judging encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from layerscope.improving.judging import Judges
from layerscope.improving.sample import last_layer
from layerscope.vectors.encoder import TextEncoder

_ROUNDS = 2
_TIMED = 12  # texts on which speeds are compared

Encode = Callable[[Sequence[str]], Any]


def texts_per_second(encoders: Mapping[str, Encode], texts: Sequence[str]) -> dict[str, float]:
    """Return how many texts each encodes in a second, timed in turns.

    In turns, because other work on the machine then slows all of them alike.
    """
    seconds = dict.fromkeys(encoders, 0.0)
    for encode in encoders.values():
        encode(texts[:2])  # pays for what is done once
    for _ in range(_ROUNDS):
        for name, encode in encoders.items():
            start = perf_counter()
            encode(texts)
            seconds[name] += perf_counter() - start
    return {name: _ROUNDS * len(texts) / max(taken, 1e-9) for name, taken in seconds.items()}


def compare_speeds(
    judges: Judges, today: Encode, now: Encode, texts: Sequence[str]
) -> dict[str, float]:
    """Return texts per second of `today`, of the choice (`now`) and of the judging encoder."""
    encoders = {"today": today, "now": now}
    if judges.encoder is not None:
        encoders[judges.encoder.name] = _encoder_of(judges)
    return texts_per_second(encoders, texts[:_TIMED])


def encoder_seconds(judges: Judges, texts: Sequence[str]) -> float:
    """Return the seconds that the judging encoder takes for a text; 0 where there is none."""
    if judges.encoder is None:
        return 0.0
    return 1 / texts_per_second({"": _encoder_of(judges)}, texts[:_TIMED])[""]


def _encoder_of(judges: Judges) -> Encode:
    """Return the judging encoder's last layer as a function of texts."""
    assert judges.encoder is not None
    return TextEncoder(judges.encoder, last_layer(judges.encoder, judges.encoder_readout)).encode
