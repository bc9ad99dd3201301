"""The model read as was chosen: its vectors at once, its folder, and the one process that may write that folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout
from layerscope.core.templates import BLEND, get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.exporting.blend import export_blend
from layerscope.exporting.job import export
from layerscope.improving.centering import Centered
from layerscope.improving.grid import unit
from layerscope.improving.sample import Reader
from layerscope.models import LoadedModel
from layerscope.store.locks import lock_beside


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Be the only process that improves into `out`; yields a folder beside it for what a stopped run goes on from."""
    with lock_beside(out.resolve(), "improving") as work:
        yield work
        for file in work.glob("*.npz"):  # finished: nothing to go on from
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Chosen:
    """A layer of a model under a readout. `parts` are the templates that are read: several for a blend, otherwise one."""

    model: LoadedModel
    reader: Reader
    readout: Readout
    layer: int
    parts: Sequence[str]
    centered: Centered | None
    nearest: str = ""
    """Of a blend: the best that needs one pass and no code, in words."""

    def of(self, name: str) -> Readout:
        """The readout under one of the templates."""
        return replace(self.readout, template=name)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (texts, D) by the model that is in memory; not scaled."""
        return self.finished({name: self._read(name, texts) for name in self.parts})

    def finished(self, found: dict[str, np.ndarray]) -> np.ndarray:
        """The vectors from those under each template: centered and, of several, the mean of the unit vectors."""
        vectors = []
        for name in self.parts:
            one = found[name].astype(np.float64)
            vectors.append(one if self.centered is None else one - self.centered.means[name])
        return np.asarray(vectors[0] if len(vectors) == 1 else np.mean([unit(one) for one in vectors], axis=0), dtype=np.float32)

    def _read(self, name: str, texts: Sequence[str]) -> np.ndarray:
        site = [one for one in self.reader.sites if one.layer == self.layer]
        encoder = TextEncoder(self.model, get_template(name), site, list(self.readout.kinds), self.reader.max_length)
        vectors, _ = encoder.run(encoder.read(list(texts)), lambda n: None)
        return vectors[self.readout.kinds[0]][0]

    def save(
        self,
        place: Path,
        corpus: str,
        overwrite: bool,
        offline: bool,
        why: str = "",
        also: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write the sentence-transformers folder, verified in a fresh process."""
        options: dict[str, Any] = {} if also is None else {"also": also}
        if self.readout.template == BLEND:
            assert self.centered is not None, "a blend is a mean of centered vectors"
            export_blend(
                self.model, self.layer, self.readout, self.centered.means, out=place, encode=self.encode, why=why,
                max_length=self.reader.max_length, centered_on=f"{self.centered.words} of {corpus}", nearest=self.nearest,
                overwrite=overwrite, offline=offline, **options,
            )  # fmt: skip
            return place
        mean = (
            None if self.centered is None else (self.centered.means[self.readout.template], f"{self.centered.words} of {corpus}")
        )
        # a sentence encoder that is left alone keeps its own scaling
        normalize = None if self.model.identity.get("sentence_encoder") else True
        export(
            self.model, self.layer, readout=self.readout, out=place, mean=mean, max_length=self.reader.max_length,
            brief=True, normalize=normalize, overwrite=overwrite, offline=offline, why=why, **options,
        )  # fmt: skip
        return place
