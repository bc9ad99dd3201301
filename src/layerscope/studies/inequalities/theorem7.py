"""Theorem 7 (Theorem 3 of the text): log N − InfoNCE ≤ I(X; Z) ≤ H(Z), with H(Z) "interpretable as" the dataset entropy.

For discrete X and Z and the expected loss both inequalities hold, and H(X) bounds I as well. They say nothing about matrix-based
entropy: S_1 is at most log min(N, D), while log N − InfoNCE comes near log N wherever N points can be told apart, as on a circle.
For a continuous Z, H would be a differential entropy, which is no bound either: I(X; Z) ≤ h(Z) holds only where h(Z | X) ≥ 0.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from layerscope.studies.inequalities.base import Case, Rng, Statement
from layerscope.studies.inequalities.matrices import renyi, shares, unit

TEMPERATURE = 0.1  # of the InfoNCE metric
JOINTS = ("best critic", "random critic", "copies", "independent")
CLOUDS = ("circle", "gaussian, D=2", "gaussian, D=64", "clusters")
NOISES = ("far apart", "overlapping")


def draw_joint(kind: str, rng: Rng) -> Case:
    """A joint distribution of X and Z, a critic, and a number of samples."""
    nx, nz = (int(x) for x in rng.integers(2, 4, size=2))
    joint = rng.dirichlet(np.full(nx * nz, rng.uniform(0.1, 2.0))).reshape(nx, nz) + 1e-12
    if kind == "copies":
        joint = np.diag(rng.dirichlet(np.ones(nx))) + 1e-12
    elif kind == "independent":
        joint = np.outer(rng.dirichlet(np.ones(nx)), rng.dirichlet(np.ones(nz))) + 1e-12
    joint = joint / joint.sum()
    best = np.log(joint / np.outer(joint.sum(1), joint.sum(0)))
    critic = 3 * rng.normal(size=joint.shape) if kind in ("random critic", "independent") else best
    return {"joint": joint, "critic": critic, "samples": int(rng.integers(2, 4))}


def bound(case: Case) -> float:
    """log N − InfoNCE, expected over N draws of (x, z), summed over all of them exactly."""
    joint, critic, n = np.asarray(case["joint"]), np.asarray(case["critic"]), case["samples"]
    cells = np.array(list(product(range(joint.shape[0]), range(joint.shape[1]))))
    draws = np.array(list(product(range(len(cells)), repeat=n)))
    x, z = cells[draws, 0], cells[draws, 1]
    chance = joint[x, z].prod(axis=1)
    scores = critic[x[:, :, None], z[:, None, :]]
    top = scores.max(axis=2, keepdims=True)
    loss = -(scores[:, range(n), range(n)] - top[:, :, 0] - np.log(np.exp(scores - top).sum(axis=2))).mean(axis=1)
    return float(np.log(n) - chance @ loss)


def mutual_information(joint: np.ndarray) -> float:
    """I(X; Z)."""
    return float((joint * np.log(joint / np.outer(joint.sum(1), joint.sum(0)))).sum())


def printed(case: Case) -> float:
    """The smaller of I − bound and H(Z) − I."""
    joint = np.asarray(case["joint"])
    information = mutual_information(joint)
    return min(information - bound(case), renyi(joint.sum(0), 1.0) - information)


def corrected(case: Case) -> float:
    """The same, with H(X) a bound as well."""
    joint = np.asarray(case["joint"])
    return min(printed(case), renyi(joint.sum(1), 1.0) - mutual_information(joint))


def nudge_joint(case: Case, rng: Rng, step: float) -> Case:
    """Probabilities and critic, a little changed."""
    joint = case["joint"] * np.exp(step * rng.normal(size=case["joint"].shape))
    return {**case, "joint": joint / joint.sum(), "critic": case["critic"] + step * rng.normal(size=case["critic"].shape)}


def draw_cloud(kind: str, rng: Rng) -> Case:
    """Two views of N prompts."""
    n = int(rng.integers(8, 33))
    if kind == "circle":
        angles = 2 * np.pi * np.arange(n) / n
        z = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    elif kind == "clusters":
        z = rng.normal(size=(4, 16))[rng.integers(0, 4, size=n)] + 0.1 * rng.normal(size=(n, 16))
    else:
        z = rng.normal(size=(n, int(kind.split("=")[1])))
    noise = 10 ** rng.uniform(-4, -1)
    return {"a": unit(z + noise * rng.normal(size=z.shape)), "b": unit(z + noise * rng.normal(size=z.shape))}


def matrix_reading(case: Case) -> float:
    """S_1 of the prompts' vectors − (log N − InfoNCE): two views, 2N − 2 negatives, cosine over the temperature."""
    a, b = case["a"], case["b"]
    n = len(a)
    both = unit(np.concatenate([a, b]))
    scores = both @ both.T / TEMPERATURE
    np.fill_diagonal(scores, -np.inf)
    positive = scores[np.arange(2 * n), (np.arange(2 * n) + n) % (2 * n)]
    top = scores.max(axis=1)
    loss = float((top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - positive).mean())
    return renyi(shares(unit(a)), 1.0) - (float(np.log(n)) - loss)


def nudge_cloud(case: Case, rng: Rng, step: float) -> Case:
    """Both views moved together."""
    shift = step * rng.normal(size=case["a"].shape)
    return {"a": unit(case["a"] + shift), "b": unit(case["b"] + shift)}


def draw_noise(kind: str, rng: Rng) -> Case:
    """X uniform on k equally spaced points, Z = X + Gaussian noise of width σ."""
    width = 10 ** (rng.uniform(-2.5, -1) if kind == "far apart" else rng.uniform(-1, 0.3))
    return {"points": int(rng.integers(2, 9)), "width": float(width)}


def continuous_reading(case: Case) -> float:
    """h(Z) − I(X; Z), which is h(Z | X): that of the noise, ½ log(2πe σ²), however many points there are."""
    return 0.5 * float(np.log(2 * np.pi * np.e * case["width"] ** 2))


_NAME = "Theorem 7"
STATEMENTS = (
    Statement(
        _NAME,
        "printed, Z discrete",
        "log N − InfoNCE ≤ I(X; Z) ≤ H(Z), loss in expectation",
        JOINTS,
        draw_joint,
        printed,
        nudge=nudge_joint,
        every=10,
    ),
    Statement(
        _NAME,
        "printed, H = S_1",
        "log N − InfoNCE ≤ S_1 of the N pooled vectors",
        CLOUDS,
        draw_cloud,
        matrix_reading,
        nudge=nudge_cloud,
        every=10,
    ),
    Statement(
        _NAME, "printed, Z continuous", "I(X; Z) ≤ h(Z), differential entropy", NOISES, draw_noise, continuous_reading, every=10
    ),
    Statement(
        _NAME,
        "corrected",
        "log N − InfoNCE ≤ I(X; Z) ≤ min(H(X), H(Z)), X and Z discrete",
        JOINTS,
        draw_joint,
        corrected,
        nudge=nudge_joint,
        every=10,
    ),
)
