"""L-BFGS for many problems at once, with the same steps as scipy's `L-BFGS-B` without bounds.

scikit-learn's logistic regression stops after 100 such steps, long before it has converged on most
layers. A score that is compared with mteb's must therefore take the same path: ten pairs of memory,
the line search of Moré and Thuente, and the same tests for stopping.

Directions are combinations of the stored vectors. Their coefficients depend only on inner products,
which are stored in float64; the vectors themselves are read twice per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MEMORY = 10
# constants of scipy's line search
_DECREASE = 1e-3
_CURVATURE = 0.9
_WIDTH = 0.1
_LARGEST = 1e10
_SEARCHES = 50

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Returns values (b,) in float64 and gradients (b, P) of the chosen problems at points (b, P)."""
Largest = Callable[[Tensor, Tensor], Tensor]
"""Returns the largest absolute entry (b,) of each gradient of the chosen problems."""
Point = tuple[float, float, float]
"""A position on a line, the value there, and the slope there."""


@dataclass(frozen=True)
class Minimum:
    """The end point of each problem, its steps, and True where its gradient was small enough."""

    points: Tensor
    steps: np.ndarray
    converged: np.ndarray


def minimize(
    evaluate: Evaluate,
    largest: Largest,
    count: int,
    size: int,
    device: torch.device,
    *,
    tested: int,
    max_steps: int = 100,
    gradient: float = 1e-4,
    decrease: float = 64 * float(np.finfo(float).eps),
) -> Minimum:
    """Minimize `count` functions of `size` numbers each, from zero.

    `largest` gives the largest absolute entry of gradients, in the coordinates in which it is
    tested: `tested` numbers.
    """
    points = torch.zeros(count, size, device=device)
    steps = np.zeros(count, int)
    converged = np.zeros(count, bool)
    state = _State(evaluate, torch.arange(count, device=device), size, gradient, tested)
    for step in range(max_steps):
        small = state.small(largest)
        ended = small | state.stuck
        if ended.any():
            rows = torch.as_tensor(ended, device=device)
            points[state.problems[rows]] = state.x[rows]
            converged[state.problems.cpu().numpy()[ended]] = small[ended]
            if ended.all():
                return Minimum(points, steps, converged)
            state.keep(~ended)
        steps[state.problems.cpu().numpy()] = step + 1
        state.step(step, decrease)
    converged[state.problems.cpu().numpy()] = state.small(largest)
    points[state.problems] = state.x
    return Minimum(points, steps, converged)


