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
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> np.ndarray:
    """Return the vectors of texts: of one layer (texts, D), or of several in one pass (layers,
    texts, D).

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
    command = Command("encode", options, engine=engine, progress=progress, function=encode)
    if isinstance(texts, str) and " " in texts:
        texts = [texts]
    stream = TextStream(texts, column=column)
    words = [str(row.text) for row in stream.rows()]
    if isinstance(readout, str):
        readout = Readout.parse(readout)
    is_centered = readout is not None and readout.centering == "corpus"
    if readout is not None and is_centered:
        readout = replace(readout, centering="none")
    with command:
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=readout, max_length=max_length
        )
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", len(words))
        embedded = encoder.embed(command.engine, words, command.bar.advance)
    encoder.warn_of_cuts(embedded.cut, len(words))
    vectors = embedded.vectors
    if is_centered:
        vectors = [rows - rows.mean(0, dtype=np.float64).astype(np.float32) for rows in vectors]
    return np.stack(vectors) if isinstance(layers, Iterable) else vectors[0]
