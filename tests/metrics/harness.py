"""One table over all metrics, and the checks that every metric passes: the numbers of an independent
reference, known answers, invariances, bounds, samples in any order, and inputs
without a value.

A check takes the name of a metric and raises an AssertionError. `test_metrics.py` runs every check
on every metric; `test_faults.py` shows that a fault in any metric fails one of them. A new metric
needs an entry in `METRICS` here and in `REFERENCES` of support.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from layerscope.metrics import Estimate, Options, get_metric, interval
from tests.metrics.support import REFERENCES, Samples, compute, make_samples, of_samples, tensor

TOLERANCE = 1e-9
DEFAULT = Options()
AWKWARD = 0.1 * np.array([1.0, 3.0, 7.0, -1.1, 0.3, 9.0, 2.7, 1 / 3])  # sums of these round


@dataclass(frozen=True)
class Known:
    """An input, and the value that follows without a computer."""

    data: Any
    value: float
    options: Options = DEFAULT
    tolerance: float = 1e-9


@dataclass(frozen=True)
class Row:
    """What the checks know about a metric.

    `same_under` and `changes_under` name transformations of all states: `scale`, `shift`,
    `rotation`. `one_prompt` and `equal_prompts` are the values of a single prompt and of duplicates
    of one; None: undefined.
    """

    known: tuple[Known, ...]
    same_under: tuple[str, ...] = ()
    changes_under: tuple[str, ...] = ()
    options: tuple[Options, ...] = ()
    one_prompt: float | None = None
    equal_prompts: float | None = None


def axes(d: int, both: bool = True) -> np.ndarray:
    """Return the unit vectors of all axes, and their opposites."""
    return np.concatenate([np.eye(d), -np.eye(d)]) if both else np.eye(d)


def simplex(n: int) -> np.ndarray:
    """Return n vectors with the same angle between any two."""
    return np.eye(n) - 1 / n


def path(*points: tuple[float, float]) -> np.ndarray:
    """Return one prompt whose tokens follow a path in a plane of twelve dimensions."""
    return np.pad(np.array(points, dtype=float), ((0, 0), (0, 10)))[None]


def paired(rows: np.ndarray) -> np.ndarray:
    """Return two equal views of each row."""
    return np.repeat(np.asarray(rows, dtype=float)[:, None], 2, axis=1)


def opposite(n: int) -> np.ndarray:
    """Return two opposite views, the same for all prompts."""
    return np.stack([np.tile([1.0, 0], (n, 1)), np.tile([-1.0, 0], (n, 1))], axis=1)


def power_law(exponent: float) -> np.ndarray:
    """Return rows whose covariance has the eigenvalues i ** -exponent."""
    root = np.diag(np.arange(1, 13) ** (-exponent / 2))
    return np.concatenate([root, -root]) + 3


def clusters(n: int, d: int) -> np.ndarray:
    """Return views that scatter far less than their prompts, which fill all directions evenly."""
    centers = np.zeros((n, d))
    if n <= d:
        centers[:, :n] = simplex(n)
    else:
        repeats = n // (2 * d)
        centers[: 2 * repeats * d] = np.tile(axes(d), (repeats, 1))
    noise = 1e-3 * np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    return 100 * centers[:, None] + np.concatenate([noise, -noise])[None]


def sinks() -> np.ndarray:
    """Return two prompts with a long token, 100 and 50 times as long as the others."""
    tokens = np.ones((2, 5, 3))
    tokens[0, 0] *= 100
    tokens[1, 3] *= 50
    return tokens


def norms() -> np.ndarray:
    """Return two prompts whose tokens have the mean norms 11 and 5."""
    states = np.zeros((2, 3, 4))
    states[0, :, 0] = [1, 2, 30]
    states[1, :, 1] = 5
    return states


ORDERS = (0.0, 0.5, 1.0, 2.0, math.inf)
RIGHT = path((0, 0), (1, 0), (1, 1), (0, 1))
HALF, LARGE = (
    Options(alpha=0.5, rows="unit", pooled_rows="unit", seed=4, permutations=3),
    Options(alpha=math.inf, rows="centered", pooled_rows="centered"),
)
MIXED = Options(
    alpha=2.0,
    rows="raw",
    pooled_rows="raw",
    view_rows="centered-unit",
    temperature=0.5,
    delta=0.1,
)
GROUPED = Options(
    group=6, view_rows="centered-unit", lidar_rows="centered-unit", permutations=3
)  # consecutive prompts in order of arrival, whatever the batches and the keys
EVERY = (MIXED, HALF, LARGE)
RIGID = ("scale", "shift", "rotation")
EQUAL_PAIRS = math.log1p(14 * math.exp(-10))  # of 8 orthogonal prompts at temperature 0.1
FARTHEST = math.log(6 * math.exp(-2) + 5 * math.exp(2)) + 2  # of 6 prompts at temperature 0.5

METRICS: dict[str, Row] = {
    "prompt_entropy": Row(
        tuple(Known(axes(5)[None], math.log(5), Options(alpha=alpha)) for alpha in ORDERS),
        same_under=RIGID,
        options=EVERY,
    ),
    "curvature": Row(
        (
            Known(RIGHT, math.pi / 2, tolerance=1e-6),
            Known(1e3 * RIGHT + 5, math.pi / 2, tolerance=1e-6),
            Known(path((0, 0), (1, 0), (2, 0), (5, 0)), 0.0, tolerance=1e-6),
            Known(path((0, 0), (1, 0), (0, 0), (1, 0)), math.pi, tolerance=1e-6),
            Known(path((0, 0), (1, 0), (2, 1)), math.pi / 4, tolerance=1e-6),
            # terms with a difference of length zero are left out
            Known(path((0, 0), (1, 0), (1, 0), (2, 0), (3, 0)), 0.0, tolerance=1e-6),
            Known(
                path((0, 0), (1, 0), (1, 1), (1, 1), (5, 5), (6, 6), (6, 6)),
                math.pi / 4,
                tolerance=1e-6,
            ),
        ),
        same_under=RIGID,
        options=(Options(curvature_absolute=True),),
    ),
    "sink_ratio": Row(
        (Known(sinks(), 75.0, tolerance=1e-4),),
        same_under=("scale", "rotation"),
        changes_under=("shift",),
    ),
    "sink_first": Row((Known(sinks(), 0.5),), same_under=("scale", "rotation")),
    "state_norm": Row(
        (Known(norms(), 8.0),), same_under=("rotation",), changes_under=("scale", "shift")
    ),
    "dataset_entropy": Row(
        (
            *(Known(axes(5), math.log(5), Options(alpha=alpha)) for alpha in ORDERS),
            Known(axes(6, both=False), math.log(5)),  # centering takes a direction
        ),
        same_under=RIGID,
        options=(*EVERY, Options(clamp_gram=True), GROUPED),
    ),
    "effective_rank": Row((Known(axes(5), 5.0),), same_under=RIGID, options=(*EVERY, GROUPED)),
    "entropy_rank": Row((Known(axes(5), 5.0),), same_under=RIGID, options=(MIXED, LARGE)),
    "rankme": Row(
        (Known(axes(5), 5.0, tolerance=1e-4),),
        same_under=("scale", "rotation"),
        changes_under=("shift",),
        one_prompt=1.0,
        equal_prompts=1.0,
    ),
    "alpha_req": Row(
        tuple(Known(power_law(exponent), exponent) for exponent in (0.5, 1.0, 2.3)),
        same_under=RIGID,
    ),
    "nesum": Row(
        (
            Known(axes(5), 5.0),
            Known(power_law(1.0), float((1 / np.arange(1, 13)).sum())),
        ),
        same_under=RIGID,
    ),
    "anisotropy": Row(
        (
            Known(np.tile([3.0, 4.0], (5, 1)), 1.0),
            Known(np.arange(1, 6)[:, None] * np.array([[3.0, 4.0]]), 1.0),
            Known(np.eye(5), 0.0),
            Known(simplex(5), -1 / 4),
            Known([[1.0, 0], [-2, 0]], -1.0),
        ),
        same_under=("scale", "rotation"),
        changes_under=("shift",),
        equal_prompts=1.0,
    ),
    "intrinsic_dimension": Row(
        tuple(
            Known(
                np.random.default_rng(0).uniform(size=(1500, d))
                @ np.random.default_rng(1).normal(size=(d, 20))
                + 7,
                d,
                tolerance=0.12 * d,
            )
            for d in (1, 2, 4)
        ),
        same_under=RIGID,
    ),
    "infonce": Row(
        (
            Known(paired(np.eye(8)), EQUAL_PAIRS),
            Known(np.ones((8, 2, 3)), math.log(15)),
            Known(opposite(6), FARTHEST, Options(temperature=0.5)),
            Known(np.ones((8, 2, 3)), math.log(8), Options(infonce_one_way=True)),
        ),
        same_under=("scale", "rotation"),
        changes_under=("shift",),
        options=(*EVERY, Options(infonce_one_way=True, temperature=0.2), GROUPED),
    ),
    "infonce_mi": Row(
        (Known(paired(np.eye(8)), math.log(8) - EQUAL_PAIRS),),
        same_under=("scale", "rotation"),
        options=(MIXED, Options(infonce_one_way=True, temperature=0.2)),
    ),
    "lidar": Row(
        tuple(
            Known(clusters(n, d), math.log(min(n - 1, d)), tolerance=1e-6)
            for n, d in ((5, 9), (9, 9), (40, 6))
        ),
        same_under=("shift", "rotation"),
        changes_under=("scale",),
        options=(*EVERY, Options(lidar_rows="centered-unit"), GROUPED),
    ),
    "lidar_rank": Row(
        (Known(clusters(40, 6), 6.0, tolerance=1e-5),),
        same_under=("shift", "rotation"),
        changes_under=("scale",),
        options=(MIXED,),
    ),
    "dime": Row(
        (Known(paired(np.eye(8)), 0.0), Known(np.ones((8, 2, 3)), 0.0)),
        same_under=("scale", "rotation"),
        changes_under=("shift",),
        options=(*EVERY, Options(dime_feature_side=True, permutations=4), GROUPED),
    ),
}

REFERENCE_SAMPLES = {"N>D": make_samples(20, 6), "N<D": make_samples(20, 40)}
SAMPLES = {
    "N>D": make_samples(70, 9, seed=1),
    "N<D": make_samples(70, 90, seed=2, q=2, longest=6),
}


def level_of(name: str) -> str:
    """Return whether a metric reads tokens, pooled vectors or views."""
    return get_metric(name).info.level


def transformed(samples: Samples, change: Callable[[np.ndarray], np.ndarray]) -> Samples:
    """Return the samples with all states changed, under their keys."""
    tokens = [change(prompt) for prompt in samples.tokens]
    other = Samples(tokens, change(samples.pooled), change(samples.views))
    other.keys = samples.keys
    return other


def facts(estimate: Estimate) -> np.ndarray:
    """Return the value, the interval and the counts of an estimate."""
    counts = [estimate.n, estimate.d, estimate.undefined]
    return np.array([estimate.value, *interval(estimate), *counts], dtype=float)


def assert_same(one: Estimate, other: Estimate) -> None:
    """Both estimates have the same value, interval and counts, all of them numbers."""
    np.testing.assert_allclose(facts(one), facts(other), rtol=1e-9, atol=1e-9)
    assert np.isfinite(facts(one)).all(), "a comparison of NaN with NaN says nothing"
    if one.value not in (0.0, 1.0):
        assert np.subtract(*interval(one)) < 0, "an interval of no width says nothing"


def assert_undefined(estimate: Estimate, prompts: int) -> None:
    """An estimate has no value and no interval, and counts the prompts."""
    assert math.isnan(estimate.value)
    assert estimate.undefined == prompts
    assert all(math.isnan(end) for end in interval(estimate))


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return float64 numbers that a precision holds exactly."""
    return tensor(values).to(dtype).double().numpy()


