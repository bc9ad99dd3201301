"""Where a head holds: on texts of another kind than it was fitted on, and how fast it is beside
today and beside the judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.data.catalogue import CORPORA
from layerscope.data.corpus import load_corpus
from layerscope.evaluation.encode import TextEncoder
from layerscope.improving.chosen import Chosen
from layerscope.improving.judging import Panel
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.selection.judges.agreement import Neighborhoods, similarities

GENERIC = "lee"
"""A corpus of general texts, news; it is read only if it is on this machine already."""

SENTENCES = 150
_WORDS = (6, 40)
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
    """A model's own last layer as something that encodes."""
    last = [site for site in expand_sites(None, model.anatomy) if site.layer == model.n_blocks]
    template, length = get_template(readout.template), min(256, model.max_length or 256)
    encoder = TextEncoder(model, template, last, readout.kinds, length)
    return lambda texts: encoder.run(encoder.read(texts), lambda n: None)


def generic_sentences(count: int = SENTENCES) -> list[str]:
    """The first sentences of a corpus of news, or none where it would have to be downloaded."""
    if not CORPORA.is_cached(GENERIC):
        return []
    firsts = (
        re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]
        for text in load_corpus(GENERIC, offline=True).texts
    )
    return list(
        dict.fromkeys(text for text in firsts if _WORDS[0] <= len(text.split()) <= _WORDS[1])
    )[:count]


def agreement_elsewhere(
    panel: Panel, today: Chosen, chosen: Chosen, bar: Progress
) -> dict[str, Any] | None:
    """Agreement with the encoder on texts that are not the user's, today and through the head; None
    where none are at hand."""
    texts = generic_sentences() if panel.encoder is not None else []
    if not texts:
        return None
    encoded = panel.encoded(chosen.reader, texts, bar)
    assert encoded is not None
    reference = Neighborhoods.of(similarities(encoded))
    label = f"how the head does on {len(texts)} other texts"
    before, after = (
        one.finished(
            one.reader.vectors_at(
                replace(one.readout, centering="none"), one.layer, texts, bar, label
            )
        )
        for one in (today, chosen)
    )
    shares = [
        float(reference.agreement(similarities(vectors)).mean()) for vectors in (before, after)
    ]
    return {"corpus": GENERIC, "texts": len(texts), "before": shares[0], "after": shares[1]}
