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

CLASS_PENALTY = 3.0
CLASS_SHARE = 0.6
ENOUGH_LABELS = 128
"""How labels shape a head: the penalty of the probe that they train, the size of its answers
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
        """Map vectors (…, D) to (…, K), in double precision."""
        mapped = vectors.astype(np.float64) - self.mean
        if self.matrix is not None:
            mapped = mapped @ self.matrix
        return mapped if self.shift is None else mapped + self.shift

    @property
    def weight(self) -> np.ndarray:
        """(K, D), as a dense layer has it; the identity for a mean alone."""
        if self.matrix is None:
            return np.eye(len(self.mean))
        return np.ascontiguousarray(self.matrix.T)

    @property
    def bias(self) -> np.ndarray:
        """(K,), as a dense layer has it."""
        return self(np.zeros(len(self.mean)))


def make_target(*teachers: np.ndarray, width: int = WIDTH) -> np.ndarray:
    """Return the target of a head (texts, K): the teachers' vectors, each centered and of length 1,
    side by side.

    Inner products then are the mean of the teachers' similarities. Only the `width` main directions
    are kept.
    """
    normalized = [
        unit(rows.astype(np.float64) - rows.mean(0, dtype=np.float64)) for rows in teachers
    ]
    joined = np.concatenate(normalized, axis=1) / np.sqrt(len(normalized))
    joined = joined - joined.mean(0)
    if joined.shape[1] <= width:
        return joined
    _, directions = np.linalg.eigh(joined.T @ joined)
    return joined @ directions[:, ::-1][:, :width]


def with_classes(head: Head, texts: np.ndarray, labeled: np.ndarray, classes: np.ndarray) -> Head:
    """Return a head whose vectors also say of which class a text seems to be, by a probe of the
    head's own vectors.

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
    vectors = head(texts)
    size = np.sqrt((vectors**2).sum() / max(float(((vectors @ probe) ** 2).sum()), 1e-30))
    share = CLASS_SHARE * min(1.0, len(classes) / ENOUGH_LABELS)
    extended = np.concatenate([np.eye(len(probe)), share * size * probe], axis=1)
    return Head(head.mean, head.matrix @ extended, head.fitted_on)


class Ridge:
    """The regression from vectors (texts, D) to a target (texts, K), with one penalty, and its
    predictions of texts left out.

    What a regression would have predicted without some of its texts follows from the one with all
    of them. So heads are judged on texts that they were not fitted on, and no text is lost to the
    fit.
    """

    def __init__(self, vectors: np.ndarray, target: np.ndarray, penalty: float = PENALTY) -> None:
        self.mean = vectors.mean(0, dtype=np.float64)
        self.target = target - target.mean(0)
        rows = vectors.astype(np.float64) - self.mean
        count, width = rows.shape
        # of fewer texts than features the directions that the texts span are enough
        gram = rows @ rows.T if count < width else rows.T @ rows
        scale = max(float(gram.trace()) / width, 1e-30)
        values, self.basis = np.linalg.eigh(gram)
        values = np.maximum(values, 0)
        if count < width:
            self.basis = rows.T @ (self.basis / np.sqrt(np.maximum(values, 1e-12 * scale)))
        self.turned = rows @ self.basis
        self.shrink = 1 / (values + penalty * scale)
        self.solved = self.shrink[:, None] * (self.turned.T @ self.target)
        self.residual = self.target - self.turned @ self.solved
        # the share of a text's prediction that is not its own doing; the mean's part is taken off
        free = np.maximum(1 - (self.turned**2) @ self.shrink, 1e-9)
        self.free = np.maximum(free - 1 / count, 1e-9)

    def head(self) -> Head:
        """Return the head, fitted on all texts."""
        return Head(self.mean, self.basis @ self.solved)

    def unseen(self) -> np.ndarray:
        """Return every text's prediction (texts, K) by the head fitted on all others, and centered
        on them."""
        share = 1 / max(len(self.target) - 1, 1)
        predicted = self.target - self.residual / self.free[:, None]
        return np.asarray(predicted + share * self.target)

    def unseen_similarities(self, block: int = 512) -> np.ndarray:
        """Return the cosine of every two texts (texts, texts), each pair by a head that was fitted
        without both; the diagonal means nothing.

        With hat matrix H, that of the mean included, and residuals r, leaving out texts i and j
        changes their predictions to y − (I − H)⁻¹ r of the two, less the mean of the others'
        targets. With the mean of all, the others would tell what was left out: what they lack of
        zero.
        """
        count = len(self.target)
        target = self.target
        residual = self.residual
        turned = self.turned
        free = self.free
        y = (target**2).sum(1)
        z = (target * residual).sum(1)
        r = (residual**2).sum(1)
        share = 1 / max(count - 2, 1)
        cosines = np.empty((count, count), dtype=np.float32)
        for start in range(0, count, block):  # i runs over some rows, j over all columns
            i = slice(start, start + block)
            hat = (turned[i] * self.shrink) @ turned.T + 1 / count
            a = free[i, None]
            b = free[None, :]
            y_i = y[i, None]
            z_i = z[i, None]
            r_i = r[i, None]
            det = np.maximum(a * b - hat**2, 1e-12 * a * b)
            yy = target[i] @ target.T
            yr = target[i] @ residual.T
            ry = residual[i] @ target.T
            rr = residual[i] @ residual.T
            # products of targets y and errors e, of i first; y_i e_i and y_j e_j
            ye = (a * yr + hat * z_i) / det
            ey = (b * ry + hat * z) / det
            ye_i = (b * z_i + hat * yr) / det
            ye_j = (a * z + hat * ry) / det
            ee = (hat * (b * r_i + a * r) + (a * b + hat**2) * rr) / det**2
            ee_i = (b**2 * r_i + 2 * b * hat * rr + hat**2 * r) / det**2
            ee_j = (a**2 * r + 2 * a * hat * rr + hat**2 * r_i) / det**2
            # and of the mean of the others' targets, less its sign, s = share (y of i + y of j)
            s_i = share * (y_i + yy - ye_i - ey)
            s_j = share * (yy + y - ye - ye_j)
            ss = share**2 * (y_i + 2 * yy + y)
            product = yy - ye - ey + ee + s_i + s_j + ss
            square_i = ee_i + y_i - 2 * ye_i + 2 * s_i + ss
            square_j = ee_j + y - 2 * ye_j + 2 * s_j + ss
            lengths = np.sqrt(np.maximum(square_i, 1e-30) * np.maximum(square_j, 1e-30))
            cosines[i] = product / lengths
        return cosines


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
