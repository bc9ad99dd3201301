"""Lemma 1 and Theorems 1, 5, 6 and 7 of the paper as statements: as printed, corrected, and with
the trace divided out, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from layerscope_paper.theorems.trials import (
    KINDS,
    Case,
    Rng,
    Statement,
    draw_matrix,
    effective_rank,
    nudge_matrix,
    renyi,
    shares,
    unit,
)

# Lemma 1: the entropy is Schur-concave in the eigenvalues, for every α > 0. It holds as printed.

ALPHAS = (0.05, 0.5, 0.999, 1.0, 1.5, 2.0, 5.0, 20.0, np.inf)


def draw_lemma1(kind: str, rng: Rng) -> Case:
    """Draw shares q, shares p that q majorizes (q mixed by a doubly stochastic matrix), and an
    order α."""
    q = shares(draw_matrix(kind, rng)["z"])
    mixing = rng.dirichlet(np.full(int(rng.integers(1, 5)), rng.uniform(0.1, 2.0)))
    p = sum(w * q[rng.permutation(len(q))] for w in mixing)
    return {"p": p, "q": q, "alpha": float(rng.choice(ALPHAS))}


def margin_lemma1(case: Case) -> float:
    """Return S_α(p) − S_α(q), where p is the more even one."""
    return renyi(np.asarray(case["p"]), case["alpha"]) - renyi(np.asarray(case["q"]), case["alpha"])


def nudge_lemma1(case: Case, rng: Rng, step: float) -> Case:
    """Return a similar q, and a p that it majorizes by a little, which is nearest to a
    violation."""
    q = np.sort(np.abs(case["q"] * np.exp(step * rng.normal(size=len(case["q"])))))[::-1]
    q = q / q.sum()
    share = step * rng.random()
    return {
        "p": (1 - share) * q + share * q[rng.permutation(len(q))],
        "q": q,
        "alpha": case["alpha"],
    }


LEMMA1_STATEMENTS = (
    Statement(
        "Lemma 1",
        "printed",
        "p majorized by q  ⇒  S_α(p) ≥ S_α(q), α > 0",
        KINDS,
        draw_lemma1,
        margin_lemma1,
        nudge_lemma1,
    ),
)


# Theorem 1 (Theorem 4 of the appendix): effective rank and entropy.
#
# The printed proof concludes from σ_i² = λ_i and σ_i ≤ 1 that λ is majorized by σ. But the σ_i sum
# to one only after a division, and the λ_i only after another: majorization compares vectors of
# equal sums, and σ_i² / Σσ² is the *more* concentrated one.


def printed_theorem1(case: Case) -> float:
    """Return S_1 − log EffRank."""
    return renyi(shares(case["z"]), 1.0) - float(np.log(effective_rank(case["z"])))


def corrected_theorem1(case: Case) -> float:
    """Return the smaller of log EffRank − S_1 and log rank − log EffRank."""
    z = case["z"]
    log_rank = float(np.log(effective_rank(z)))
    return min(log_rank - renyi(shares(z), 1.0), float(np.log(np.linalg.matrix_rank(z))) - log_rank)


THEOREM1_STATEMENTS = (
    Statement(
        "Theorem 1",
        "printed",
        "EffRank(Z) ≤ exp(S_1(Z))",
        KINDS,
        draw_matrix,
        printed_theorem1,
        nudge_matrix,
    ),
    Statement(
        "Theorem 1",
        "corrected",
        "exp(S_1(Z)) ≤ EffRank(Z) ≤ rank(Z)",
        KINDS,
        draw_matrix,
        corrected_theorem1,
        nudge_matrix,
    ),
)


# Theorems 5 and 6: N prompts whose mean vectors q_i point in random directions, and S_2 with and
# without the trace.
#
# Equation 1 divides the eigenvalues by the trace; the proofs of both theorems use S_2 = −log ‖Q
# Qᵀ‖² without this division. With it, a common length of the q_i cancels: for u_i = q_i / ‖q_i‖,
# e^{−S_2} = 1/N + (1/N²) Σ_{i≠j} ⟨u_i, u_j⟩².

PROBABILITY = 0.95  # each ε is chosen so that the printed bound promises this much
_TAIL = np.sqrt(2 * np.pi)


def collisions(q: np.ndarray, divided: bool) -> float:
    """Return e^{−S_2} of the rows of Q: ‖Q Qᵀ‖², which Equation 1 divides by the squared trace."""
    gram = q @ q.T
    squares = float((gram**2).sum())
    return squares / float(np.trace(gram)) ** 2 if divided else squares


def tail_level(n: int) -> float:
    """Return log(N² √(2π) / (1 − probability)), which both printed probabilities are solved for."""
    return float(np.log(n**2 * _TAIL / (1 - PROBABILITY)))


def both_bounds(case: Case) -> float:
    """Return the margin of 1/N ≤ e^{−S_2} ≤ 1/N + (1 − 1/N) max⟨u_i, u_j⟩², with the trace divided
    out, for rows q_i of one length."""
    q = case["q"]
    n = len(q)
    value = collisions(q, divided=True)
    cosines = unit(q) @ unit(q).T
    largest = float(np.abs(cosines - np.diag(np.diag(cosines))).max()) if n > 1 else 0.0
    return min(value - 1 / n, 1 / n + (1 - 1 / n) * largest**2 - value)


def nudge_means(case: Case, rng: Rng, step: float) -> Case:
    """Return rows in slightly changed directions, with the same lengths."""
    q = case["q"]
    length = np.linalg.norm(q, axis=1, keepdims=True)
    turned = unit(q / length + step * rng.normal(size=q.shape) / np.sqrt(q.shape[1]))
    return {**case, "q": length * turned}


def _trace_statements(
    theorem: str,
    target: str,
    kinds: tuple[str, ...],
    draw: Callable[[str, Rng], Case],
    value: Callable[[Case], float],
    every: int,
) -> tuple[Statement, ...]:
    """Return a theorem as printed (S_2 of the proof), with the trace divided out (S_2 of Equation
    1), and corrected."""

    def margin(case: Case, divided: bool) -> float:
        return float(case["epsilon"] - abs(collisions(case["q"], divided) - value(case)))

    bounds = "1/N ≤ e^{−S_2} ≤ 1/N + (1 − 1/N) max cos², S_2 of Eq. 1"
    corrected = Statement(
        theorem, "corrected", bounds, kinds, draw, both_bounds, nudge_means, every=every
    )
    printed = replace(
        corrected,
        version="printed",
        text=f"|e^{{−S_2}} − {target}| ≤ ε, no trace in S_2",
        margin=partial(margin, divided=False),
        nudge=None,
        share=1 - PROBABILITY,
    )
    divided = replace(
        printed,
        version="trace divided",
        text=f"|e^{{−S_2}} − {target}| ≤ ε, S_2 of Eq. 1",
        margin=partial(margin, divided=True),
    )
    return printed, divided, corrected


def read_sizes(kind: str) -> list[int]:
    """Return the numbers of a kind of case.

    >>> read_sizes("N=2, D=256")
    [2, 256]
    """
    return [int(setting.partition("=")[2]) for setting in kind.split(", ")]


# Theorem 5: prompts of L = D orthonormal tokens (maximal prompt entropy).
#
# Printed: |e^{−S_2} − N / L²| ≤ ε with probability 1 − N² √(2π) e^{−D ε² / (2 N²)}.

THEOREM5_KINDS = ("N=2, D=256", "N=4, D=16", "N=8, D=64", "N=32, D=16")


def draw_theorem5(kind: str, rng: Rng) -> Case:
    """Draw mean vectors of N prompts, each the rows of a uniformly random orthogonal matrix."""
    n, d = read_sizes(kind)
    q = np.empty((n, d))
    for i in range(n):
        basis, upper = np.linalg.qr(rng.normal(size=(d, d)))
        q[i] = (basis * np.sign(np.diag(upper))).mean(axis=0)
    return {"q": q, "n": n, "d": d, "epsilon": n * float(np.sqrt(2 * tail_level(n) / d))}


def emptiness() -> float:
    """Return the smallest ε with a printed probability above zero, as a multiple of N/L², which
    shows that the statement is weak."""
    return min(
        n * float(np.sqrt(2 * np.log(n**2 * np.sqrt(2 * np.pi)) / d)) / (n / d**2)
        for n, d in map(read_sizes, THEOREM5_KINDS)
    )


THEOREM5_STATEMENTS = _trace_statements(
    "Theorem 5",
    "N/L²",
    THEOREM5_KINDS,
    draw_theorem5,
    lambda case: case["n"] / case["d"] ** 2,
    every=25,
)


# Theorem 6: prompts whose tokens are all one unit vector v_i (minimal prompt entropy).
#
# Printed: |e^{−S_2} − N³ / L²| ≤ ε with probability 1 − N² √(2π) e^{−D³ ε² / (2 N⁸)}. Three slips:
# the mean of L equal rows is v_i and not (N / L) v_i; S_2 leaves the trace out; and Proposition 1
# at ε L² / N⁴, which the proof asks it for, has the exponent D L⁴ ε² / (2 N⁸). The larger of the
# two ε is used, so that the verdict does not rest on the last slip.

THEOREM6_KINDS = ("N=2, L=8, D=128", "N=4, L=4, D=64", "N=4, L=32, D=256", "N=8, L=64, D=512")


def draw_theorem6(kind: str, rng: Rng) -> Case:
    """Draw mean vectors of N prompts of L equal unit tokens in random directions."""
    n, length, d = read_sizes(kind)
    tokens = np.repeat(unit(rng.normal(size=(n, d)))[:, None, :], length, axis=1)
    return {
        "q": tokens.mean(axis=1),
        "n": n,
        "length": length,
        "d": d,
        "epsilon": max(epsilons_theorem6(n, length, d)),
    }


def epsilons_theorem6(n: int, length: int, d: int) -> tuple[float, float]:
    """Return the ε of the bound with `PROBABILITY`: by the printed exponent D³ ε² / (2 N⁸), and by
    that of the proof."""
    level = float(np.sqrt(2 * tail_level(n)))
    return n**4 * level / d**1.5, n**4 / length**2 * level / d**0.5


THEOREM6_STATEMENTS = _trace_statements(
    "Theorem 6",
    "N³/L²",
    THEOREM6_KINDS,
    draw_theorem6,
    lambda case: case["n"] ** 3 / case["length"] ** 2,
    every=10,
)


# Theorem 7 (Theorem 3 of the text): log N − InfoNCE ≤ I(X; Z) ≤ H(Z), with H(Z) "interpretable as"
# the dataset entropy.
#
# For discrete X and Z and the expected loss both inequalities hold, and H(X) bounds I as well. They
# say nothing about matrix-based entropy: S_1 is at most log min(N, D), while log N − InfoNCE comes
# near log N wherever N points can be told apart, as on a circle. For a continuous Z, H would be a
# differential entropy, which is no bound either: I(X; Z) ≤ h(Z) holds only where h(Z | X) ≥ 0.

TEMPERATURE = 0.1  # of the InfoNCE metric
JOINTS = ("best critic", "random critic", "copies", "independent")
CLOUDS = ("circle", "gaussian, D=2", "gaussian, D=64", "clusters")
NOISES = ("far apart", "overlapping")


def draw_joint(kind: str, rng: Rng) -> Case:
    """Draw a joint distribution of X and Z, a critic, and a number of samples."""
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


def infonce_bound(case: Case) -> float:
    """Return log N − InfoNCE, the expectation over N draws of (x, z), summed over all draws
    exactly."""
    joint = np.asarray(case["joint"])
    critic = np.asarray(case["critic"])
    n = case["samples"]
    cells = np.array(list(product(range(joint.shape[0]), range(joint.shape[1]))))
    draws = np.array(list(product(range(len(cells)), repeat=n)))
    x = cells[draws, 0]
    z = cells[draws, 1]
    chance = joint[x, z].prod(axis=1)
    scores = critic[x[:, :, None], z[:, None, :]]
    top = scores.max(axis=2, keepdims=True)
    loss = -(
        scores[:, range(n), range(n)] - top[:, :, 0] - np.log(np.exp(scores - top).sum(axis=2))
    ).mean(axis=1)
    return float(np.log(n) - chance @ loss)


def mutual_information(joint: np.ndarray) -> float:
    """Return I(X; Z)."""
    return float((joint * np.log(joint / np.outer(joint.sum(1), joint.sum(0)))).sum())


def printed_theorem7(case: Case) -> float:
    """Return the smaller of I − bound and H(Z) − I."""
    joint = np.asarray(case["joint"])
    information = mutual_information(joint)
    return min(information - infonce_bound(case), renyi(joint.sum(0), 1.0) - information)


def corrected_theorem7(case: Case) -> float:
    """Return the smallest of I − bound, H(Z) − I and H(X) − I."""
    joint = np.asarray(case["joint"])
    return min(printed_theorem7(case), renyi(joint.sum(1), 1.0) - mutual_information(joint))


def nudge_joint(case: Case, rng: Rng, step: float) -> Case:
    """Return probabilities and critic, a little changed."""
    joint = case["joint"] * np.exp(step * rng.normal(size=case["joint"].shape))
    return {
        **case,
        "joint": joint / joint.sum(),
        "critic": case["critic"] + step * rng.normal(size=case["critic"].shape),
    }


def draw_cloud(kind: str, rng: Rng) -> Case:
    """Draw two views of N prompts."""
    n = int(rng.integers(8, 33))
    if kind == "circle":
        angles = 2 * np.pi * np.arange(n) / n
        z = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    elif kind == "clusters":
        z = rng.normal(size=(4, 16))[rng.integers(0, 4, size=n)] + 0.1 * rng.normal(size=(n, 16))
    else:
        z = rng.normal(size=(n, int(kind.split("=")[1])))
    noise = 10 ** rng.uniform(-4, -1)
    return {
        "a": unit(z + noise * rng.normal(size=z.shape)),
        "b": unit(z + noise * rng.normal(size=z.shape)),
    }


def matrix_reading(case: Case) -> float:
    """Return S_1 of the prompts' vectors − (log N − InfoNCE): two views, 2N − 2 negatives, cosine
    over the temperature."""
    a = case["a"]
    b = case["b"]
    n = len(a)
    vectors = unit(np.concatenate([a, b]))
    scores = vectors @ vectors.T / TEMPERATURE
    np.fill_diagonal(scores, -np.inf)
    positive = scores[np.arange(2 * n), (np.arange(2 * n) + n) % (2 * n)]
    top = scores.max(axis=1)
    loss = float((top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - positive).mean())
    return renyi(shares(unit(a)), 1.0) - (float(np.log(n)) - loss)


def nudge_cloud(case: Case, rng: Rng, step: float) -> Case:
    """Return both views moved in the same direction."""
    shift = step * rng.normal(size=case["a"].shape)
    return {"a": unit(case["a"] + shift), "b": unit(case["b"] + shift)}


def draw_noise(kind: str, rng: Rng) -> Case:
    """Draw k equally spaced points for X, and the width σ of the noise in Z = X + noise."""
    width = 10 ** (rng.uniform(-2.5, -1) if kind == "far apart" else rng.uniform(-1, 0.3))
    return {"points": int(rng.integers(2, 9)), "width": float(width)}


def continuous_reading(case: Case) -> float:
    """Return h(Z) − I(X; Z), which is h(Z | X): that of the noise, ½ log(2πe σ²), for any number of
    points."""
    return 0.5 * float(np.log(2 * np.pi * np.e * case["width"] ** 2))


_DISCRETE = "log N − InfoNCE ≤ I(X; Z) ≤ H(Z), loss in expectation"
_MATRIX = "log N − InfoNCE ≤ S_1 of the N pooled vectors"
_CONTINUOUS = "I(X; Z) ≤ h(Z), differential entropy"
_BOTH = "log N − InfoNCE ≤ I(X; Z) ≤ min(H(X), H(Z)), X and Z discrete"
THEOREM7_STATEMENTS = (
    Statement(
        "Theorem 7",
        "printed, Z discrete",
        _DISCRETE,
        JOINTS,
        draw_joint,
        printed_theorem7,
        nudge_joint,
        every=10,
    ),
    Statement(
        "Theorem 7",
        "printed, H = S_1",
        _MATRIX,
        CLOUDS,
        draw_cloud,
        matrix_reading,
        nudge_cloud,
        every=10,
    ),
    Statement(
        "Theorem 7",
        "printed, Z continuous",
        _CONTINUOUS,
        NOISES,
        draw_noise,
        continuous_reading,
        every=10,
    ),
    Statement(
        "Theorem 7",
        "corrected",
        _BOTH,
        JOINTS,
        draw_joint,
        corrected_theorem7,
        nudge_joint,
        every=10,
    ),
)

STATEMENTS: tuple[Statement, ...] = (
    *LEMMA1_STATEMENTS,
    *THEOREM1_STATEMENTS,
    *THEOREM5_STATEMENTS,
    *THEOREM6_STATEMENTS,
    *THEOREM7_STATEMENTS,
)  # in the paper's order
