"""Every metric once more, in plain float64 numpy, straight from the formulas: slow, explicit,
sharing nothing with src.

Entropies and ranks go through an SVD of the prepared matrix, pairwise quantities through Python
loops. Rows are prompts (or one prompt's tokens), columns are dimensions. Undefined values are NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# Singular values under this share of the largest are rounding; they matter only for α < 1, where
# p^α lifts them up.
RANK_TOLERANCE = 1e-9
# A row this much shorter after centering than before equals the mean: it has no direction.
NO_DIRECTION = 1e-13


def rows_of(values: ArrayLike) -> np.ndarray:
    """A float64 copy."""
    return np.array(values, dtype=np.float64)


# Row preparation
# ------------------------------------------------------------------------------------------------------


def prepare(z: ArrayLike, rows: str) -> np.ndarray:
    """Rows as they are, centered, scaled to length 1, or both; a row without a direction becomes
    zero."""
    z = rows_of(z)
    before = [math.sqrt(float(np.dot(row, row))) for row in z]
    if rows in ("centered", "centered-unit"):
        z = z - z.mean(axis=0)
        for i, size in enumerate(before):
            if math.sqrt(float(np.dot(z[i], z[i]))) <= NO_DIRECTION * size:
                z[i] = 0.0
    elif rows not in ("raw", "unit"):
        raise ValueError(rows)
    if rows in ("unit", "centered-unit"):
        for i, row in enumerate(z):
            length = math.sqrt(float(np.dot(row, row)))
            z[i] = row / length if length > 0 else 0.0
    return z


def prepare_in_groups(z: ArrayLike, rows: str, group: int) -> np.ndarray:
    """Each run of `group` consecutive rows prepared by itself, as the released code does with its
    mini-batches."""
    z = rows_of(z)
    return np.concatenate(
        [prepare(z[start : start + group], rows) for start in range(0, len(z), group)]
    )


# Entropies and ranks
# --------------------------------------------------------------------------------------------------


def renyi(weights: ArrayLike, alpha: float) -> float:
    """S_α of nonnegative weights, normalized to sum to one."""
    w = rows_of(weights)
    if w.sum() <= 0:
        return math.nan
    p = [float(x) for x in w / w.sum() if x > 0]
    if alpha == 1:
        return -sum(x * math.log(x) for x in p)
    if math.isinf(alpha):
        return -math.log(max(p))
    if alpha < 1:
        p = [x for x in p if x > RANK_TOLERANCE**2 * max(p)]
    if alpha == 0:
        return math.log(len(p))
    top = max(p)  # p^α underflows for large α
    return (alpha * math.log(top) + math.log(sum((x / top) ** alpha for x in p))) / (1 - alpha)


def singular_values(z: ArrayLike) -> np.ndarray:
    """Singular values, those that are rounding set to zero."""
    sigma = np.linalg.svd(rows_of(z), compute_uv=False)
    return np.where(sigma > RANK_TOLERANCE * sigma.max(initial=0.0), sigma, 0.0)


def matrix_entropy(z: ArrayLike, alpha: float = 1.0) -> float:
    """S_α of Z: eigenvalues of Z Zᵀ are the squared singular values."""
    return renyi(singular_values(z) ** 2, alpha)


def clamped_entropy(z: ArrayLike, alpha: float = 1.0) -> float:
    """S_α after negative entries of the smaller Gram matrix are set to zero (§4 item 4); negative
    eigenvalues are dropped."""
    z = rows_of(z)
    gram = z @ z.T if len(z) <= z.shape[1] else z.T @ z
    gram[gram < 0] = 0.0
    return renyi(np.clip(np.linalg.eigvalsh(gram), 0, None), alpha)


def prompt_entropy(
    tokens: ArrayLike, alpha: float = 1.0, rows: str = "centered-unit", drop: int | None = None
) -> float:
    """S_α of one prompt's tokens (T, D); `drop` takes a token out first."""
    return matrix_entropy(prepare(without(tokens, drop), rows), alpha)


def dataset_entropy(pooled: ArrayLike, alpha: float = 1.0, rows: str = "centered-unit") -> float:
    """S_α of N pooled prompts (N, D)."""
    return matrix_entropy(prepare(pooled, rows), alpha)


def effective_rank(pooled: ArrayLike, rows: str = "centered-unit") -> float:
    """exp of the entropy of σ / Σσ."""
    return math.exp(renyi(singular_values(prepare(pooled, rows)), 1.0))


def entropy_rank(pooled: ArrayLike, rows: str = "centered-unit") -> float:
    """exp(S_1)."""
    return math.exp(dataset_entropy(pooled, 1.0, rows))


