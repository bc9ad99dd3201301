"""When to measure, so that measuring stays within a share of the run's time."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

from layerscope.errors import LayerscopeError

_REMEMBERED = 3  # measurements whose cost is expected again; the dearest of them counts
_STEPS = 32  # training steps whose median is known


class Pace:
    """Two clocks, the training's and our own, and the rule that ours may have `share` of their sum.

    A measurement is due when its expected cost still fits. Before the first one nothing is known: a small trial, assumed to cost
    no more than a training step, says what to expect.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < share < 1:
            raise LayerscopeError(f"share is a share of the run's time between 0 and 1, not {share}.")
        self.share, self.clock = share, clock
        self.training = self.own = 0.0
        self._left: float | None = None  # when training got the machine back
        self._arrived: float | None = None  # when it handed over, while we have it
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._expected: float | None = None
        self._measured_at: float | None = None  # of training's time

    @property
    def spent(self) -> float:
        """Our share of the time so far."""
        whole = self.training + self.own
        return self.own / whole if whole > 0 else 0.0

    @property
    def expected(self) -> float | None:
        """What the next measurement is expected to cost, in seconds; None before the trial."""
        return max(self._costs) if self._costs else self._expected

    @property
    def tried(self) -> bool:
        """Whether the cost of a measurement is known at least roughly."""
        return self.expected is not None

    def arrive(self) -> None:
        """Training hands over: what passed since it got the machine is its own time."""
        now = self.clock()
        if self._left is not None:
            self.training += now - self._left
            self._steps.append(now - self._left)
        self._arrived = now

    def leave(self) -> None:
        """Training gets the machine back: what passed since it handed over is ours."""
        now = self.clock()
        if self._arrived is not None:
            self.own += now - self._arrived
        self._left, self._arrived = now, None

    def fits(self, cost: float) -> bool:
        """Whether a cost still fits into the share."""
        here = 0.0 if self._arrived is None else self.clock() - self._arrived  # a trial just now, say
        own = self.own + here + cost
        return own <= self.share * (self.training + own)

    def trial_due(self) -> bool:
        """Whether the small trial fits, if it costs no more than a training step."""
        return not self.tried and bool(self._steps) and self.fits(statistics.median(self._steps))

    def due(self) -> bool:
        """Whether a measurement fits."""
        if self.expected is None or not self.fits(self.expected):
            return False
        # what was saved up is spent over some time, and not on one moment
        return self._measured_at is None or self.training - self._measured_at >= 0.5 * self.expected / self.share

    def expect(self, seconds: float) -> None:
        """What the trial says of a whole measurement."""
        self._expected = seconds

    def cost(self, seconds: float) -> None:
        """What a measurement took."""
        self._costs.append(seconds)
        self._measured_at = self.training
