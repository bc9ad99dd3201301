"""A fault in any metric fails a check of the harness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from layerscope.metrics import Estimate, Metric, Options, SiteVectors, get_metric, metrics
from layerscope.metrics.registry import REGISTRY
from tests.metrics.harness import CHECKS

Fault = Callable[[pytest.MonkeyPatch, Any], None]


def replaced(patch: pytest.MonkeyPatch, metric: Metric, **changes: Any) -> None:
    patch.setitem(REGISTRY._things, metric.info.name, replace(metric, **changes))


def with_options(**wrong: Any) -> Fault:
    """Return a fault: some options are ignored, and these are taken."""

    def inject(patch: pytest.MonkeyPatch, metric: Metric) -> None:
        if metric.measure is None:
            own = metric.estimate
            replaced(patch, metric, estimate=lambda site, o: own(site, replace(o, **wrong)))
        else:
            tokens = metric.measure
            replaced(patch, metric, measure=lambda s, m, o: tokens(s, m, replace(o, **wrong)))

    return inject


def with_value(change: Callable[[Estimate], float]) -> Fault:
    """Return a fault: the value is computed by a formula that is nearly right."""

    def inject(patch: pytest.MonkeyPatch, metric: Metric) -> None:
        own = metric.estimate

        def faulty(site: SiteVectors, options: Options) -> Estimate:
            estimate = own(site, options)
            return replace(estimate, value=change(estimate))

        replaced(patch, metric, estimate=faulty)

    return inject


def with_measure(change: Callable[[Tensor], Tensor]) -> Fault:
    """Return a fault: the value of each prompt is computed by a formula that is nearly right."""

    def inject(patch: pytest.MonkeyPatch, metric: Metric) -> None:
        own = metric.measure
        replaced(patch, metric, measure=lambda s, m, o: change(own(s, m, o)))

    return inject


FAULTS: dict[str, Fault] = {
    "prompt_entropy": with_options(rows="unit"),
    "curvature": with_options(curvature_absolute=True),
    "sink_ratio": with_measure(lambda values: values * (1 + 1e-5)),
    "sink_first": with_measure(lambda values: 1 - values),
    "state_norm": with_measure(lambda values: values * (1 - 1e-6)),
    "dataset_entropy": with_options(alpha=1.001),
    "effective_rank": with_options(pooled_rows="centered"),
    "entropy_rank": with_value(lambda e: e.value**1.0001),
    "rankme": with_value(lambda e: e.value + 1e-7 * e.d),
    "alpha_req": with_value(lambda e: -e.value),
    "nesum": with_value(lambda e: e.value - 1e-6),
    "anisotropy": with_value(lambda e: (e.value * (e.n - 1) + 1) / e.n),
    "intrinsic_dimension": with_value(lambda e: e.value * e.n / (e.n - 1)),
    "infonce": with_options(temperature=0.1001),
    "infonce_mi": with_value(lambda e: e.value + math.log(2 * e.n - 1) - math.log(e.n)),
    "lidar": with_options(delta=2e-4),
    "lidar_rank": with_options(delta=2e-4),
    "dime": with_options(seed=1),
}


def checks_that_fail(name: str) -> list[str]:
    failed = []
    for check, function in CHECKS.items():
        try:
            function(name)
        except AssertionError:
            failed.append(check)
            break
    return failed


def test_every_metric_has_a_fault() -> None:
    assert set(FAULTS) == set(metrics())


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_wrong_formula_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch, get_metric(name))
    assert checks_that_fail(name)


def test_a_value_that_depends_on_the_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = get_metric("anisotropy")
    own = metric.estimate

    def faulty(site: SiteVectors, options: Options) -> Estimate:
        estimate = own(site, options)
        assert site.arrival is not None
        return replace(estimate, value=estimate.value + 1e-6 * int(site.arrival[0]))

    replaced(monkeypatch, metric, estimate=faulty)
    with pytest.raises(AssertionError):
        CHECKS["order"]("anisotropy")


def test_an_undefined_value_that_is_averaged_in_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = get_metric("nesum")
    own = metric.estimate

    def faulty(site: SiteVectors, options: Options) -> Estimate:
        estimate = own(site, options)
        return estimate if np.isfinite(estimate.value) else replace(estimate, value=0.0)

    replaced(monkeypatch, metric, estimate=faulty)
    with pytest.raises(AssertionError):
        CHECKS["undefined"]("nesum")
