"""A head: a linear map of pooled vectors, fitted without labels so that similarities agree with
those of a teacher.

The teacher is a better but costlier reading of the same texts. Its vectors are what a ridge
regression from the plain reading of a layer predicts, in closed form. A head without a matrix
subtracts a mean and does nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["LEAST_TEXTS", "Ridge", "make_target"]

PENALTY = 0.03
"""The strength of the ridge penalty, in units of the mean squared length of a feature over the
texts.

Scores hardly change from 0.01 to 0.1; what predicts the teacher's vectors best on texts left out is
ten times as strong, and worse (`benchmarks/results/heads.md`).
"""

WIDTH = 256
"""The most numbers that a vector has after a head: the teacher's similarities hardly need more
directions."""

LEAST_TEXTS = 200
"""Fewer texts than this fit no head: on 100, some tasks end below where they began
(`benchmarks/results/heads.md`)."""


CLASS_PENALTY, CLASS_SHARE, ENOUGH_LABELS = 3.0, 0.6, 128
"""How labels shape a head: the penalty of the probe that they train, the size of what it says
relative to the rest of a vector, and the number of labels from which on it counts so much; fewer
count less (`benchmarks/results/heads.md`)."""


@dataclass(frozen=True)
class Head:
    """`mean` (D,) is subtracted, then `matrix` (D, K) is applied if there is one, and `shift` (K,)
    added if there is one.

    `fitted_on` says over which texts.
    """

    mean: np.ndarray
    matrix: np.ndarray | None = None
    fitted_on: str = ""
    shift: np.ndarray | None = None

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors (…, D) to (…, K), in double precision."""
        centered = vectors.astype(np.float64) - self.mean
        mapped = centered if self.matrix is None else centered @ self.matrix
        return mapped if self.shift is None else mapped + self.shift

    @property
    def weight(self) -> np.ndarray:
        """(K, D), as a dense layer has it; the identity for a mean alone."""
        return (
            np.eye(len(self.mean)) if self.matrix is None else np.ascontiguousarray(self.matrix.T)
        )

    @property
    def bias(self) -> np.ndarray:
        """(K,), as a dense layer has it."""
        return self(np.zeros(len(self.mean)))


def make_target(*teachers: np.ndarray, width: int = WIDTH) -> np.ndarray:
    """What a head should give (texts, K): the teachers' vectors, each centered and of length 1,
    side by side.

    Inner products then are the mean of the teachers' similarities. Only the `width` main directions
    are kept.
    """
    each = [unit(given.astype(np.float64) - given.mean(0, dtype=np.float64)) for given in teachers]
    joined = np.concatenate(each, axis=1) / np.sqrt(len(each))
    joined = joined - joined.mean(0)
    if joined.shape[1] <= width:
        return joined
    _, directions = np.linalg.eigh(joined.T @ joined)
    return joined @ directions[:, ::-1][:, :width]


def with_classes(head: Head, texts: np.ndarray, labeled: np.ndarray, classes: np.ndarray) -> Head:
    """A head whose vectors also say of which class a text seems to be, by a probe of the head's own
    vectors.

    `texts` (n, D) are those that the head was fitted on, `labeled` (m, D) others with the numbers
    of their `classes` (m,). The fewer labels there are, the less they count.

    >>> head = Head(np.zeros(2), np.eye(2))
    >>> with_classes(head, np.eye(2), np.array([[1.0, 0], [-1, 0]]), np.array([0, 1])).matrix.shape
    (2, 4)
    """
    assert head.matrix is not None
    goal = np.eye(int(classes.max()) + 1)[classes]
    probe = Ridge(head(labeled), goal, CLASS_PENALTY).head().matrix
    assert probe is not None
    known = head(texts)
    size = np.sqrt((known**2).sum() / max(float(((known @ probe) ** 2).sum()), 1e-30))
    share = CLASS_SHARE * min(1.0, len(classes) / ENOUGH_LABELS)
    return Head(
        head.mean,
        head.matrix @ np.concatenate([np.eye(len(probe)), share * size * probe], axis=1),
        head.fitted_on,
    )


