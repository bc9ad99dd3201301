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
from layerscope.data.corpus import TextStream
from layerscope.embedding.encoders import (
    DOCUMENT,
    QUERY,
    VECTOR,
    Layers,
    decisive,
    in_blocks,
    open_encoder,
)
from layerscope.embedding.writing import BLOCK, facts_of, vectors_in
from layerscope.errors import DataError, InvalidValueError, clean_name

Found = Iterable[tuple[np.ndarray, list[dict[str, Any]]]]


def nearest(query: np.ndarray, blocks: Found, top: int) -> pd.DataFrame:
    """The rows nearest to a vector by cosine, best first; only the best so far are held."""
    best: list[tuple[float, int, dict[str, Any]]] = []
    count = 0
    for vectors, rows in blocks:
        cosines = unit(vectors) @ unit(query[None])[0]
        order = np.argsort(-cosines, kind="stable")[:top]
        best += [(float(cosines[i]), count + int(i), rows[i]) for i in order]
        best = sorted(best, key=lambda one: (-one[0], one[1]))[:top]
        count += len(rows)
    ranked = [
        ({"rank": rank, "cosine": cosine}, row) for rank, (cosine, _, row) in enumerate(best, 1)
    ]
    return pd.DataFrame(
        [{**told, **row, **told} for told, row in ranked]
    )  # a row's own column of that name does not count


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
    offline: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """The `top` texts nearest to a question, with their cosine and their other columns.

    `data` is anything that holds texts, or a file that `embed` wrote with this very model: its
    vectors are not made again. `progress` and `engine` are as for `embed`.

        layerscope.search("better", "how do I reset my card?", "vectors.parquet")
    """
    if not query.strip() or top < 1:
        raise InvalidValueError("a search takes a question with words, and top= of at least 1.")
    ways = {name: options.pop(name) for name in ("engine", "progress") if name in options}
    command = Command("search", options, **ways, offline=offline, function=search)
    file = (
        Path(data)
        if isinstance(data, str | Path) and str(data).endswith(".parquet") and Path(data).is_file()
        else None
    )
    told = {} if file is None else facts_of(file)
    with command:
        encoder = open_encoder(
            command, model, layers=layers, readout=readout, max_length=max_length
        )
        if len(encoder.names) > 1:
            raise InvalidValueError("a search reads one layer: name one, such as layers=-1.")
        held, mine = told.get("layers"), encoder.facts.get("layers", [None])
        several = isinstance(held, list) and len(held) > 1 and mine[0] in held
        name, asked = (
            (f"layer_{mine[0]}", {**encoder.facts, "layers": held})
            if several
            else (VECTOR, encoder.facts)
        )
        if (
            file is not None
            and told
            and any(decisive(told).get(one) != value for one, value in decisive(asked).items())
        ):
            model_told = told.get("model")
            who = (
                clean_name(str(model_told.get("name")))
                if isinstance(model_told, dict)
                else "another model"
            )
            raise DataError(
                f"{data} was embedded with {who} and other settings; use the same for searching."
            )
        encoder.prompt = QUERY
        vector = encoder.vectors(command.engine, [query], lambda n: None)[0][0]
        if file is not None and told:
            return nearest(vector, vectors_in(file, name, len(vector)), top)
        encoder.prompt, encoder.cut = DOCUMENT, 0
        stream = TextStream(data, column=column, offline=offline, encoding=encoding)
        total = sum(1 for _ in stream)

        def blocks() -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
            command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
            for rows in in_blocks(stream.rows(), BLOCK):
                found = encoder.vectors(
                    command.engine, [str(row.text) for row in rows], command.bar.advance
                )[0]
                yield found, [{"text": row.text, **row.others} for row in rows]

        found = nearest(vector, blocks(), top)
        encoder.say_cuts(encoder.cut, total)
        return found
