"""Many tasks as one plan: the longest first, a step scored while the next is encoded, and the timing of a part of each.

Some texts are encoded as all will be, then a layer of every task is scored, with their vectors in place of the others'.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from layerscope.evaluation.encode import EncodePass
from layerscope.evaluation.plan import Texts, Turn
from layerscope.evaluation.pool import ScoringPool, time_job
from layerscope.evaluation.scoring import ScoreJob, ScoringContext
from layerscope.store.embeddings import text_key

if TYPE_CHECKING:
    from layerscope.evaluation.device_scoring import DeviceScoring

TOGETHER = 12_800  # texts: fewer at a time would be encoded in small chunks
_TIMED = 512  # texts
_CHARACTERS = 5  # of a token: what is cut off a text takes no time

Results = Iterator[dict[str, Any]]


class Step(NamedTuple):
    """Tasks of a turn whose texts are encoded together."""

    turn: Turn
    tasks: tuple[str, ...]


def steps_of(turns: Sequence[Turn], texts: Texts, max_length: int) -> list[Step]:
    """The turns in steps: the tasks that take longest to encode first, small ones together."""
    out = []
    for turn in turns:
        groups: list[list[str]] = []
        for name in sorted(turn.tasks, key=lambda name: -work_of(texts[name], max_length)):
            if not groups or sum(len(texts[one]) for one in groups[-1]) >= TOGETHER:
                groups.append([])
            groups[-1].append(name)
        out += [Step(turn, tuple(names)) for names in groups]
    return out


def work_of(texts: Sequence[str], max_length: int) -> int:
    """What texts take to encode, in characters."""
    return sum(min(len(text), _CHARACTERS * max_length) for text in texts)


class Scorers(AbstractContextManager["Scorers"]):
    """Scores the jobs of steps, by mteb or on a device. With `apart` that goes on while this process does other things."""

    def __init__(self, workers: int, device: DeviceScoring | None, apart: bool) -> None:
        self.pool, self.device = ScoringPool(workers if device is None else 0), device
        self.apart = apart and (device is not None or workers > 0)
        self._thread, self._stopped = ThreadPoolExecutor(1), threading.Event()

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        self.pool.__exit__()

    def start(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Results:
        """Results of jobs, as they are done."""
        if self.device is None:
            return self.pool.score(context, jobs)
        if not self.apart:
            return self.device.run(context, jobs)
        names = dict.fromkeys(job.task.name for job in jobs)  # a task at a time: what is done is seen
        parts = [self._thread.submit(self._run, context, [job for job in jobs if job.task.name == name]) for name in names]
        return (result for part in parts for result in part.result())

    def _run(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[dict[str, Any]]:
        device = self.device
        assert device is not None
        # a new thread begins on the first GPU
        with torch.cuda.device(device.device) if device.device.type == "cuda" else nullcontext():
            return list(takewhile(lambda result: not self._stopped.is_set(), device.run(context, jobs)))

    def seconds(
        self, context: ScoringContext, jobs: Mapping[str, Sequence[ScoreJob]]
    ) -> tuple[dict[str, tuple[float, float]], int]:
        """What a task takes once, and what each of its jobs takes, by some of them; and the bytes of the processes that score."""
        if self.device is None:
            found = list(self.pool.start(time_job, context, [some[0] for some in jobs.values()]))
            each = {name: (loading, scoring / max(1, self.pool.workers)) for name, loading, scoring, _ in found}
            return each, self.pool.workers * max(peak for *_, peak in found)
        each = {}
        for name, some in jobs.items():
            times = [time.perf_counter()]
            for part in (some[:1], some[1:3]):  # one, then two
                list(self.device.run(context, part))
                times.append(time.perf_counter())
            one, two = times[1] - times[0], times[2] - times[1]
            each[name] = (max(0.0, 2 * one - two), max(0.0, two - one)) if len(some) > 2 else (0.0, one)
        return each, 0


def together(encode: Sequence[float], score: Sequence[float], apart: bool) -> float:
    """Seconds of all steps: with `apart`, one is encoded while the one before it is scored.

    >>> together([4.0, 4.0], [3.0, 1.0], True), together([4.0, 4.0], [3.0, 1.0], False)
    (9.0, 12.0)
    """
    encoded = scored = before = 0.0
    for encoding, scoring in zip(encode, score, strict=True):
        encoded = max(encoded, before if apart else scored) + encoding
        before, scored = scored, max(scored, encoded) + scoring
    return scored


def time_encoding(passes: Sequence[tuple[EncodePass, Sequence[str]]], max_length: int) -> tuple[float, list[bytes]]:
    """Seconds per character of all passes, by some texts of every length, which are stored; and their keys, once per pass.

    A second set is timed: the first one compiles and warms up.
    """
    rate, keys = 0.0, list[bytes]()
    for encode, missing in passes:
        for half in (missing[::2], missing[1::2]) if len(missing) > 1 else ():
            some = list(half[:: max(1, len(half) // _TIMED)])
            start = time.perf_counter()
            encode.add(some, encode.encoder.run(encode.encoder.read(some), lambda count: None))
            took = time.perf_counter() - start
            keys += map(text_key, some)
        rate += took / max(1, work_of(some, max_length)) if len(missing) > 1 else 0.0
    return rate, keys
