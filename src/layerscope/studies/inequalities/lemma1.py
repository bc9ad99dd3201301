"""Lemma 1: the entropy is Schur-concave in the eigenvalues, for every α > 0. It holds as printed."""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities.base import Case, Rng, Statement
from layerscope.studies.inequalities.matrices import KINDS, draw_spectrum, renyi

ALPHAS = (0.05, 0.5, 0.999, 1.0, 1.5, 2.0, 5.0, 20.0, np.inf)


def draw(kind: str, rng: Rng) -> Case:
    """Shares q, shares p that q majorises (q mixed by a doubly stochastic matrix), and an order α."""
    q = draw_spectrum(kind, rng)
    mixing = rng.dirichlet(np.full(int(rng.integers(1, 5)), rng.uniform(0.1, 2.0)))
    p = sum(w * q[rng.permutation(len(q))] for w in mixing)
    return {"p": p, "q": q, "alpha": float(rng.choice(ALPHAS))}


def margin(case: Case) -> float:
    """S_α(p) − S_α(q), where p is the more even one."""
    return renyi(np.asarray(case["p"]), case["alpha"]) - renyi(np.asarray(case["q"]), case["alpha"])


def nudge(case: Case, rng: Rng, step: float) -> Case:
    """Another q near this one, and a p that it majorises by a little: where a violation would show first."""
    q = np.sort(np.abs(case["q"] * np.exp(step * rng.normal(size=len(case["q"])))))[::-1]
    q = q / q.sum()
    share = step * rng.random()
    return {"p": (1 - share) * q + share * q[rng.permutation(len(q))], "q": q, "alpha": case["alpha"]}


STATEMENTS = (Statement("Lemma 1", "printed", "p majorised by q  ⇒  S_α(p) ≥ S_α(q), α > 0", KINDS, draw, margin, nudge),)