# Checks


def check_reference(name: str) -> None:
    """The value is that of the reference, for every width and every option that matters."""
    for samples in REFERENCE_SAMPLES.values():
        for options in (Options(), *METRICS[name].options):
            value = of_samples(name, samples, options=options).value
            expected = REFERENCES[name](samples, options)
            assert value == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), options


def check_low_precision(name: str) -> None:
    """States of float32 and bfloat16 are measured in float64."""
    level = level_of(name)
    if level == "tokens":
        return
    for dtype in (torch.float32, torch.bfloat16):
        round_to = partial(rounded, dtype=dtype)
        s = transformed(REFERENCE_SAMPLES["N>D"], round_to)
        given = tensor(s.pooled if level == "pooled" else s.views).to(dtype)
        value = compute(name, given, keys=s.keys).value
        assert value == pytest.approx(REFERENCES[name](s, Options()), rel=TOLERANCE, abs=TOLERANCE)


def check_known_answers(name: str) -> None:
    """Small cases have the value that follows without a computer."""
    for case in METRICS[name].known:
        value = compute(name, case.data, case.options).value
        assert value == pytest.approx(case.value, abs=case.tolerance), case


def check_invariances(name: str) -> None:
    """The value stays under the transformations that it does not depend on, and only there."""
    rng = np.random.default_rng(2)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    shift = 3 * rng.normal(size=6)
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "scale": lambda z: 7.5 * z,
        "shift": lambda z: z + shift,
        "rotation": lambda z: z @ rotation,
    }
    samples = REFERENCE_SAMPLES["N>D"]
    before = of_samples(name, samples).value
    for way, change in changes.items():
        after = of_samples(name, transformed(samples, change)).value
        if way in METRICS[name].same_under:
            assert after == pytest.approx(before, rel=1e-6), way
        if way in METRICS[name].changes_under:
            assert after != pytest.approx(before, rel=1e-6), way


