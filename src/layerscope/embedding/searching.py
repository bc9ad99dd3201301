"""`search`: the texts nearest to a question, among texts of any kind or in a file that `embed`
wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.command import Command
from layerscope.core.heads import unit
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.embedding.encoders import (
    QUERY,
    VECTOR,
    Encoder,
    Layers,
    in_blocks,
    open_encoder,
    without_name,
)
from layerscope.embedding.writing import BLOCK, facts_of, vectors_in
from layerscope.engines import Engine
from layerscope.errors import DataError, InvalidValueError, clean_name
from layerscope.progress import Progress

Block = tuple[np.ndarray, list[dict[str, Any]]]
"""Vectors (texts, D), and the columns of each text."""


def search(
    model: Any,
    query: str,
    data: Any,
    *,
    top: int = 5,
    column: str | None = None,
    encoding: str | None = None,
    layers: Layers = None,
    readout: str | None = None,
    max_length: int | None = None,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> pd.DataFrame:
    """Return the `top` texts nearest to a question, with their cosine and their other columns.

    `data` is anything that holds texts, or a file that `embed` wrote with this very model: its
    vectors are not made again.

        layerscope.search("better", "how do I reset my card?", "vectors.parquet")
    """
    if not query.strip() or top < 1:
        raise InvalidValueError("a search takes a question with words, and top= of at least 1.")
    command = Command("search", options, engine=engine, progress=progress, function=search)
    parsed_readout = None if readout is None else Readout.parse(readout)
    is_parquet = isinstance(data, str | Path) and str(data).endswith(".parquet")
    facts = facts_of(Path(data)) if is_parquet and Path(data).is_file() else {}
    with command:
        encoder = open_encoder(
            command, model, layers=layers, readout=parsed_readout, max_length=max_length
        )
        if len(encoder.names) > 1:
            raise InvalidValueError("a search reads one layer: name one, such as layers=-1.")
        if facts:
            name = _vector_column(facts, encoder.facts, data)
            vector = encoder.embed(command.engine, [query], kind=QUERY).vectors[0][0]
            return nearest(vector, vectors_in(Path(data), name, len(vector)), top)
        vector = encoder.embed(command.engine, [query], kind=QUERY).vectors[0][0]
        stream = TextStream(data, column=column, encoding=encoding)
        return nearest(vector, _encoded(stream, encoder, command), top)


def _encoded(stream: TextStream, encoder: Encoder, command: Command) -> Iterator[Block]:
    """Yield the vectors and columns of texts, and warn at the end of those that were cut."""
    total = sum(1 for _ in stream)
    command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
    cut = 0
    for rows in in_blocks(stream.rows(), BLOCK):
        texts = [str(row.text) for row in rows]
        embedded = encoder.embed(command.engine, texts, command.bar.advance)
        cut += embedded.cut
        yield embedded.vectors[0], [{"text": row.text, **row.others} for row in rows]
    encoder.warn_of_cuts(cut, total)


def nearest(query: np.ndarray, blocks: Iterable[Block], top: int) -> pd.DataFrame:
    """Return the rows nearest to a vector by cosine, best first; only the best so far are held."""
    matches: list[tuple[float, dict[str, Any]]] = []
    for vectors, rows in blocks:
        cosines = unit(vectors) @ unit(query[None])[0]
        order = np.argsort(-cosines, kind="stable")[:top]
        matches += [(float(cosines[i]), rows[i]) for i in order]
        matches = sorted(matches, key=lambda match: -match[0])[:top]
    table = []
    for rank, (cosine, row) in enumerate(matches, 1):
        place = {"rank": rank, "cosine": cosine}
        table.append({**place, **row, **place})  # a column of that name in the row does not count
    return pd.DataFrame(table)


def _vector_column(facts: dict[str, Any], expected: dict[str, Any], file: str | Path) -> str:
    """Return the column of a file of vectors that an encoder made; raise if there is none."""
    column = VECTOR
    layers = facts.get("layers")
    layer = expected.get("layers", [None])[0]
    if isinstance(layers, list) and len(layers) > 1 and layer in layers:
        column = f"layer_{layer}"
        expected = {**expected, "layers": layers}
    recorded = without_name(facts)
    if any(recorded.get(name) != value for name, value in without_name(expected).items()):
        model = facts.get("model")
        author = "another model"
        if isinstance(model, dict):
            author = clean_name(str(model.get("name")))
        raise DataError(
            f"{file} was embedded with {author} and other settings; use the same for searching."
        )
    return column
