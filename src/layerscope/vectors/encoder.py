"""Texts through a model: the vectors of all wanted readings at all wanted sites, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerscope.capture import Batch, Site, fits_on_device
from layerscope.capture.pooling import Pooler
from layerscope.core.poolings import POOLINGS
from layerscope.core.templates import SLOT, Template
from layerscope.forward import BatchRunner
from layerscope.models import LoadedModel
from layerscope.models.prefix import SharedPrefix
from layerscope.vectors.tokenize import TokenizedText, tokenize_texts

__all__ = ["EncodeRequest", "TextEncoder", "TextVectors"]


@dataclass(frozen=True)
class EncodeRequest:
    """The vectors that are wanted of texts: readings (such as `mean/applied`) at sites, under one
    template."""

    template: Template
    sites: tuple[Site, ...]
    readings: tuple[str, ...]
    max_length: int
    batch_size: int | None = None

    @property
    def site_names(self) -> list[str]:
        """The names of the sites."""
        return [site.name for site in self.sites]


@dataclass(frozen=True)
class TextVectors:
    """The vectors of some texts by reading (sites, texts, width), and numbers by name."""

    vectors: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


class TextEncoder:
    """A model under one request. Between calls it remembers which batches fit into memory."""

    def __init__(self, model: LoadedModel, request: EncodeRequest) -> None:
        self.model = model
        self.request = request
        self.runner = BatchRunner(model, request.batch_size)
        self._prefix: SharedPrefix | None = None

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the token ids of texts. One without a token (an empty string, say) still needs a
        vector: MTEB's data holds some."""
        request = self.request
        tokenized = tokenize_texts(self.model, request.template, texts, request.max_length)
        return [
            text if text.ids else TokenizedText([self.model.pad_id], (0, 1), text.truncated)
            for text in tokenized
        ]

    def run(
        self, tokenized: Sequence[TokenizedText], advance: Callable[[int], None] = lambda n: None
    ) -> TextVectors:
        """Return the vectors and numbers of tokenized texts. On a GPU they are put in order there:
        the host copies them once."""
        sites = self.request.sites
        readings = self.request.readings
        shape = (len(sites), len(tokenized), self.model.width)
        device = self.model.device
        fits = fits_on_device(device, len(readings) * shape[0] * shape[1], shape[2])
        place = device if fits else torch.device("cpu")
        vectors = {
            reading: torch.empty(shape, dtype=torch.float32, device=place) for reading in readings
        }
        numbers = {"truncated": np.array([text.truncated for text in tokenized])}
        prefix = self._prefix = self._shared(tokenized)
        skipped = 0 if prefix is None else len(prefix.ids)
        forward = self.model.run if prefix is None else prefix.run

        def reduce(items: list[int], batch: Batch) -> None:
            spans = [tokenized[i].span for i in items]
            read = [(max(0, start - skipped), stop - skipped) for start, stop in spans]
            pooled, counts = pooler.pool(batch, read, forward)
            # Tokens that were skipped count, too.
            counts["tokens"] = np.array([stop - start for start, stop in spans])
            columns = torch.tensor(items, device=place)
            for reading, rows in pooled.items():
                vectors[reading][:, columns] = rows.to(place)
            for name, values in counts.items():
                if name not in numbers:
                    numbers[name] = np.zeros((*values.shape[:-1], len(tokenized)), values.dtype)
                numbers[name][..., items] = values
            advance(len(items))

        with Pooler(self.model.anatomy, sites, readings) as pooler:
            self.runner.run([text.ids[skipped:] for text in tokenized], reduce)
        arrays = {reading: rows.cpu().numpy() for reading, rows in vectors.items()}
        return TextVectors(arrays, numbers)

    def encode(self, texts: Sequence[str]) -> TextVectors:
        """Return the vectors and numbers of texts."""
        return self.run(self.tokenize(texts))

    def _shared(self, tokenized: Sequence[TokenizedText]) -> SharedPrefix | None:
        """Return the tokens that the template puts before every text, where their states need not
        be pooled."""
        before = self.request.template.pattern.partition(SLOT)[0]
        last = tuple(
            f"{name}/" for name, pooling in POOLINGS.all().items() if pooling.position == "last"
        )
        readings = self.request.readings
        if not before or not readings or not all(name.startswith(last) for name in readings):
            return None
        most = len(self.model.tokenize([before]).ids[0])
        return SharedPrefix.of(self.model, [text.ids for text in tokenized], most, self._prefix)
