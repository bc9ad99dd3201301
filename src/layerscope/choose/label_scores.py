"""Scores of every layer under every readout on labeled examples.

Three kinds of labels: texts with classes (a cross-validated ridge probe, and cosines), pairs that
belong together or not, and pairs with a score (both by cosines).

With n examples a linear probe lives in the n × n matrix of inner products. From the inverse of that
matrix plus the penalty, the predictions for any part that was left out follow without fitting
again, so that repeated cross-validation of thousands of (layer, readout) candidates takes seconds:
docs/decisions/a-probe-in-closed-form.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from layerscope.choose.labels import Labeled
from layerscope.core.readout import Readout
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import average_precision, bootstrap_weights, spearman

__all__ = ["stratified_folds"]

FOLDS = 5
OUTER = 3
"""Folds of the rounds that judge a choice: it is made on two thirds of the examples and measured on
the third."""

_PAIR_ROUNDS = 20  # repetitions of the rounds: pairs train nothing
_FITS = 512
"""About how many examples all repetitions together predict, so that many examples do not take many
times longer."""

PENALTIES = (0.01, 0.1, 1.0)
"""In units of the mean squared length of the centered vectors; the choice among them is by
leave-one-out error."""

_EXACT = 160
"""Up to so many examples in double precision. Above, single is enough, since the penalty bounds the
condition, and quicker."""

WIDTH = 0.5
"""Standard deviation of the average over layers, in layers of a 30-block model; less for shallower
ones."""

LABELS_SHARE = 2.0
"""The weight of labels next to an encoder: they are about the task itself."""

VectorSource = Callable[[Readout], np.ndarray]
"""From a readout to vectors (layers, texts, D), the texts in the order of `Labeled.texts`."""


# Folds, probes and neighbors
# ------------------------------------------------------------------------------------------------


def stratified_folds(labels: np.ndarray, folds: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Return fold numbers (n,) for each repetition.

    >>> folds = stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3, 1, 0)[0]
    >>> np.bincount(folds).tolist()
    [2, 2, 2]
    """
    rng = np.random.default_rng([seed, len(labels), folds])
    repetitions = []
    for _ in range(repeats):
        # a class goes on where the one before ended, so that folds are of one size
        order = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
        assigned = np.empty(len(labels), dtype=np.int64)
        assigned[np.concatenate(order)] = np.arange(len(labels)) % folds
        repetitions.append(assigned)
    return repetitions


def grams(vectors: np.ndarray) -> Tensor:
    """Return inner products (layers, n, n) of centered vectors (layers, n, D).

    They are scaled to a mean of 1 on the diagonal.
    """
    rows = torch.from_numpy(np.ascontiguousarray(vectors))
    dtype = torch.float64 if rows.shape[1] <= _EXACT else torch.float32
    rows = (rows - rows.mean(1, keepdim=True, dtype=torch.float64)).to(dtype)
    product = rows @ rows.transpose(1, 2)
    return product / product.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)