class Ridge:
    """The regression from vectors (texts, D) to a target (texts, K), with one penalty, and what it
    says of texts left out.

    What a regression would have predicted without some of its texts follows from the one with all
    of them. So heads are judged on texts that they were not fitted on, and no text is lost to the
    fit.
    """

    def __init__(self, vectors: np.ndarray, target: np.ndarray, penalty: float = PENALTY) -> None:
        self.mean = vectors.mean(0, dtype=np.float64)
        self.rows, self.target = vectors.astype(np.float64) - self.mean, target - target.mean(0)
        count, width = self.rows.shape
        # of fewer texts than features the directions that the texts span are enough
        gram = self.rows @ self.rows.T if count < width else self.rows.T @ self.rows
        self.unit = max(float(gram.trace()) / width, 1e-30)
        values, self.basis = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0)
        if len(gram) < width:
            self.basis = self.rows.T @ (
                self.basis / np.sqrt(np.maximum(self.values, 1e-12 * self.unit))
            )
        self.turned, self.shrink = self.rows @ self.basis, 1 / (self.values + penalty * self.unit)
        cross = self.turned.T @ self.target
        self.solved = self.shrink[:, None] * cross
        self.rest = self.target - self.turned @ self.solved  # what is left unexplained
        self.free = np.maximum(
            1 - (self.turned**2) @ self.shrink, 1e-9
        )  # what is not a text's own doing in its prediction

    def head(self) -> Head:
        """The head, fitted on all texts."""
        return Head(self.mean, self.basis @ self.solved)

    def unseen(self) -> np.ndarray:
        """Every text's prediction (texts, K) by the head fitted on all others, and centered on
        them."""
        n, y = len(self.target), self.target
        return np.asarray(
            y - self.rest / np.maximum(self.free - 1 / n, 1e-9)[:, None] + y / max(n - 1, 1)
        )

    def unseen_similarities(self, block: int = 512) -> np.ndarray:
        """The cosine of every two texts (texts, texts) by the head fitted on neither of them; the
        diagonal means nothing.

        With hat matrix H, that of the mean included, and residuals r, leaving out texts i and j
        changes their predictions to y − (I − H)⁻¹ r of the two, less the mean of the others'
        targets. With the mean of all, the others would tell what was left out: what they lack of
        zero.
        """
        n = len(self.target)
        target, rest, turned = self.target, self.rest, self.turned
        free = np.maximum(self.free - 1 / n, 1e-9)
        y, z, r = (target**2).sum(1), (target * rest).sum(1), (rest**2).sum(1)
        out, share = np.empty((n, n), dtype=np.float32), 1 / max(n - 2, 1)
        for start in range(0, n, block):  # i runs over some rows, j over all columns
            i = slice(start, start + block)
            hat = (turned[i] * self.shrink) @ turned.T + 1 / n
            a, b = free[i, None], free[None, :]
            det = np.maximum(a * b - hat**2, 1e-12 * a * b)
            yy, yr, ry, rr = (
                target[i] @ target.T,
                target[i] @ rest.T,
                rest[i] @ target.T,
                rest[i] @ rest.T,
            )
            # products of targets y and errors e, of i first
            ye, ey = (a * yr + hat * z[i, None]) / det, (b * ry + hat * z[None, :]) / det
            own, other = (b * z[i, None] + hat * yr) / det, (a * z[None, :] + hat * ry) / det
            errors = (hat * (b * r[i, None] + a * r[None, :]) + (a * b + hat**2) * rr) / det**2
            mine = (b**2 * r[i, None] + 2 * b * hat * rr + hat**2 * r[None, :]) / det**2
            theirs = (a**2 * r[None, :] + 2 * a * hat * rr + hat**2 * r[i, None]) / det**2
            # and of the mean of the others' targets, less its sign, s = share (y of i + y of j)
            si, sj = share * (y[i, None] + yy - own - ey), share * (yy + y[None, :] - ye - other)
            ss = share**2 * (y[i, None] + 2 * yy + y[None, :])
            product = yy - ye - ey + errors + si + sj + ss
            mine += y[i, None] - 2 * own + 2 * si + ss
            theirs += y[None, :] - 2 * other + 2 * sj + ss
            out[i] = product / np.sqrt(np.maximum(mine, 1e-30) * np.maximum(theirs, 1e-30))
        return out


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