class _State:
    """The unfinished problems. `basis` holds ten steps, ten changes of the gradient, and the
    gradient; `dots` holds the inner products of these."""

    def __init__(
        self, evaluate: Evaluate, problems: Tensor, size: int, gradient: float, tested: int
    ) -> None:
        count = len(problems)
        self.evaluate = evaluate
        self.problems = problems
        self.tolerance = gradient
        self.x = torch.zeros(count, size, device=problems.device)
        self.basis = torch.zeros(count, 2 * MEMORY + 1, size, device=problems.device)
        values, self.basis[:, -1] = evaluate(problems, self.x)
        self.f = values.cpu().numpy()
        self.dots = np.zeros((count, 2 * MEMORY + 1, 2 * MEMORY + 1))
        self.dots[:, -1, -1] = _dot(self.basis[:, -1], self.basis[:, -1])
        self.rho = np.zeros((count, MEMORY))
        self.scale = np.ones(count)
        self.stuck = np.zeros(count, bool)
        # the largest entry of a gradient as a share of its length
        self.share = np.full(count, tested**-0.5)

    def keep(self, chosen: np.ndarray) -> None:
        """Keep only the chosen problems."""
        rows = torch.as_tensor(np.flatnonzero(chosen), device=self.problems.device)
        self.problems = self.problems[rows]
        self.x = self.x[rows]
        self.basis = self.basis[rows]
        for name in ("f", "dots", "rho", "scale", "stuck", "share"):
            setattr(self, name, getattr(self, name)[chosen])

    def small(self, largest: Largest) -> np.ndarray:
        """Return True where the largest entry of a gradient is below the tolerance.

        It is computed only where the gradient's length allows that.
        """
        length = np.sqrt(np.maximum(self.dots[:, -1, -1], 0))
        near = length * self.share <= 1.5 * self.tolerance
        out = np.zeros(len(length), bool)
        if near.any():
            rows = torch.as_tensor(np.flatnonzero(near), device=self.problems.device)
            entries = largest(self.problems[rows], self.basis[rows, -1]).double().cpu().numpy()
            self.share[near] = entries / np.maximum(length[near], 1e-300)
            out[near] = entries <= self.tolerance
        return out

    def direction(self, step: int) -> np.ndarray:
        """Return the coefficients of the direction in the basis: the two loops of L-BFGS on inner
        products."""
        order = [(step - 1 - k) % MEMORY for k in range(min(step, MEMORY))]  # the newest first
        q = np.zeros((len(self.f), 2 * MEMORY + 1))
        alpha = {}
        q[:, -1] = 1.0
        for i in order:
            alpha[i] = self.rho[:, i] * np.einsum("bk,bk->b", self.dots[:, i], q)
            q[:, MEMORY + i] -= alpha[i]
        q /= self.scale[:, None]
        for i in reversed(order):
            q[:, i] += alpha[i] - self.rho[:, i] * np.einsum(
                "bk,bk->b", self.dots[:, MEMORY + i], q
            )
        return -q

    def step(self, step: int, decrease: float) -> None:
        """Take one step in every problem: find a direction, search along it and update the
        basis."""
        device = self.problems.device
        count = len(self.f)
        q = self.direction(step)
        slope = np.einsum("bk,bk->b", q, self.dots[:, -1])
        uphill = slope >= 0
        if uphill.any():  # scipy drops its stored vectors and follows the gradient
            q[uphill] = 0.0
            self.rho[uphill] = 0.0
            self.scale[uphill] = 1.0
            q[uphill, -1] = -1.0
            slope[uphill] = -self.dots[uphill, -1, -1]
        coefficients = torch.as_tensor(q, dtype=torch.float32, device=device)
        d = torch.bmm(coefficients[:, None], self.basis)[:, 0]
        first_lengths = np.ones(count)
        if step == 0:
            first_lengths = 1 / np.sqrt(np.einsum("bi,bij,bj->b", q, self.dots, q))
        searches = [
            _Search(f, s, t)
            for f, s, t in zip(self.f.tolist(), slope.tolist(), first_lengths.tolist(), strict=True)
        ]
        lengths = torch.as_tensor(first_lengths, dtype=torch.float32, device=device)
        x = torch.addcmul(self.x, lengths[:, None], d)
        values, g = self.evaluate(self.problems, x)
        f = values.cpu().numpy()
        slopes = _dot(g, d)
        while active := [
            i
            for i, search in enumerate(searches)
            if not search.ended and not search.done(f[i], slopes[i])
        ]:
            rows = torch.as_tensor(active, device=device)
            lengths = torch.tensor(
                [searches[i].length for i in active], dtype=torch.float32, device=device
            )
            x[rows] = torch.addcmul(self.x[rows], lengths[:, None], d[rows])
            values, gradients = self.evaluate(self.problems[rows], x[rows])
            g[rows] = gradients
            f[active] = values.cpu().numpy()
            slopes[active] = _dot(gradients, d[rows])
        final_lengths = np.array([search.length for search in searches])
        failed = np.array([search.failed for search in searches])
        self.remember(step, q, final_lengths, slope, slopes, x, g)
        settled = self.f - f <= decrease * np.maximum(np.maximum(np.abs(self.f), np.abs(f)), 1)
        self.f = f
        self.stuck = settled | failed

    def remember(
        self,
        step: int,
        q: np.ndarray,
        lengths: np.ndarray,
        slope: np.ndarray,
        slopes: np.ndarray,
        x: Tensor,
        g: Tensor,
    ) -> None:
        """Replace the oldest step and change of the gradient, and update the inner products."""
        i = step % MEMORY
        j = MEMORY + step % MEMORY
        # the step is a combination of the old basis
        with_s = lengths[:, None] * np.einsum("bk,bkl->bl", q, self.dots)
        s_s = lengths * np.einsum("bk,bk->b", with_s, q)
        torch.sub(x, self.x, out=self.basis[:, i])
        y = torch.sub(g, self.basis[:, -1], out=self.basis[:, j])
        old_dots = self.dots[:, -1].copy()
        self.basis[:, -1] = g
        with_g = torch.bmm(g[:, None], self.basis.transpose(1, 2))[:, 0].double().cpu().numpy()
        y_y = _dot(y, y)
        s_y = lengths * (slopes - slope)
        with_y = with_g - old_dots
        with_y[:, -1] = with_g[:, j]
        with_s[:, -1] = with_g[:, i]
        with_s[:, i] = s_s
        with_s[:, j] = s_y
        with_y[:, i] = s_y
        with_y[:, j] = y_y
        for row, values in ((i, with_s), (j, with_y), (2 * MEMORY, with_g)):
            self.dots[:, row] = self.dots[:, :, row] = values
        good = s_y > np.finfo(float).eps * -slope * lengths
        with np.errstate(divide="ignore", invalid="ignore"):
            self.rho[:, i] = np.where(good, 1 / s_y, 0.0)
            self.scale = np.where(good, y_y / s_y, self.scale)
        self.x = x


def _dot(a: Tensor, b: Tensor) -> np.ndarray:
    """Return the inner products of rows."""
    return torch.bmm(a[:, None], b[:, :, None])[:, 0, 0].double().cpu().numpy()


