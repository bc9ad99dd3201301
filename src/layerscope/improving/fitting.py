"""Fitting on more texts than are judged: the mean of what was chosen over all texts or a larger
draw, in a stream; or a head."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from layerscope.core.heads import Head, Ridge, make_target, with_classes
from layerscope.core.readout import Readout
from layerscope.errors import UnknownNameError
from layerscope.improving.grid import StoredCandidates
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Teacher
from layerscope.improving.sample import Reader, Sample
from layerscope.progress import Progress
from layerscope.store import checked
from layerscope.vectors.encode import encode_chunks

CENTER_ON = ("auto", "all", "sample")
SHARE = 0.25
"""The most that centering on further texts may cost unless all are asked for, as a share of what
the choice costs."""

MOST_FITTED = 50_000
"""Texts that a head is fitted on at most: their vectors are held in memory, and more of them add
little."""

_BLOCK = 4096
_REMOTE_BLOCK = 65_536  # workers load the model for every block
_SAVE_EVERY = 20.0  # seconds


def check_center_on(given: str) -> str:
    """What to center on, or an error that names what is valid."""
    if given not in CENTER_ON:
        raise UnknownNameError("choice of the texts to center on", given, CENTER_ON)
    return given


def texts_to_fit_on(
    center_on: str, sample: Sample, spent: float, each: float, tokens: float | None = None
) -> int:
    """How many texts a mean or a head is fitted on: the sample and, where they are wanted, others.

    `tokens` is what others may take, where that was said. Otherwise `spent` is what the choice
    reads and `each` what one more text takes, both in tokens: the number depends on the texts
    alone, not on how fast a machine happens to be.
    """
    judged = len(sample.texts)
    if center_on == "sample" and tokens is None:
        return judged
    if center_on == "all" and tokens is None:
        return sample.total
    if tokens is not None:
        return (
            sample.total
            if tokens >= each * (sample.total - judged)
            else judged + min(len(sample.more), int(tokens / each))
        )
    return judged + min(len(sample.more), int(SHARE * spent / each))


@dataclass(frozen=True)
class Fitted:
    """What is done to pooled vectors, a mean subtracted or a head applied, and over how many of the
    distinct texts it is."""

    head: Head
    texts: int
    total: int

    @classmethod
    def of(cls, sample: Sample, texts: int, head: Head) -> Fitted:
        """The same, saying over which texts."""
        every = sample.total
        words = (
            f"all {every:,} texts"
            if texts == every
            else f"{texts:,} of {every:,} texts (drawn at random)"
        )
        return cls(replace(head, fitted_on=f"{words} of {sample.name}"), texts, every)


def center(
    reader: Reader, candidates: StoredCandidates, readout: Readout, layer: int, sample: Sample, count: int,
    bar: Progress, scratch: Path | None = None, asked: str | None = None,
) -> Fitted:  # fmt: skip
    """The mean over `count` texts under a readout; the sample's vectors are in the store already.

    Where `scratch` names a file, sums are saved there now and then, and a run that was stopped goes
    on from them. If so much time was `asked` for, it goes on to the number of texts that it began
    with: how fast a machine seems differs every time.
    """
    judged = len(sample.texts)
    mean = candidates.mean(readout, layer)
    if count <= judged:
        return Fitted.of(sample, judged, Head(mean))
    about = f"{sample.facts['fingerprint']}|{readout}|{layer}|{asked or count}|{judged}"
    saved = _Saved(scratch, about, count, reader.model.width)
    done = saved.load()
    count = saved.count
    reading = readout.kinds[0]
    request = reader.request(readout.template, [reading], layer)
    bar.begin("centering|texts", count - judged, done)
    texts = islice(sample.rest(count), done, count - judged)
    for block in _blocks(texts, _BLOCK if reader.recipe is None else _REMOTE_BLOCK):
        chunks = encode_chunks(
            reader.model, [(request, block)], reader.engine, reader.recipe, bar.advance
        )
        for _, _, encoded in chunks:
            saved.total += encoded.vectors[reading][0].sum(0, dtype=np.float64)
        done += len(block)
        saved.save(done)
    return Fitted.of(sample, judged + done, Head((saved.total + judged * mean) / (judged + done)))


@dataclass(frozen=True)
class Taught:
    """What a head learns from: texts, their plain vectors (texts, D) at its layer, and what each of
    its teachers says of them.

    `words` names the teachers.
    """

    texts: list[str]
    plain: np.ndarray
    teachers: list[np.ndarray]
    words: str

    @property
    def target(self) -> np.ndarray:
        """What the teachers say together (texts, K)."""
        return make_target(*self.teachers)

    def head(self, sample: Sample, labeled: tuple[np.ndarray, np.ndarray] | None = None) -> Fitted:
        """The head that is fitted on all of it; `labeled` are plain vectors (m, D) and the numbers
        of their classes (m,)."""
        head = Ridge(self.plain, self.target).head()
        if labeled is not None:
            head = with_classes(head, self.plain, *labeled)
        return Fitted.of(sample, len(self.texts), head)


def read_taught(
    reader: Reader, teacher: Teacher, prompts: Sequence[Readout], encode: Callable[[Sequence[str]], np.ndarray | None],
    layer: int, sample: Sample, count: int, bar: Progress,
) -> Taught:  # fmt: skip
    """What a head at a layer learns from on `count` texts: the sample and further ones. All
    readings go to the store."""

    def read(texts: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        plain = reader.vectors_at(HEAD_READOUT, layer, texts, bar, "a head")
        prompted = [
            reader.vectors_at(
                one, teacher.layer, texts, bar, f"its teacher, {teacher.describe([one])}"
            )
            for one in prompts
        ]
        if len(prompted) > 1:  # together they count as much as the encoder
            prompted = [make_target(*prompted, width=sum(rows.shape[1] for rows in prompted))]
        encoded = encode(texts)
        return plain, prompted if encoded is None else [*prompted, encoded]

    texts = [*sample.texts, *sample.rest(count)]
    return Taught(
        texts,
        *read(texts),
        teacher.describe(prompts),
    )


def _blocks(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Texts in blocks, the longest of a block first so that batches hold little padding."""
    while block := list(islice(texts, size)):
        yield sorted(block, key=lambda text: (-len(text), text))


class _Saved:
    """Sums on the disk, for a run that is stopped."""

    def __init__(self, path: Path | None, about: str, count: int, width: int) -> None:
        self.path = path
        self.key = np.frombuffer(hashlib.sha256(about.encode()).digest(), dtype=np.uint8)
        self.count = count
        self.total = np.zeros(width)
        self.last = time.monotonic()

    def load(self) -> int:
        """Take up the saved sum, if there is one; return how many texts it is over. `count` is then
        what the stopped run aimed for."""
        if self.path is None:
            return 0
        saved = checked.read_or_discard(self.path, checked.read_arrays)
        if saved is None or not np.array_equal(saved["key"], self.key):
            return 0
        self.count = int(saved["count"])
        self.total = saved["total"]
        return int(saved["done"])

    def save(self, done: int) -> None:
        """Save the sum, unless that was done a moment ago."""
        if self.path is not None and time.monotonic() - self.last >= _SAVE_EVERY:
            numbers = {"key": self.key, "total": self.total, "done": done, "count": self.count}
            checked.write_arrays(self.path, numbers)
            self.last = time.monotonic()
