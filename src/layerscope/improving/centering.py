"""Centering on more texts than are judged: the mean of what was chosen over all texts, or over a larger draw, in a stream."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.errors import UnknownNameError
from layerscope.evaluation.encode import EncodePass, TextEncoder, Vectors, encode_by_workers
from layerscope.improving.grid import StoredCandidates
from layerscope.improving.sample import Reader, Sample
from layerscope.progress import Progress
from layerscope.store import checked

CENTER_ON = ("auto", "all", "sample")
SHARE = 0.25
"""The most that centering on further texts may cost unless all are asked for, as a share of what the choice costs."""

_BLOCK = 4096
_REMOTE_BLOCK = 65_536  # workers load the model for every block
_SAVE_EVERY = 20.0  # seconds


def check_center_on(given: str) -> str:
    """What to center on, or an error that names what is valid."""
    if given not in CENTER_ON:
        raise UnknownNameError("choice of the texts to center on", given, CENTER_ON)
    return given


def texts_to_center_on(center_on: str, sample: Sample, spent: float, each: float) -> int:
    """How many texts the mean is over: the sample and, where they are wanted, others.

    `spent` is what the choice reads and `each` what one more text takes, both in tokens: the number depends on the texts
    alone, not on how fast a machine happens to be.
    """
    judged = len(sample.texts)
    if center_on == "sample":
        return judged
    if center_on == "all":
        return sample.total
    return judged + min(len(sample.more), int(SHARE * spent / each))


@dataclass(frozen=True)
class Centered:
    """The mean (D,) to subtract under each template that is read, and over how many of the distinct texts it was taken."""

    means: dict[str, np.ndarray]
    texts: int
    total: int

    @property
    def words(self) -> str:
        """Over what, in words."""
        return (
            f"all {self.total:,} texts"
            if self.texts == self.total
            else f"{self.texts:,} of {self.total:,} texts (drawn at random)"
        )


class _SumPass(EncodePass):
    """A pass whose vectors are added up instead of stored."""

    def __init__(self, reader: Reader, template: str, kind: str, layer: int) -> None:
        sites = [site for site in reader.sites if site.layer == layer]
        self.encoder = TextEncoder(reader.model, get_template(template), sites, [kind], reader.max_length, reader.batch_size)
        self.template, self.sites, self.kinds, self.chunk = self.encoder.template, sites, [kind], 512
        self.total = np.zeros(reader.model.width)

    def add(self, texts: Sequence[str], encoded: Vectors) -> None:
        """Add the vectors of texts to the sum."""
        self.total += encoded[0][self.kinds[0]][0].sum(0, dtype=np.float64)


def center(
    reader: Reader, candidates: StoredCandidates, readouts: dict[str, Readout], layer: int, sample: Sample, count: int,
    bar: Progress, scratch: Path | None = None,
) -> Centered:  # fmt: skip
    """The mean over `count` texts under each readout, given by its template; the sample's vectors are in the store already.

    Where `scratch` names a file, sums are saved there now and then, and a run that was stopped goes on from them.
    """
    judged = len(sample.texts)
    means = {name: candidates.mean(readout, layer) for name, readout in readouts.items()}
    if count <= judged:
        return Centered(means, judged, sample.total)
    passes = [_SumPass(reader, name, readout.kinds[0], layer) for name, readout in readouts.items()]
    saved = _Saved(scratch, f"{sample.facts['fingerprint']}|{sorted(readouts.values())}|{layer}|{count}|{judged}")
    done = saved.load(passes)
    bar.begin("centering|texts", len(passes) * (count - judged), len(passes) * done)
    texts = islice(sample.rest(count), done, None)
    for block in _blocks(texts, _BLOCK if reader.recipe is None else _REMOTE_BLOCK):
        if reader.recipe is not None and reader.engine is not None:
            encode_by_workers(reader.engine, reader.recipe, [(one, block) for one in passes], bar.advance)
        else:
            for one in passes:
                one.run(block, bar.advance)
        done += len(block)
        saved.save(passes, done)
    sums = {name: one.total + judged * means[name] for name, one in zip(means, passes, strict=True)}
    return Centered({name: total / (judged + done) for name, total in sums.items()}, judged + done, sample.total)


def _blocks(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Texts in blocks, the longest of a block first so that batches hold little padding."""
    while block := list(islice(texts, size)):
        yield sorted(block, key=lambda text: (-len(text), text))


class _Saved:
    """Sums on the disk, for a run that is stopped."""

    def __init__(self, path: Path | None, what: str) -> None:
        self.path, self.key = path, np.frombuffer(hashlib.sha256(what.encode()).digest(), dtype=np.uint8)
        self.last = time.monotonic()

    def load(self, passes: Sequence[_SumPass]) -> int:
        """Put the saved sums into the passes; returns how many texts they are over."""
        found = None if self.path is None else checked.read_or_discard(self.path, checked.read_arrays)
        if found is None or not np.array_equal(found["key"], self.key):
            return 0
        totals, done = found["totals"], int(found["done"])
        for one, total in zip(passes, totals, strict=True):
            one.total = total.copy()
        return done

    def save(self, passes: Sequence[_SumPass], done: int) -> None:
        """Save the sums, unless that was done a moment ago."""
        if self.path is not None and time.monotonic() - self.last >= _SAVE_EVERY:
            checked.write_arrays(
                self.path, {"key": self.key, "totals": np.stack([one.total for one in passes]), "done": np.array(done)}
            )
            self.last = time.monotonic()
