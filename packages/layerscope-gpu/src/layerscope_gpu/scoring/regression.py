"""Accuracy of logistic regressions, as mteb fits them: few texts per label, several draws, 100
steps of L-BFGS.

The objective is scikit-learn's: the mean of the log losses plus ½ |W|² / n, without a penalty on
intercepts, with one set of weights per label (one in all for two labels). Steps from zero stay in
the span of the training vectors. Where there are fewer vectors than dimensions, the fit runs in an
orthonormal basis of that span: the same path, with smaller matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerscope_gpu.scoring.lbfgs import MEMORY, Minimum, minimize

# Smaller probabilities count as zero on a CPU: products of numbers below 1e-38 made some fits five
# times as slow.
_LEAST = 1e-30
_CPU_BYTES = 2**26  # of fits at once on a CPU: more do not fit into its caches


@dataclass(frozen=True)
class Classification:
    """Texts to classify, and draws of training texts, as numbers of rows; labels are integers."""

    train: tuple[np.ndarray, ...]
    train_labels: tuple[np.ndarray, ...]
    test: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True)
class Classified:
    """Accuracies (layers,), the share of draws in which each text was classified right (layers,
    texts), and the share of fits that converged."""

    scores: np.ndarray
    items: np.ndarray
    converged: float


def classify(
    vectors: Tensor, problem: Classification, *, memory: int = 2**28, max_steps: int = 100
) -> Classified:
    """Return the mean accuracy over draws of every layer of `vectors` (layers, texts, D)."""
    layers, _, width = vectors.shape
    memory = min(memory, _CPU_BYTES) if vectors.device.type == "cpu" else memory
    right = torch.zeros(layers, len(problem.test), device=vectors.device)
    test = _rows(problem.test, vectors)
    gold = _rows(problem.test_labels, vectors)
    converged: list[np.ndarray] = []
    for draws in _same_shape(problem):  # rare labels may make a draw smaller than others
        rows = torch.stack([_rows(problem.train[i], vectors) for i in draws])
        labels = torch.stack([_rows(problem.train_labels[i], vectors) for i in draws])
        classes, codes = torch.unique(labels, return_inverse=True)
        count = len(classes)
        size = rows.shape[1]
        numbers = 4 * (2 * MEMORY + 8) * count * min(size, width) + 12 * size * width
        at_once = int(max(1, memory // (len(draws) * numbers)))
        for start in range(0, layers, at_once):
            layer_vectors = vectors[start : start + at_once]
            weights, ended = fit(
                layer_vectors[:, rows].flatten(0, 1),
                codes.repeat(len(layer_vectors), 1),
                count,
                max_steps,
            )
            converged.append(ended.converged)
            weights = weights.unflatten(0, (len(layer_vectors), len(draws)))
            for i, layer in enumerate(layer_vectors):
                logits = torch.einsum("nd,kdc->knc", layer[test], weights[i, :, :-1])
                logits = logits + weights[i, :, -1:]
                guess = (logits[..., 0] > 0).long() if count == 2 else logits.argmax(-1)
                right[start + i] += (classes[guess] == gold).float().sum(0)
    items = (right.double() / len(problem.train)).cpu().numpy()
    return Classified(items.mean(1), items, float(np.concatenate(converged).mean()))


def fit(x: Tensor, codes: Tensor, classes: int, max_steps: int = 100) -> tuple[Tensor, Minimum]:
    """Fit vectors (fits, n, D) to codes of labels (fits, n); return weights (fits, D + 1, classes),
    the intercept last, and the minima."""
    fits, n, width = x.shape
    basis = None
    if n < width:
        basis, lower = torch.linalg.qr(x.transpose(1, 2))
        x = lower.transpose(1, 2).contiguous()
    x = torch.cat([x, x.new_ones(fits, n, 1)], 2)  # the intercept is the weight of a constant
    size = x.shape[2]
    if classes > 2:
        columns = classes
        goal = torch.nn.functional.one_hot(codes, classes).float()
    else:
        columns = 1
        goal = codes[..., None].float()

    def evaluate(problems: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        rows, targets = (x, goal) if len(problems) == fits else (x[problems], goal[problems])
        weights = points.view(-1, size, columns)
        logits = torch.bmm(rows, weights)
        if columns == 1:
            losses = torch.nn.functional.softplus(logits) - targets * logits
            residual = torch.sigmoid(logits)
        else:
            logs = torch.log_softmax(logits, 2)
            losses = -(logs * targets).sum(2)
            residual = logs.exp_()
        if x.device.type == "cpu":
            torch.threshold_(residual, _LEAST, 0.0)
        norms = weights[:, :-1].flatten(1).square().sum(1).double()
        values = losses.flatten(1).mean(1, dtype=torch.float64) + norms / (2 * n)
        gradient = torch.bmm(rows.transpose(1, 2), residual.sub_(targets).div_(n))
        gradient[:, :-1].add_(weights[:, :-1], alpha=1 / n)
        return values, gradient.view_as(points)

    def largest(problems: Tensor, gradients: Tensor) -> Tensor:
        entries = gradients.view(-1, size, columns)
        free = entries if basis is None else basis[problems] @ entries[:, :-1]
        return torch.maximum(free.abs().amax((1, 2)), entries[:, -1].abs().amax(1))

    tested = (width + 1) * columns
    ended = minimize(
        evaluate, largest, fits, size * columns, x.device, tested=tested, max_steps=max_steps
    )
    weights = ended.points.view(fits, size, columns)
    if basis is not None:
        weights = torch.cat([basis @ weights[:, :-1], weights[:, -1:]], 1)
    return weights, ended


def _same_shape(problem: Classification) -> list[list[int]]:
    """Return groups of draws with the same number of texts and the same labels."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for i, (rows, labels) in enumerate(zip(problem.train, problem.train_labels, strict=True)):
        groups.setdefault((len(rows), np.unique(labels).tobytes()), []).append(i)
    return list(groups.values())


def _rows(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.long, device=like.device)
