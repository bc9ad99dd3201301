"""Which items train a probe, which choose its learning rate and when it stops, and which judge it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerscope.errors import DataError

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """Positions of the items of each part; no item is in two."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def shuffled(self, seed: int) -> Split:
        """The same parts, each in a random order: neighbours are then as good a batch as any."""
        rng = np.random.default_rng([seed, 3])
        return Split(*(rng.permutation(part) for part in (self.train, self.validation, self.test)))

    def sizes(self) -> dict[str, int]:
        """How many items each part holds."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}


def make_split(
    labels: np.ndarray,
    train: np.ndarray | None = None,
    test: np.ndarray | None = None,
    validation: np.ndarray | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Split:
    """The parts that data come with are kept; missing ones are drawn from the rest, class by class, with the seed.

    `limit` keeps at most so many items of each part, drawn class by class too.
    """
    rng = np.random.default_rng([seed, 0])
    pool = np.arange(len(labels)) if train is None else np.asarray(train)
    if test is None:
        pool, test = _part(pool, labels, TEST_SHARE, rng)
    if limit is not None:
        if limit < 2:
            raise DataError(f"limit must be at least 2 items, not {limit}.")
        pool, test = _at_most(pool, labels, limit, rng), _at_most(np.asarray(test), labels, limit, rng)
    if validation is None:
        pool, validation = _part(pool, labels, VALIDATION_SHARE, rng)
    elif limit is not None:
        validation = _at_most(np.asarray(validation), labels, limit, rng)
    split = Split(*(np.sort(np.asarray(part, dtype=np.int64)) for part in (pool, validation, test)))
    for name, count in split.sizes().items():
        if count == 0:
            raise DataError(f"no items are left for the {name} part of {len(labels)} items. Give more labelled items.")
    seen = np.unique(labels[split.train])
    if len(seen) < 2:
        raise DataError("a probe needs training items of at least two classes.")
    return split


def _part(pool: np.ndarray, labels: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The pool without a share of it, and that share: of every class alike, rounded so that the whole is right."""
    want = max(1, round(share * len(pool)))
    taken = _stratified(pool, labels, want, rng)
    return np.setdiff1d(pool, taken), taken


def _at_most(pool: np.ndarray, labels: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return pool if len(pool) <= most else _stratified(pool, labels, most, rng)


def _stratified(pool: np.ndarray, labels: np.ndarray, want: int, rng: np.random.Generator) -> np.ndarray:
    """`want` items of the pool: every class is dealt out evenly through an order, and the front of it is taken."""
    shuffled = pool[rng.permutation(len(pool))]
    classes = labels[shuffled]
    place = np.empty(len(shuffled))
    for c in np.unique(classes):
        at = np.flatnonzero(classes == c)
        place[at] = (np.arange(len(at)) + rng.random()) / len(at)
    return shuffled[np.argsort(place, kind="stable")[:want]]
