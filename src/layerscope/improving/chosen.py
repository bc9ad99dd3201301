"""The model read as was chosen: its vectors at once, its folder, and the one process that may write
that folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from layerscope.core.readout import Readout
from layerscope.exporting.draft import Side
from layerscope.exporting.job import Inside, export
from layerscope.improving.fitting import Fitted
from layerscope.improving.sample import Reader
from layerscope.models import LoadedModel
from layerscope.store.locks import lock_beside
from layerscope.vectors.encoder import TextEncoder

CENTERING, COUNT = (
    "centering.safetensors",
    "texts.json",
)  # what a stopped run goes on from: sums, and its number of texts


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Be the only process that improves into `out`; yields a folder beside it for what a stopped
    run goes on from."""
    with lock_beside(out.resolve(), "improving") as work:
        yield work
        for name in (CENTERING, COUNT):  # finished: nothing to go on from
            (work / name).unlink(missing_ok=True)
        for lesson in work.glob("lesson-*"):
            shutil.rmtree(lesson, ignore_errors=True)


@dataclass(frozen=True)
class Chosen:
    """A layer of a model under a readout, and what was fitted to center or map its vectors."""

    model: LoadedModel
    reader: Reader
    readout: Readout
    layer: int
    fitted: Fitted | None = None
    query: Chosen | None = None
    """How queries are read, where they are read otherwise than documents."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (texts, D) by the model that is in memory; not scaled."""
        request = self.reader.request(self.readout.template, self.readout.kinds, self.layer)
        encoded = TextEncoder(self.model, request).encode(texts)
        return self.finished(encoded.vectors[self.readout.kinds[0]][0])

    def finished(self, pooled: np.ndarray) -> np.ndarray:
        """The vectors from the pooled ones: centered, or through the head."""
        return pooled if self.fitted is None else self.fitted.head(pooled).astype(np.float32)

    def save(
        self,
        place: Path,
        overwrite: bool,
        offline: bool,
        why: str = "",
        also: Callable[[Path], None] | None = None,
        formats: Sequence[str] = (),
    ) -> Path:
        """Write the sentence-transformers folder, verified in a fresh process, and further
        formats."""
        head = None if self.fitted is None else self.fitted.head
        sides: tuple[Side, ...] = ()
        if self.query is not None:
            asked = None if self.query.fitted is None else self.query.fitted.head
            sides, head = (
                (
                    Side("query", self.query.readout.template, asked),
                    Side("document", self.readout.template, head),
                ),
                None,
            )
        # a sentence encoder that is left alone keeps its own scaling
        normalize = None if self.model.identity.get("sentence_encoder") else True
        export(
            self.model, self.layer, readout=self.readout, out=place, head=head, max_length=self.reader.max_length,
            normalize=normalize, formats=formats, overwrite=overwrite, offline=offline,
            inside=Inside(True, why, also, sides),
        )  # fmt: skip
        return place