class _Search:
    """A line search of Moré and Thuente along one direction; `length` is the next step to try."""

    def __init__(self, f: float, slope: float, first_length: float) -> None:
        self.f0 = f
        self.slope = slope
        self.test = _DECREASE * slope
        self.length = first_length
        self.count = 0
        self.failed = False
        self.ended = False
        self.best = self.far = (0.0, f, slope)
        self.bracketed = False
        self.stage = 1
        self.low = 0.0
        self.high = 5 * first_length
        self.width = _LARGEST
        self.width_before = 2 * _LARGEST

    def done(self, f: float, slope: float) -> bool:
        """Return True if the search ends at `length`; otherwise set the next `length`."""
        t = self.length
        self.count = self.count + 1
        allowed = self.f0 + t * self.test
        if f <= allowed and abs(slope) <= -_CURVATURE * self.slope:
            self.ended = True
            return True
        at_end = (t >= _LARGEST and f <= allowed and slope <= self.test) or (
            t <= 0 and (f > allowed or slope >= self.test)
        )
        if self.is_narrow() or at_end or self.count >= _SEARCHES or not np.isfinite(f):
            self.failed = not f <= self.f0
            self.ended = True
            return True
        if self.stage == 1 and f <= allowed and slope >= 0:
            self.stage = 2
        if self.stage == 1 and f <= self.best[1] and f > allowed:
            # search on the function minus its expected decrease
            tilted = [
                (a, b - a * self.test, c - self.test)
                for a, b, c in (self.best, self.far, (t, f, slope))
            ]
            best, far = self._next(*tilted)
            self.best, self.far = ((a, b + a * self.test, c + self.test) for a, b, c in (best, far))
        else:
            self.best, self.far = self._next(self.best, self.far, (t, f, slope))
        if self.bracketed:
            if abs(self.far[0] - self.best[0]) >= 0.66 * self.width_before:
                self.length = self.best[0] + 0.5 * (self.far[0] - self.best[0])
            self.width_before = self.width
            self.width = abs(self.far[0] - self.best[0])
            self.low, self.high = sorted((self.best[0], self.far[0]))
        else:
            self.low = self.length + 1.1 * (self.length - self.best[0])
            self.high = self.length + 4 * (self.length - self.best[0])
        self.length = min(max(self.length, 0.0), _LARGEST)
        if self.is_narrow():
            self.length = self.best[0]
        return False

    def is_narrow(self) -> bool:
        """Return True if `length` is at an end of the bracket, or the bracket is narrow."""
        at_end = self.length <= self.low or self.length >= self.high
        return self.bracketed and (at_end or self.high - self.low <= _WIDTH * self.high)

    def _next(self, best: Point, far: Point, current: Point) -> tuple[Point, Point]:
        """Set `length` to the safeguarded cubic or quadratic step; return the new ends of the
        interval."""
        ax, af, ag = best
        bx, _, _ = far
        tx, tf, tg = current
        turned = tg * ag < 0
        secant = tx + tg / (tg - ag) * (ax - tx) if tg != ag else tx
        if tf > af:
            cubic = _cubic(best, current)
            quadratic = ax + ag / ((af - tf) / (tx - ax) + ag) / 2 * (tx - ax)
            to = cubic if abs(cubic - ax) < abs(quadratic - ax) else cubic + (quadratic - cubic) / 2
            self.bracketed = True
        elif turned:
            cubic = _cubic(current, best)
            to = cubic if abs(cubic - tx) > abs(secant - tx) else secant
            self.bracketed = True
        elif abs(tg) < abs(ag):
            cubic = _cubic(current, best)
            if (cubic - tx) * (tx - ax) <= 0:  # it lies on the wrong side
                cubic = self.high if tx > ax else self.low
            nearer = abs(cubic - tx) < abs(secant - tx)
            to = cubic if nearer == self.bracketed else secant
            if self.bracketed:
                limit = tx + 0.66 * (bx - tx)
                to = min(limit, to) if tx > ax else max(limit, to)
            else:
                to = max(self.low, min(self.high, to))
        elif self.bracketed:
            to = _cubic(current, far)
        else:
            to = self.high if tx > ax else self.low
        self.length = float(to)
        return (best, current) if tf > af else (current, best if turned else far)


def _cubic(a: Point, b: Point) -> float:
    """Return the minimum of the cubic through two points with their slopes."""
    ax, af, ag = a
    bx, bf, bg = b
    theta = 3 * (af - bf) / (bx - ax) + ag + bg
    size = max(abs(theta), abs(ag), abs(bg))
    gamma = size * max(0.0, (theta / size) ** 2 - ag / size * (bg / size)) ** 0.5
    if bx < ax:
        gamma = -gamma
    below = 2 * gamma - ag + bg
    return ax + (gamma - ag + theta) / below * (bx - ax) if below else bx
