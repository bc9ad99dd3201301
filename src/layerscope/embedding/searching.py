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
from layerscope.embedding.encoders import QUERY, VECTOR, Layers, decisive, in_blocks, open_encoder
from layerscope.embedding.writing import BLOCK, facts_of, vectors_in
from layerscope.errors import DataError, InvalidValueError, clean_name

Row = dict[str, Any]
Block = tuple[np.ndarray, list[Row]]
"""Vectors (texts, D), and the columns of each text."""


def nearest(query: np.ndarray, blocks: Iterable[Block], top: int) -> pd.DataFrame:
    """Return the rows nearest to a vector by cosine, best first; only the best so far are held."""
    best: list[tuple[float, int, Row]] = []
    count = 0
    for vectors, rows in blocks:
        cosines = unit(vectors) @ unit(query[None])[0]
        order = np.argsort(-cosines, kind="stable")[:top]
        best += [(float(cosines[i]), count + int(i), rows[i]) for i in order]
        best = sorted(best, key=lambda match: (-match[0], match[1]))[:top]
        count += len(rows)
    table = []
    for rank, (cosine, _, row) in enumerate(best, 1):
        place = {"rank": rank, "cosine": cosine}
        table.append({**place, **row, **place})  # a row's own column of that name does not count
    return pd.DataFrame(table)


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
    **options: Any,
) -> pd.DataFrame:
    """Return the `top` texts nearest to a question, with their cosine and their other columns.

    `data` is anything that holds texts, or a file that `embed` wrote with this very model: its
    vectors are not made again. `progress` and `engine` are as for `embed`.

        layerscope.search("better", "how do I reset my card?", "vectors.parquet")
    """
    if not query.strip() or top < 1:
        raise InvalidValueError("a search takes a question with words, and top= of at least 1.")
    ways = {name: options.pop(name) for name in ("engine", "progress") if name in options}
    command = Command("search", options, **ways, function=search)
    is_parquet = isinstance(data, str | Path) and str(data).endswith(".parquet")
    facts = facts_of(Path(data)) if is_parquet and Path(data).is_file() else {}
    with command:
        encoder = open_encoder(
            command,
            model,
            layers=layers,
            readout=None if readout is None else Readout.parse(readout),
            max_length=max_length,
        )
        if len(encoder.names) > 1:
            raise InvalidValueError("a search reads one layer: name one, such as layers=-1.")
        column_name = _column_of(facts, encoder.facts, data) if facts else ""
        vector = encoder.embed(command.engine, [query], kind=QUERY).vectors[0][0]
        if facts:
            return nearest(vector, vectors_in(Path(data), column_name, len(vector)), top)
        stream = TextStream(data, column=column, encoding=encoding)
        total = sum(1 for _ in stream)
        cuts: list[int] = []

        def blocks() -> Iterator[Block]:
            command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
            for rows in in_blocks(stream.rows(), BLOCK):
                texts = [str(row.text) for row in rows]
                embedded = encoder.embed(command.engine, texts, command.bar.advance)
                cuts.append(embedded.cut)
                yield embedded.vectors[0], [{"text": row.text, **row.others} for row in rows]

        matches = nearest(vector, blocks(), top)
        encoder.warn_of_cuts(sum(cuts), total)
        return matches


def _column_of(facts: dict[str, Any], wanted: dict[str, Any], file: str | Path) -> str:
    """Return the column of a file of vectors that an encoder made; raise where none is."""
    layers = facts.get("layers")
    layer = wanted.get("layers", [None])[0]
    column = VECTOR
    if isinstance(layers, list) and len(layers) > 1 and layer in layers:
        column = f"layer_{layer}"
        wanted = {**wanted, "layers": layers}
    held = decisive(facts)
    if any(held.get(name) != value for name, value in decisive(wanted).items()):
        model = facts.get("model")
        who = "another model"
        if isinstance(model, dict):
            who = clean_name(str(model.get("name")))
        raise DataError(
            f"{file} was embedded with {who} and other settings; use the same for searching."
        )
    return column
