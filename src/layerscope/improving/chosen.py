"""A model that is read as was chosen: it encodes at once, and can be written as a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from layerscope.core.readout import Readout
from layerscope.exporting.describing import license_of
from layerscope.exporting.draft import ExportRequest, Side, verification_texts
from layerscope.exporting.formats import parse_formats
from layerscope.exporting.job import write_export
from layerscope.improving.fit import Fitted
from layerscope.improving.sample import Reader
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import TextEncoder


@dataclass(frozen=True)
class Chosen:
    """A layer of a model under a readout, with the mean or the head that was fitted for it.

    `query` says how queries are read, where that differs. `formats` are written beside the folder.
    """

    model: LoadedModel
    reader: Reader
    readout: Readout
    layer: int
    fitted: Fitted | None = None
    query: Chosen | None = None
    formats: tuple[str, ...] = ()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors (texts, D) by the model that is in memory; not scaled."""
        request = self.reader.request(self.readout.template, self.readout.kinds, self.layer)
        encoded = TextEncoder(self.model, request).encode(texts)
        return self.transform(encoded.vectors[self.readout.kinds[0]][0])

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of queries, which a search reads in their own way."""
        return (self.query or self).encode(texts)

    def transform(self, pooled: np.ndarray) -> np.ndarray:
        """Return pooled vectors after the mean is subtracted, or through the head."""
        return pooled if self.fitted is None else self.fitted.head(pooled).astype(np.float32)

    def save(
        self, place: Path, overwrite: bool, reason: str, write_run: Callable[[Path], None]
    ) -> Path:
        """Write the sentence-transformers folder, verified in a fresh process.

        `reason` is for the model card; `write_run` adds the run to the folder before it appears.
        """
        head = None if self.fitted is None else self.fitted.head
        sides: tuple[Side, ...] = ()
        if self.query is not None:
            query_head = None if self.query.fitted is None else self.query.fitted.head
            query = Side("query", self.query.readout.template, query_head)
            sides = (query, Side("document", self.readout.template, head))
            head = None
        identity, length = self.model.identity, self.reader.max_length
        request = ExportRequest(
            self.model,
            self.layer,
            self.readout,
            tuple(verification_texts(brief=True)),
            max_length=min(length, self.model.max_length or length),
            # a sentence encoder that keeps its reading keeps its own scaling
            unit=not identity.get("sentence_encoder") or bool(identity.get("normalizes")),
            head=head,
            sides=sides,
            license=license_of(self.model, None),
            reason=reason,
        )
        write_export(request, place, overwrite, write_run, parse_formats(self.formats))
        return place
