"""Vectors of texts at every layer, and scores of these vectors with one value per text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.studies.shared.models import (
    Request,
    cached_arrays,
    max_tokens,
    reduce_prompts,
)

FOLDS = 5
_PENALTIES = (0.001, 0.01, 0.1, 1.0)  # of the mean squared length of centered vectors


def vectors_of(
    request: Request, model: LoadedModel, texts: Sequence[str], name: str, bar: Progress, *more: str
) -> dict[str, np.ndarray]:
    """Return `vectors` of texts, and `more` fields (see `reduce_prompts`), from the work folder if
    they are there."""

    def measure() -> dict[str, np.ndarray]:
        ids = model.tokenize(list(texts), max_tokens(request, model)).ids
        return reduce_prompts(model, ids, request.final_norm, bar, "vectors", *more)

    return cached_arrays(request.work / f"{name}.safetensors", measure, bar, len(texts))


def reciprocal_ranks(changed: np.ndarray, whole: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return 1 / rank of each text among all distinct texts by cosine with its changed copy:
    (layers, texts).

    Vectors are (layers, texts, D), centered on the whole texts. A copy of the same text is as good
    as the text itself.
    """
    numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    targets = np.array([numbers[text] for text in texts])
    _, distinct = np.unique(targets, return_index=True)
    ranks = np.full(whole.shape[:2], np.nan)
    for layer, (queries, documents) in enumerate(zip(changed, whole, strict=True)):
        if not (np.isfinite(queries).all() and np.isfinite(documents).all()):
            continue
        mean = documents.mean(0)
        similarities = _unit(queries - mean) @ _unit(documents[distinct] - mean).T
        target = similarities[np.arange(len(targets)), targets][:, None]
        ranks[layer] = (similarities > target).sum(1) + ((similarities == target).sum(1) + 1) / 2
    return 1 / ranks


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)


def probe_hits(
    vectors: np.ndarray, changed: Sequence[np.ndarray], labels: np.ndarray, folds: np.ndarray
) -> list[np.ndarray]:
    """Return the hits of a linear probe, (layers, texts) for the texts and for every changed copy
    of them: 1 where it predicts the label.

    The probe is ridge regression on class indicators, trained on the unchanged texts of the other
    folds alone; classes count the same. Its penalty has the smallest error on the last of the
    training folds.
    """
    classes = np.unique(labels)
    goal = (labels[:, None] == classes).astype(float)
    sides = [vectors, *changed]
    hits = [np.full(vectors.shape[:2], np.nan) for _ in sides]
    for layer in range(len(vectors)):
        rows = [torch.from_numpy(side[layer]).double() for side in sides]
        if not all(bool(torch.isfinite(side_rows).all()) for side_rows in rows):
            continue
        for fold in np.unique(folds):
            train = folds != fold
            test = folds == fold
            validation = folds == int(np.unique(folds[train])[-1])
            probe = _fit(rows[0], goal, labels, train, validation)
            for side_hits, side_rows in zip(hits, rows, strict=True):
                predicted = probe(side_rows[torch.from_numpy(test)]).numpy().argmax(1)
                side_hits[layer, test] = classes[predicted] == labels[test]
    return hits


def _fit(
    rows: torch.Tensor,
    goal: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    validation: np.ndarray,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a linear probe fitted on the training rows; the validation rows choose its penalty."""

    def solve(mask: np.ndarray, penalty: float) -> Callable[[torch.Tensor], torch.Tensor]:
        x = rows[torch.from_numpy(mask)]
        mean = x.mean(0)
        size = (x - mean).square().sum(1).mean().sqrt().clamp(min=1e-30)
        x = _with_constant(x, mean, size)
        counts = np.array([(labels[mask] == label).sum() for label in labels[mask]])
        share = torch.from_numpy(1 / counts)[:, None]
        gram = x.T @ (share * x) + penalty * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(gram, x.T @ (share * torch.from_numpy(goal[mask])))
        return lambda vectors: _with_constant(vectors, mean, size) @ weights

    def error(penalty: float) -> float:
        predicted = solve(train & ~validation, penalty)(rows[torch.from_numpy(validation)])
        return float((predicted - torch.from_numpy(goal[validation])).square().mean())

    # every class must be among the rows that are fitted before validation
    usable = len(np.unique(labels[train & ~validation])) == len(np.unique(labels[train]))
    return solve(train, min(_PENALTIES, key=error) if usable else _PENALTIES[2])


def _with_constant(rows: torch.Tensor, mean: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    centered = (rows - mean) / size
    return torch.cat([centered, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