def check_order(name: str) -> None:
    """The order of arrival and inference mode change no value and no interval."""
    for samples in SAMPLES.values():
        whole = of_samples(name, samples)
        order = np.random.default_rng(0).permutation(len(samples))
        assert_same(of_samples(name, samples, order=order), whole)
    with torch.inference_mode():
        assert_same(of_samples(name, samples), whole)


def check_undefined(name: str) -> None:
    """What has no value is counted and never averaged in; what cannot be asked is refused."""
    if level_of(name) == "tokens":
        mask = torch.ones(3, 4, dtype=torch.bool)
        mask[1] = False
        result = compute(name, torch.randn(3, 4, 8), mask=mask)
        assert (result.n, result.undefined) == (2, 1)
        assert math.isfinite(result.value)
        return
    wrong = {"pooled": (4, 4, 4), "views": (4, 4)}[level_of(name)]
    with pytest.raises(ValueError, match="expected"):
        compute(name, torch.randn(wrong))
    if level_of(name) == "views":
        for shape, given in (((1, 2, 4), "prompts given: 1"), ((5, 1, 4), "views: 1")):
            with pytest.raises(ValueError, match=given):
                compute(name, torch.randn(shape))
        return
    single = compute(name, AWKWARD[None])
    expected = METRICS[name]
    if expected.one_prompt is None:
        assert_undefined(single, 1)
    else:
        assert single.value == pytest.approx(expected.one_prompt, abs=1e-5)
        assert all(math.isnan(end) for end in interval(single))
    for n in (3, 7, 30):
        equal = compute(name, np.tile(AWKWARD, (n, 1)))
        if expected.equal_prompts is None:
            assert_undefined(equal, n)
        else:
            assert equal.value == pytest.approx(expected.equal_prompts, abs=1e-4)


def check_facts(name: str) -> None:
    """The facts that tables and figures show are complete."""
    info = get_metric(name).info
    assert info.name == name
    assert info.level in ("tokens", "pooled", "views")
    for text in (info.title, info.unit, info.higher_means, info.bounds, info.citation):
        assert text.strip()
    assert "raw" in info.normalizations
    assert "keep" in info.sinks


CHECKS: dict[str, Callable[[str], None]] = {
    "reference": check_reference,
    "low precision": check_low_precision,
    "known answers": check_known_answers,
    "invariances": check_invariances,
    "order": check_order,
    "undefined": check_undefined,
    "facts": check_facts,
}
