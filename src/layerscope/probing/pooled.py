"""Probes on one vector an item: logistic regression, and the votes of nearest neighbors."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from layerscope.probing.examples import Split
from layerscope.probing.run import RANKED_CLASSES, Predictions

NEIGHBORS = 20
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""The values of scikit-learn's `C` among which the validation part chooses."""


def fit_linear(vectors: np.ndarray, labels: np.ndarray, split: Split, classes: int) -> Predictions:
    """Fit a logistic regression at every layer (layers, items, width), and rank the classes of the
    test items.

    Features are standardized with the training part. Of several strengths of regularization the
    validation part chooses; of equal ones the strongest.
    """
    clock = time.perf_counter()
    ranks = []
    accuracies = []
    strengths = []
    for layer in vectors:
        wide = layer.astype(np.float64)
        rows = StandardScaler().fit(wide[split.train]).transform(wide)
        fits = []
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000)
            model.fit(rows[split.train], labels[split.train])
            shares = class_shares(model, rows[split.validation], classes)
            gold = labels[split.validation]
            accuracy = float((shares.argmax(-1) == gold).mean())
            loss = log_loss(gold, shares, labels=np.arange(classes))
            fits.append((-accuracy, loss, strength, model))
        best = min(fits, key=lambda fit: fit[:3])
        accuracies.append(-best[0])
        strengths.append(best[2])
        ranks.append(rank(class_shares(best[3], rows[split.test], classes)))
    return Predictions(
        np.stack(ranks),
        np.array(accuracies),
        time.perf_counter() - clock,
        strength=np.array(strengths),
    )


def fit_neighbors(
    vectors: np.ndarray, labels: np.ndarray, split: Split, classes: int
) -> Predictions:
    """Let the nearest neighbors by cosine vote at every layer.

    Training and validation items vote on the test items, and training items on validation items.
    """
    clock = time.perf_counter()
    bank = np.concatenate([split.train, split.validation])
    ranks = []
    accuracies = []
    for layer in vectors:
        validated = vote(layer, labels, split.train, split.validation, classes)
        accuracies.append(float((validated[:, 0] == labels[split.validation]).mean()))
        ranks.append(vote(layer, labels, bank, split.test, classes))
    return Predictions(np.stack(ranks), np.array(accuracies), time.perf_counter() - clock)


def vote(
    vectors: np.ndarray, labels: np.ndarray, bank: np.ndarray, items: np.ndarray, classes: int
) -> np.ndarray:
    """Return the classes of some items (items, up to 5), in the order of their neighbors' votes.

    Classes with equal votes are ordered by the sum of their voters' cosines.
    """
    count = min(NEIGHBORS, len(bank))
    exact = vectors.astype(np.float64)  # some layers have cosines that differ by a millionth

    def weigh(distances: np.ndarray) -> np.ndarray:
        # A cosine is at most 1: a thousandth of their mean cannot outweigh a vote.
        return 1 + (1 - distances) / (1000 * count)

    model = KNeighborsClassifier(count, weights=weigh, algorithm="brute", metric="cosine")
    model.fit(exact[bank], labels[bank])
    return rank(class_shares(model, exact[items], classes))


def class_shares(model: Any, rows: np.ndarray, classes: int) -> np.ndarray:
    """Return the probability of each class (rows, classes); 0 for those that a fitted classifier
    does not know."""
    shares = np.zeros((len(rows), classes))
    shares[:, model.classes_] = model.predict_proba(rows)
    return shares


def rank(shares: np.ndarray) -> np.ndarray:
    """Return the likeliest classes (rows, up to 5), the likeliest first."""
    order = np.argsort(-shares, axis=-1, kind="stable")
    return order[:, :RANKED_CLASSES].astype(np.int32)
