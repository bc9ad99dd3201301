"""Vectors of texts at every layer, and scores of them with one value per text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.studies.shared.models import Request, kept_arrays, most_tokens, reduce_prompts

FOLDS = 5
_PENALTIES = (0.001, 0.01, 0.1, 1.0)  # of the mean squared length of centered vectors


def vectors_of(
    request: Request, model: LoadedModel, texts: Sequence[str], name: str, bar: Progress, *more: str
) -> dict[str, np.ndarray]:
    """`vectors` of texts, and what else is asked for (see `reduce_prompts`), from the work folder
    if they are there."""

    def measure() -> dict[str, np.ndarray]:
        ids = model.tokenize(list(texts), most_tokens(request, model)).ids
        return reduce_prompts(model, ids, request.final_norm, bar, "vectors", *more)

    return kept_arrays(request.work / f"{name}.safetensors", measure, bar, len(texts))


def reciprocal_ranks(changed: np.ndarray, whole: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """1 / rank of each text among all distinct ones by cosine, asked with its changed copy:
    (layers, texts).

    Vectors are (layers, texts, D), centered on the whole texts. A copy of the same text is as good
    as the text itself.
    """
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    own = np.array([number[text] for text in texts])
    _, first = np.unique(own, return_index=True)
    out = np.full(whole.shape[:2], np.nan)
    for layer, (asked, answers) in enumerate(zip(changed, whole, strict=True)):
        if not (np.isfinite(asked).all() and np.isfinite(answers).all()):
            continue
        mean = answers.mean(0)
        a, b = (_unit(rows - mean) for rows in (asked, answers[first]))
        similar = a @ b.T
        mine = similar[np.arange(len(own)), own][:, None]
        before = (similar > mine).sum(1) + ((similar == mine).sum(1) - 1) / 2
        out[layer] = 1 / (1 + before)
    return out


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)


def probe_hits(
    vectors: np.ndarray, changed: Sequence[np.ndarray], labels: np.ndarray, folds: np.ndarray
) -> list[np.ndarray]:
    """Whether a linear probe puts each text right, (layers, texts) for the texts and for every
    changed copy of them.

    The probe is ridge regression on class indicators, trained on the unchanged texts of the other
    folds alone; classes count the same. Its penalty is the one with the smallest error on the last
    of the training folds.
    """
    classes = np.unique(labels)
    goal = (labels[:, None] == classes).astype(float)
    sides = [vectors, *changed]
    hits = [np.full(vectors.shape[:2], np.nan) for _ in sides]
    for layer in range(len(vectors)):
        rows = [torch.from_numpy(side[layer]).double() for side in sides]
        if not all(bool(torch.isfinite(one).all()) for one in rows):
            continue
        for fold in np.unique(folds):
            train = folds != fold
            test = folds == fold
            inner = int(np.unique(folds[train])[-1])
            weights = _fit(rows[0], goal, labels, train, train & (folds == inner))
            for side, one in enumerate(rows):
                predicted = _with_constant(one[torch.from_numpy(test)], *weights[1:]) @ weights[0]
                hits[side][layer, test] = classes[predicted.numpy().argmax(1)] == labels[test]
    return hits


def _fit(
    rows: torch.Tensor, goal: np.ndarray, labels: np.ndarray, train: np.ndarray, held: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def solved(
        which: np.ndarray, penalty: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = rows[torch.from_numpy(which)]
        mean = x.mean(0)
        size = (x - mean).square().sum(1).mean().sqrt().clamp(min=1e-30)
        x = _with_constant(x, mean, size)
        count = np.array([(labels[which] == label).sum() for label in labels[which]])
        share = torch.from_numpy(1 / count)[:, None]
        left = x.T @ (share * x) + penalty * torch.eye(x.shape[1], dtype=x.dtype)
        return torch.linalg.solve(left, x.T @ (share * torch.from_numpy(goal[which]))), mean, size

    def error(penalty: float) -> float:
        weights, mean, size = solved(train & ~held, penalty)
        predicted = _with_constant(rows[torch.from_numpy(held)], mean, size) @ weights
        return float((predicted - torch.from_numpy(goal[held])).square().mean())

    usable = len(np.unique(labels[train & ~held])) == len(np.unique(labels[train]))
    best = min(_PENALTIES, key=error) if usable and held.any() else _PENALTIES[2]
    return solved(train, best)


def _with_constant(rows: torch.Tensor, mean: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    centered = (rows - mean) / size
    return torch.cat([centered, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