class Probe:
    """Probes for targets (n, k) on inner products (layers, n, n).

    `weights` say how much each example counts in the fit.
    """

    def __init__(
        self,
        gram: Tensor,
        targets: np.ndarray,
        weights: np.ndarray,
        penalties: Sequence[float] = PENALTIES,
    ) -> None:
        self.goal = torch.from_numpy(targets).to(gram.dtype)
        self.shares = torch.from_numpy(weights).to(gram.dtype)
        # the constant is an intercept that is penalized like any feature
        systems = [gram + 1.0 + torch.diag(penalty / self.shares) for penalty in penalties]
        self._inverses = [
            torch.cholesky_inverse(torch.linalg.cholesky(system)) for system in systems
        ]

    def left_out(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """Return predictions (splits, layers, n, k) by probes that have not seen an example's fold.

        `splits` are fold numbers.
        """
        best = _best_penalties(self._inverses, self.goal, self.shares)
        return _cross_validate(_take(self._inverses, best), self.goal, splits).numpy()

    def without(
        self, test: np.ndarray, splits: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions by probes that have not seen the labels of some examples.

        The first are cross-validated among the rest (splits, layers, rest, k), whose fold numbers
        `splits` are. The second are of the examples left out (layers, test, k).
        """
        tested = torch.from_numpy(np.flatnonzero(test))
        remaining = torch.from_numpy(np.flatnonzero(~test))
        smaller = []
        predicted = []
        for inverse in self._inverses:
            across = inverse[:, remaining][:, :, tested]
            corner = inverse[:, tested][:, :, tested]
            solved = torch.linalg.solve(corner, across.transpose(1, 2))
            smaller.append(inverse[:, remaining][:, :, remaining] - across @ solved)
            residual = torch.linalg.solve(corner, (inverse @ self.goal)[:, tested])
            predicted.append(self.goal[tested] - residual)
        goal = self.goal[remaining]
        best = _best_penalties(smaller, goal, self.shares[remaining])
        inner = _cross_validate(_take(smaller, best), goal, splits)
        return inner.numpy(), _take(predicted, best).numpy()


def _best_penalties(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    """Return the number of the penalty with the smallest leave-one-out error for each layer."""
    errors = []
    for inverse in inverses:
        residual = (inverse @ goal) / inverse.diagonal(dim1=1, dim2=2)[..., None]
        errors.append((residual**2 * shares[:, None]).sum((1, 2)))
    return torch.stack(errors).argmin(0)


def _take(matrices: Sequence[Tensor], numbers: Tensor) -> Tensor:
    """Return one of the matrices for each layer."""
    return torch.stack([matrices[int(number)][layer] for layer, number in enumerate(numbers)])


def _cross_validate(inverse: Tensor, goal: Tensor, splits: Sequence[np.ndarray]) -> Tensor:
    """Return predictions (splits, layers, n, k) of examples by probes without their fold.

    Prediction = target − residual, and the residual of a fold is (inverse on that fold)⁻¹ × its
    dual weights.
    """
    dual = inverse @ goal
    predicted = torch.empty((len(splits), *dual.shape), dtype=dual.dtype)
    for split, folds in enumerate(splits):
        for fold in np.unique(folds):
            rows = torch.from_numpy(np.flatnonzero(folds == fold))
            residual = torch.linalg.solve(inverse[:, rows][:, :, rows], dual[:, rows])
            predicted[split][:, rows] = goal[rows] - residual
    return predicted


def separation(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return how well each example is told from other classes (layers, n).

    From predictions (repetitions, layers, n, k): the share of the examples of other classes that
    have less of an example's class than it has itself.
    """
    different = targets[:, None] != targets[None, :]
    count = different.sum(0)
    examples = np.arange(len(targets))
    total = np.zeros(predicted.shape[1:3])
    for repetition in predicted:
        # [l, m, n]: how much example m has of n's class; and how much n has of it
        other_classes = repetition[..., targets]
        own_class = repetition[:, None, examples, targets]
        ahead = ((other_classes < own_class) + 0.5 * (other_classes == own_class)) * different
        total += (ahead.sum(-2) + 0.5 * (count == 0)) / np.maximum(count, 1)
    return total / len(predicted)


def neighbor_order(gram: np.ndarray) -> np.ndarray:
    """Return each example's neighbors from the farthest by cosine, of inner products (layers, n,
    n)."""
    size = np.sqrt(np.maximum(gram.diagonal(axis1=1, axis2=2), 1e-30))
    cosines = (gram / (size[:, :, None] * size[:, None, :])).astype(np.float32)
    return np.argsort(cosines, axis=-1, kind="stable")


def neighbor_separation(
    order: np.ndarray, targets: np.ndarray, anchors: np.ndarray, among: np.ndarray
) -> np.ndarray:
    """Return how well each anchor is told from other classes (layers, anchors).

    It is the share of pairs, one of the anchor's class and one of another, in which the former is
    nearer. The pairs are `among` some examples. An anchor alone in its class has none: it takes the
    others' mean, and so decides nothing.
    """
    order = order[:, anchors]
    own_class = np.flatnonzero(anchors)[:, None]
    is_counted = among[order]
    is_alike = targets[order] == targets[own_class]
    same_class = is_alike & is_counted & (order != own_class)
    other_class = ~is_alike & is_counted
    pairs = same_class.sum(-1) * other_class.sum(-1)
    ahead = (np.cumsum(other_class, axis=-1) * same_class).sum(-1)
    with np.errstate(invalid="ignore"):
        share = np.where(pairs > 0, ahead / pairs, np.nan)
    is_defined = np.isfinite(share[0])
    if not is_defined.any():
        return np.full_like(share, 0.5)
    return np.where(is_defined, share, share[:, is_defined].mean(-1, keepdims=True))


# Measures by labels
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contributions:
    """The contribution of each example to the score (layers, n); NaN where a layer is undefined.

    `rounds` (rounds, layers, n) is there where something is trained: the same without the examples
    that a round tests, and, for those, how they are then judged. `accuracy` (layers, n) is there
    for classes: how often each example was put right.
    """

    judged: np.ndarray
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None


class LabelMeasure:
    """The way of judging vectors by one kind of labels.

    `tested` (rounds, n) says which examples a round leaves out of the choice: every example in one
    round of each repetition. Vectors are in the order of `Labeled.texts`.
    """

    def __init__(self, labeled: Labeled, seed: int = 0) -> None:
        self.kind = labeled.kind
        self.targets = targets = labeled.targets
        self.seed = seed
        place = {text: i for i, text in enumerate(labeled.texts)}
        self.sides = [np.array([place[text] for text in side]) for side in labeled.sides]
        self.repeats = int(np.clip(_FITS // len(targets), 1, 4))
        strata = np.zeros(len(targets)) if labeled.groups is None else labeled.groups
        repeats = self.repeats if self.kind == "classification" else _PAIR_ROUNDS
        splits = stratified_folds(strata, OUTER, repeats, seed)
        self.tested = np.stack([folds == fold for folds in splits for fold in range(OUTER)])

    @property
    def name(self) -> str:
        """The name of the score."""
        names = {"classification": "auc", "pairs": "average_precision", "scores": "spearman"}
        return names[self.kind]

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return the contributions, from vectors (layers, texts, D)."""
        if self.kind == "classification":
            return self._classify(vectors[:, self.sides[0]])
        first_side, second_side = (vectors[:, side].astype(np.float64) for side in self.sides)
        sizes = np.linalg.norm(first_side, axis=-1) * np.linalg.norm(second_side, axis=-1)
        return Contributions(
            np.einsum("lnd,lnd->ln", first_side, second_side) / np.maximum(sizes, 1e-30)
        )

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return scores (layers, draws) of contributions (layers, n) under weights (draws, n).

        An example that counts twice is two equal ones.
        """
        if self.kind == "classification":
            return judged.astype(np.float64) @ (weights / weights.sum(1, keepdims=True)).T
        rule = average_precision if self.kind == "pairs" else spearman
        return rule(judged, self.targets.astype(np.float64), weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return the score (draws,) to expect of vectors that know nothing of the labels."""
        if self.kind != "pairs":
            return np.full(len(weights), 0.5 if self.kind == "classification" else 0.0)
        # the mean over random orders: for few pairs it is above the share that belongs together
        expected = []
        for count, hits in zip(weights.sum(1), (weights * self.targets).sum(1), strict=True):
            rank = np.arange(1, int(count) + 1)
            precision = (1 + (rank - 1) * (hits - 1) / max(count - 1, 1)) / rank
            expected.append(precision.mean())
        return np.array(expected)

    def _classify(self, rows: np.ndarray) -> Contributions:
        """Return how well each example is separated from those of other classes, by vectors
        (layers, n, D): with all examples, and in every round."""
        targets = self.targets
        is_defined = np.isfinite(rows).all((1, 2))
        judged = np.full((len(rows), len(targets)), np.nan)
        accuracy = judged.copy()
        rounds = np.repeat(judged[None], len(self.tested), 0)
        if not is_defined.any():
            return Contributions(judged, rounds, accuracy)
        counts = np.bincount(targets)
        # every class counts the same in the fit, as where a task trains on so many examples of each
        weights = (len(targets) / (counts > 0).sum()) / counts[targets]
        gram = grams(rows[is_defined])
        probe = Probe(gram, np.eye(len(counts))[targets], weights)
        order = neighbor_order(gram.numpy())

        def combine(predicted: np.ndarray, anchors: np.ndarray, among: np.ndarray) -> np.ndarray:
            by_probe = separation(predicted, targets[anchors])
            share = (by_probe + neighbor_separation(order, targets, anchors, among)) / 2
            mean = share.mean(-1, keepdims=True)
            # an example counts on both sides of its comparisons, which resampling must see
            return mean + 2 * (share - mean)

        everything = np.ones(len(targets), dtype=bool)
        predicted = probe.left_out(stratified_folds(targets, FOLDS, self.repeats, self.seed))
        accuracy[is_defined] = (predicted.argmax(-1) == targets).mean(0)
        judged[is_defined] = combine(predicted, everything, everything)
        for i, test in enumerate(self.tested):
            splits = stratified_folds(targets[~test], FOLDS, 1, self.seed + i)
            inner, outer = probe.without(test, splits)
            rounds[i][np.ix_(is_defined, ~test)] = combine(inner, ~test, ~test)
            rounds[i][np.ix_(is_defined, test)] = combine(outer[None], test, everything)
        return Contributions(judged, rounds, accuracy)


# Scores of candidates
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelEvidence:
    """The contribution of every example to the score of every candidate.

    Candidates are all layers under the first readout, then all under the second, and so on.
    `judged` (candidates, n) is NaN where a layer is undefined. `groups` are the examples' classes,
    where they have any: resampling keeps their sizes. `rounds` (rounds, candidates, n) and
    `accuracy` (candidates,) are those of `Contributions`.
    """

    readouts: tuple[Readout, ...]
    layers: tuple[int, ...]
    measure: LabelMeasure
    groups: np.ndarray | None
    judged: np.ndarray
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None

    @property
    def defined(self) -> np.ndarray:
        """A mask of the candidates that can be scored."""
        return np.isfinite(self.judged).all(axis=1)

    @property
    def baseline(self) -> int:
        """The last layer under the default readout."""
        readout = self.readouts.index(Readout()) if Readout() in self.readouts else 0
        return (readout + 1) * len(self.layers) - 1

    def last_of(self, candidate: int) -> int:
        """Return the last layer under the candidate's readout."""
        return (candidate // len(self.layers) + 1) * len(self.layers) - 1

    def scores(self, draws: int = DRAWS, seed: int = 0) -> Scores:
        """Score every candidate on all examples and on resamples of them."""
        count = self.judged.shape[1]
        resamples = bootstrap_weights(count, draws, [seed, count, draws], self.groups)
        values = self._score(self.judged, np.concatenate([np.ones((1, count)), resamples]))
        return Scores(values[:, 0], values[:, 1:], "labels")

    def smooth(self, scores: Scores) -> Scores:
        """Return the scores averaged over neighboring layers, which a choice follows."""
        assert scores.draws is not None
        values = self._smooth(np.column_stack([scores.values, scores.draws]))
        return replace(scores, values=values[:, 0], draws=values[:, 1:])

    def gains_in_rounds(self, choose: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Choose anew in every round, and measure on the examples that it sets aside.

        Return gains (3, rounds): over the baseline, over the last layer of the same readout, and
        over chance.
        """
        untested = (~self.measure.tested).astype(np.float64)
        if self.rounds is None:
            values = self._score(self.judged, untested)
        else:
            values = np.concatenate(
                [
                    self._score(np.where(weights > 0, judged, 0.0), weights[None])
                    for judged, weights in zip(self.rounds, untested, strict=True)
                ],
                axis=1,
            )
        values = self._smooth(values)
        choices = choose(np.where(np.isfinite(values), values, -np.inf))
        chance = self.measure.chance(self.measure.tested.astype(np.float64))
        gains = []
        for i, test in enumerate(self.measure.tested):
            judged = self.judged if self.rounds is None else np.where(test, self.rounds[i], 0.0)
            places = [choices[i], self.baseline, self.last_of(choices[i])]
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = self.measure.score(judged[places], test[None].astype(float))[:, 0]
            gains.append(scores[0] - np.array([scores[1], scores[2], chance[i]]))
        return np.array(gains).T

    def _score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return scores (candidates, draws) under weights (draws, n)."""
        return np.where(self.defined[:, None], self.measure.score(judged, weights), np.nan)

    def _smooth(self, values: np.ndarray) -> np.ndarray:
        """Average values (candidates, draws) over layers; over fewer in models with few layers."""
        count = len(self.layers)
        grid = values.reshape(len(self.readouts), count, -1)
        return smooth_layers(grid, WIDTH * (count - 1) / 30).reshape(values.shape)


def gather(
    labeled: Labeled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    *,
    seed: int = 0,
    unit: bool = False,
    advance: Callable[[int], None] = lambda n: None,
) -> LabelEvidence:
    """Return the contribution of every example under every readout.

    Readouts that a probe cannot tell apart are computed once.
    """
    measure = LabelMeasure(labeled, seed)
    computed: dict[Readout, Contributions] = {}
    contributions = {}
    for readout in readouts:
        equivalent = stands_for(readout, labeled, unit)
        if equivalent not in computed:
            computed[equivalent] = measure.items(vectors(equivalent))
        contributions[readout] = computed[equivalent]
        advance(1)
    return assemble(labeled, measure, contributions, layers)


def score_labels(
    labeled: Labeled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    seed: int = 0,
) -> Scores:
    """Return the scores of candidates on labeled examples, smoothed over neighboring layers."""
    evidence = gather(labeled, readouts, layers, vectors, seed=seed)
    return evidence.smooth(evidence.scores(seed=seed))


def stands_for(readout: Readout, labeled: Labeled, unit: bool) -> Readout:
    """Return the readout that gives the same scores.

    A probe does not see centering, unless vectors are then scaled to length 1.
    """
    is_unseen = labeled.kind == "classification" and not unit
    return replace(readout, centering="none") if is_unseen else readout


def assemble(
    labeled: Labeled,
    measure: LabelMeasure,
    contributions: Mapping[Readout, Contributions],
    layers: Sequence[int],
) -> LabelEvidence:
    """Put the contributions under several readouts together, in the readouts' order."""
    ordered = list(contributions.values())
    rounds = [entry.rounds for entry in ordered if entry.rounds is not None]
    accuracy = [entry.accuracy.mean(axis=1) for entry in ordered if entry.accuracy is not None]
    return LabelEvidence(
        tuple(contributions),
        tuple(layers),
        measure,
        labeled.groups,
        np.concatenate([entry.judged for entry in ordered]),
        np.concatenate(rounds, axis=1) if rounds else None,
        np.concatenate(accuracy) if accuracy else None,
    )


def smooth_layers(scores: np.ndarray, width: float) -> np.ndarray:
    """Return a Gaussian average over the layers of scores (readouts, layers, draws).

    Undefined scores stay undefined.
    """
    if width <= 0:
        return scores
    layer = np.arange(scores.shape[1])
    kernel = np.exp(-0.5 * ((layer[:, None] - layer[None, :]) / width) ** 2)
    is_defined = np.isfinite(scores)
    total = np.einsum("kl,rlb->rkb", kernel, np.where(is_defined, scores, 0.0))
    weight = np.einsum("kl,rlb->rkb", kernel, is_defined.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(is_defined, total / weight, np.nan)