def rankme(pooled: ArrayLike, epsilon: float = 1e-7) -> float:
    """exp(−Σ p log p), p = σ / Σσ + ε, over all min(N, D) singular values of the vectors as they
    are."""
    sigma = singular_values(pooled)
    return math.exp(-sum(p * math.log(p) for p in sigma / sigma.sum() + epsilon))


def without(tokens: ArrayLike, drop: int | None) -> np.ndarray:
    """The tokens with one taken out."""
    tokens = rows_of(tokens)
    return tokens if drop is None else np.delete(tokens, drop, axis=0)


# Tokens
# ---------------------------------------------------------------------------------------------------------------


def curvature(tokens: ArrayLike, absolute: bool = False, drop: int | None = None) -> float:
    """Mean angle between successive differences; terms with a difference of length zero are left
    out."""
    angles = _angles(without(tokens, drop), absolute)
    return sum(angles) / len(angles) if angles else math.nan


def flat_terms(tokens: ArrayLike) -> int:
    """How many angles a prompt of this length has but for differences of length zero."""
    tokens = rows_of(tokens)
    return max(0, len(tokens) - 2) - len(_angles(tokens, False))


def _angles(tokens: np.ndarray, absolute: bool) -> list[float]:
    angles = []
    for k in range(len(tokens) - 2):
        v, w = tokens[k + 1] - tokens[k], tokens[k + 2] - tokens[k + 1]
        if not v.any() or not w.any():
            continue
        cosine = float(np.dot(v, w)) / (
            math.sqrt(float(np.dot(v, v))) * math.sqrt(float(np.dot(w, w)))
        )
        cosine = abs(cosine) if absolute else cosine
        angles.append(math.acos(min(1.0, max(-1.0, cosine))))
    return angles


def sink(tokens: ArrayLike) -> tuple[int, float]:
    """(position of the longest token, its length over the median length)."""
    lengths = [math.sqrt(float(np.dot(t, t))) for t in rows_of(tokens)]
    position = max(range(len(lengths)), key=lambda i: (lengths[i], -i))
    ordered = sorted(lengths)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return position, lengths[position] / median


# Views
# ----------------------------------------------------------------------------------------------------------------


def infonce(a: ArrayLike, b: ArrayLike, temperature: float = 0.1) -> float:
    """NT-Xent of two views (N, D) of N prompts, prepared already: 1 positive and 2N − 2 negatives
    for each of 2N rows."""
    a, b = rows_of(a), rows_of(b)
    n = len(a)
    rows = [*a, *b]
    total = 0.0
    for i, row in enumerate(rows):
        partner = (i + n) % (2 * n)
        logits = {
            j: float(np.dot(row, other)) / temperature for j, other in enumerate(rows) if j != i
        }
        total += _log_sum(list(logits.values())) - logits[partner]
    return total / (2 * n)


def infonce_one_way(a: ArrayLike, b: ArrayLike, temperature: float = 0.1) -> float:
    """Rows of the first view told apart among the rows of the second only."""
    a, b = rows_of(a), rows_of(b)
    total = 0.0
    for i, row in enumerate(a):
        logits = [float(np.dot(row, other)) / temperature for other in b]
        total += _log_sum(logits) - logits[i]
    return total / len(a)


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def lidar(views: ArrayLike, delta: float = 1e-4, alpha: float = 1.0) -> float:
    """S_α of the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}; views (N, Q, D), δ on the diagonal of
    Σ_w."""
    views = rows_of(views)
    n, q, d = views.shape
    centers = [sum(prompt) / q for prompt in views]
    overall = sum(centers) / n
    between, within = np.zeros((d, d)), np.zeros((d, d))
    for prompt, center in zip(views, centers, strict=True):
        between += np.outer(center - overall, center - overall) / n
        for view in prompt:
            within += np.outer(view - center, view - center) / (n * q)
    values, vectors = np.linalg.eigh(within + delta * np.eye(d))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    spectrum = np.clip(np.linalg.eigvalsh(root @ between @ root), 0, None)
    return renyi(np.where(spectrum > 1e-14 * spectrum.max(), spectrum, 0.0), alpha)


def permutations(n: int, count: int, seed: int) -> list[np.ndarray]:
    """The permutations of n samples (in canonical order) that a run with this seed draws."""
    rng = np.random.default_rng([seed, n])
    return [rng.permutation(n) for _ in range(count)]


