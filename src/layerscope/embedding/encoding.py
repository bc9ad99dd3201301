"""`encode`: the vectors of texts at any layers, all in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from layerscope.command import Command
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.embedding.encoders import Layers, open_encoder
from layerscope.engines import Engine
from layerscope.progress import Progress


def encode(
    model: Any,
    texts: Any,
    *,
    layers: Layers = None,
    readout: str | Readout | None = None,
    column: str | None = None,
    max_length: int | None = None,
    tokenizer: Any = None,
    offline: bool = False,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> np.ndarray:
    """Vectors of texts: of one layer (texts, D), or of several in one pass (layers, texts, D).

    - `texts`: strings, a data frame, a file, a corpus or a hub dataset. A text without words is
      left out.
    - `layers`: a number, numbers, or `all`. None: the last layer, or what a sentence encoder's
      folder does itself.
    - `max_length`: in tokens; None: 256, or what the folder says.
    - `readout`: how a text becomes one vector; one that centers subtracts the mean over these
      texts.

    `embed` writes them to a file, with the columns that the texts came with.

        vectors = layerscope.encode("smollm2-135m", texts, layers=[10, 20])
        vectors[0].shape  # layer 10: (texts, 576)
    """
    command = Command(
        "encode",
        options,
        engine=engine,
        offline=offline,
        progress=progress,
        function=encode,
    )
    stream = TextStream(
        [texts] if isinstance(texts, str) and " " in texts else texts,
        column=column,
        offline=offline,
    )
    words = [str(row.text) for row in stream.rows()]
    asked = Readout.parse(readout) if isinstance(readout, str) else readout
    with command:
        plain = (
            None
            if asked is None
            else replace(
                asked, centering="none" if asked.centering == "corpus" else asked.centering
            )
        )
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=plain, max_length=max_length
        )
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", len(words))
        found = encoder.vectors(command.engine, words, command.bar.advance)
    encoder.say_cuts(encoder.cut, len(words))
    if asked is not None and asked.centering == "corpus":
        found = [one - one.mean(0, dtype=np.float64).astype(np.float32) for one in found]
    return np.stack(found) if isinstance(layers, Iterable) else found[0]
