"""Many tasks as one plan: their order, a step scored while the next is encoded, and what is told of
the time they take."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from layerscope.evaluation.encode import EncodePass
from layerscope.evaluation.plan import Texts, Turn
from layerscope.evaluation.pool import COPIES, ScoringPool
from layerscope.evaluation.scoring import ScoreJob, ScoringContext

if TYPE_CHECKING:
    from layerscope.evaluation.device_scoring import DeviceScoring

log = logging.getLogger(__name__)

TOGETHER = 12_800  # texts: fewer at a time would be encoded in small chunks
_TIMED = 512  # texts
_TRIED = 0.1  # of all that is encoded: tasks that tell what the others take, which are waited for, are no larger part
_CHARACTERS = 5  # of a token: what is cut off a text takes no time

Results = Iterator[dict[str, Any]]


class Step(NamedTuple):
    """Tasks of a turn whose texts are encoded together."""

    turn: Turn
    tasks: tuple[str, ...]


def first_of(texts: Texts, kinds: Mapping[str, str], max_length: int) -> tuple[str, ...]:
    """The smallest task of every kind: done first, they tell what the others take. None where they
    are much of the whole."""
    work = {name: work_of(some, max_length) for name, some in texts.items()}
    smallest = {kinds[name]: name for name in sorted(texts, key=lambda name: -work[name])}
    few = sum(work[name] for name in smallest.values()) <= _TRIED * sum(work.values())
    return tuple(smallest.values()) if few and sum(map(len, texts.values())) > TOGETHER else ()


def steps_of(
    turns: Sequence[Turn], texts: Texts, max_length: int, first: Sequence[str] = ()
) -> list[Step]:
    """The turns in steps: after the `first` tasks those that take longest to encode, small ones
    together."""
    out = []
    for turn in turns:
        groups = [[name for name in turn.tasks if name in first]]
        others = (name for name in turn.tasks if name not in first)
        for name in sorted(others, key=lambda name: -work_of(texts[name], max_length)):
            if len(groups) == 1 or sum(len(texts[one]) for one in groups[-1]) >= TOGETHER:
                groups.append([])
            groups[-1].append(name)
        out += [Step(turn, tuple(names)) for names in groups if names]
    return out


def work_of(texts: Sequence[str], max_length: int) -> int:
    """What texts take to encode, in characters."""
    return sum(min(len(text), _CHARACTERS * max_length) for text in texts)


class Size(NamedTuple):
    """What a score of a task takes depends on: its kind, its texts, its items (a clustering may
    have a text in many sets)."""

    kind: str
    texts: int
    items: int


def seconds_of(sizes: Sequence[Size], took: Sequence[tuple[Size, float]]) -> float | None:
    """What scores take by what others took; None where no other is of the same kind.

    Vectors are read alike for all kinds: the kind that takes least per text shows how long that is
    at most. What goes beyond is a kind's own, by its items.
    """
    if not {size.kind for size in sizes} <= {size.kind for size, _ in took}:
        return None
    reading = min((seconds / size.texts for size, seconds in took), default=0.0)
    own, items = defaultdict[str, float](float), defaultdict[str, int](int)
    for size, seconds in took:
        own[size.kind] += seconds - reading * size.texts
        items[size.kind] += size.items
    return sum(
        reading * size.texts + own[size.kind] / items[size.kind] * size.items for size in sizes
    )


class Scorers(AbstractContextManager["Scorers"]):
    """Scores the jobs of steps, by mteb or on a device. With `apart` that goes on while this
    process does other things."""

    def __init__(self, workers: int, device: DeviceScoring | None, apart: bool) -> None:
        self.pool, self.device = ScoringPool(workers if device is None else 0), device
        self.apart = apart and (device is not None or workers > 0)
        self._thread, self._parts = ThreadPoolExecutor(1), list[Future[list[dict[str, Any]]]]()

    def __exit__(self, *error: object) -> None:
        if self.device is not None:
            self.device.stopped.set()
        if not all(part.done() for part in self._parts):
            log.warning("finishing what is being scored.")
        self._thread.shutdown(cancel_futures=True)
        self.pool.__exit__(*error)

    def memory(self, vectors: int) -> int:
        """About the bytes of memory that scores take at a time, by those of the largest task at one
        layer."""
        return (
            self.device.memory(vectors)
            if self.device
            else COPIES * vectors * self.pool.fitting(vectors)
        )

    def start(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Results:
        """Results of jobs, as they are done."""
        if self.device is None:
            return self.pool.score(context, jobs)
        if not self.apart:
            return self.device.run(context, jobs)
        names = dict.fromkeys(
            job.task.name for job in jobs
        )  # a task at a time: what is done is seen
        parts = [
            self._thread.submit(self._run, context, [job for job in jobs if job.task.name == name])
            for name in names
        ]
        self._parts += parts
        return (result for part in parts for result in part.result())

    def _run(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[dict[str, Any]]:
        device = self.device
        assert device is not None
        # a new thread begins on the first GPU
        with torch.cuda.device(device.device) if device.device.type == "cuda" else nullcontext():
            return list(
                takewhile(lambda result: not device.stopped.is_set(), device.run(context, jobs))
            )


def time_encoding(encode: EncodePass, missing: Sequence[str], max_length: int) -> tuple[float, int]:
    """Seconds per character of a pass, by some texts of every length, and how many: they are
    stored.

    A second chunk is timed: the first one compiles and warms up.
    """
    took, count, most = 0.0, 0, min(_TIMED, encode.chunk)
    for half in (missing[::2], missing[1::2]) if len(missing) > 1 else ():
        some = list(half[:: -(-len(half) // most)])
        start = time.perf_counter()
        encode.add(some, encode.encoder.run(encode.encoder.read(some), lambda count: None))
        took, count = (
            (time.perf_counter() - start) / max(1, work_of(some, max_length)),
            count + len(some),
        )
    return took, count