def dime_terms(
    a: ArrayLike,
    b: ArrayLike,
    perms: list[np.ndarray],
    alpha: float = 1.0,
    feature_side: bool = False,
) -> list[float]:
    """S_α(K_A ∘ P K_B Pᵀ) − S_α(K_A ∘ K_B) for each P; views (N, D), prepared already."""
    a, b = rows_of(a), rows_of(b)
    k_a, k_b = (a.T @ a, b.T @ b) if feature_side else (a @ a.T, b @ b.T)
    paired = _psd_entropy(k_a * k_b, alpha)
    terms = []
    for perm in perms:
        p = np.zeros_like(k_b)
        for row, column in enumerate(perm):
            p[row, column] = 1.0
        terms.append(_psd_entropy(k_a * (p @ k_b @ p.T), alpha) - paired)
    return terms


def dime(
    a: ArrayLike,
    b: ArrayLike,
    perms: list[np.ndarray],
    alpha: float = 1.0,
    feature_side: bool = False,
) -> float:
    """The mean over permutations."""
    terms = dime_terms(a, b, perms, alpha, feature_side)
    return sum(terms) / len(terms)


def dime_without(
    a: ArrayLike, b: ArrayLike, left_out: np.ndarray, perms: list[np.ndarray], alpha: float = 1.0
) -> float:
    """DiME without some prompts. Where a permutation leads to one of them, it is followed until it
    leads to one that stays."""
    stay = np.flatnonzero(~left_out)
    place = {int(prompt): k for k, prompt in enumerate(stay)}
    induced = []
    for perm in perms:
        to = []
        for i in stay:
            j = int(perm[i])
            while left_out[j]:
                j = int(perm[j])
            to.append(place[j])
        induced.append(np.array(to))
    return dime(rows_of(a)[stay], rows_of(b)[stay], induced, alpha)


def _psd_entropy(gram: np.ndarray, alpha: float) -> float:
    """S_α of a positive semidefinite matrix: its singular values are its eigenvalues."""
    values = np.linalg.svd(gram, compute_uv=False)
    return renyi(np.where(values > 1e-13 * values.max(), values, 0.0), alpha)


# The others
# -----------------------------------------------------------------------------------------------------------


def anisotropy(pooled: ArrayLike) -> float:
    """Mean cosine over pairs of different vectors; vectors of length zero have none."""
    units = [row for row in prepare(pooled, "unit") if row.any()]
    cosines = [float(np.dot(u, v)) for i, u in enumerate(units) for v in units[i + 1 :]]
    return sum(cosines) / len(cosines) if cosines else math.nan


def intrinsic_dimension(pooled: ArrayLike) -> float:
    """TwoNN: (n − 1) / Σ log(r_2 / r_1), over the n points whose nearest neighbor is not a
    duplicate."""
    rows = rows_of(pooled)
    logs = []
    for i, row in enumerate(rows):
        distances = sorted(
            math.sqrt(float(np.dot(row - other, row - other)))
            for j, other in enumerate(rows)
            if j != i
        )
        if distances[0] > 0:
            logs.append(math.log(distances[1] / distances[0]))
    return (len(logs) - 1) / sum(logs)


def covariance_eigenvalues(pooled: ArrayLike, rows: str = "centered") -> np.ndarray:
    """Eigenvalues of the covariance, descending, up to a common factor; those that are rounding
    left out."""
    return np.array([s * s for s in singular_values(prepare(pooled, rows)) if s > 0])


def alpha_req(pooled: ArrayLike, floor: float = 1e-10, rows: str = "centered") -> float:
    """Minus the slope of log λ_i against log i."""
    lam = covariance_eigenvalues(pooled, rows)
    lam = lam[lam > floor * lam[0]]
    slope, _ = np.polyfit(np.log(np.arange(1, len(lam) + 1)), np.log(lam), 1)
    return -float(slope)


def nesum(pooled: ArrayLike, rows: str = "centered") -> float:
    """Σ λ_i / λ_1."""
    lam = covariance_eigenvalues(pooled, rows)
    return float(lam.sum() / lam[0])


# With weights on the prompts (for influences)
# -------------------------------------------------------------------------


def weighted_infonce(
    a: ArrayLike, b: ArrayLike, weights: ArrayLike, temperature: float = 0.1
) -> float:
    """NT-Xent where prompt i counts w_i times in the mean and as a negative of the others; weights
    rescaled to mean 1."""
    a, b = rows_of(a), rows_of(b)
    n = len(a)
    w = rows_of(weights) / np.mean(weights)
    z, w2 = np.concatenate([a, b]), np.concatenate([w, w])
    total = 0.0
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        e = np.exp(z @ z[i] / temperature)
        others = sum(w2[j] * e[j] for j in range(2 * n) if j not in (i, partner))
        total += w2[i] * (math.log(e[partner] + others) - math.log(e[partner]))
    return total / (2 * n)
