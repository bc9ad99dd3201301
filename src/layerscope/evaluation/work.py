"""Texts of an evaluation as work for many workers: each holds the model, and encodes whole chunks of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerscope.data.items import PackedTexts
from layerscope.engines import Engine
from layerscope.engines.base import Advance, Work
from layerscope.engines.recipe import ModelRecipe
from layerscope.evaluation.encode import Encoded, EncodePass, TextEncoder, Vectors

Chunk = tuple[int, slice]
"""The number of a pass, and which of its texts."""


class ChunkWork(Work[Chunk, Vectors]):
    """A chunk of texts in, their vectors out."""

    under_way = 2

    def __init__(self, recipe: ModelRecipe, passes: Sequence[tuple[EncodePass, Sequence[str]]]) -> None:
        self.recipe = recipe
        first = passes[0][0].encoder
        self.sites, self.max_length, self.batch_size = first.sites, first.max_length, first.batch_size
        self.passes = [(encode.template, encode.kinds, PackedTexts(texts)) for encode, texts in passes]
        self.memory = recipe.memory

    def open(self) -> int:
        """Load the model; returns the tokens per batch, so that batches are the same on every worker."""
        model = self.recipe.open()
        self._encoders = [
            TextEncoder(model, template, self.sites, kinds, self.max_length, self.batch_size)
            for template, kinds, _ in self.passes
        ]
        return self._encoders[0].runner.tokens

    def prepare(self, item: Chunk) -> list[Encoded]:
        """Token ids of the chunk's texts."""
        which, span = item
        return self._encoders[which].read(self.passes[which][2][span])

    def run(self, item: Chunk, prepared: list[Encoded], advance: Advance, common: Any) -> Vectors:
        """Their vectors."""
        encoder = self._encoders[item[0]]
        encoder.runner.tokens = min(encoder.runner.tokens, common)
        return encoder.run(prepared, advance)

    def name(self, item: Chunk) -> str:
        """Which texts, under which template."""
        which, span = item
        return f"texts {span.start} to {span.stop - 1} (longest first) under template {self.passes[which][0].name!r}"


def encode_by_workers(
    engine: Engine, recipe: ModelRecipe, passes: Sequence[tuple[EncodePass, Sequence[str]]], advance: Advance
) -> None:
    """Workers encode, this process adds to the store: what is added is there whatever happens to them."""
    chunks = [(i, span) for i, (encode, texts) in enumerate(passes) for span in encode.spans(len(texts))]
    for i, found in engine.run(ChunkWork(recipe, passes), chunks, advance):
        which, span = chunks[i]
        encode, texts = passes[which]
        encode.add(texts[span], found)
