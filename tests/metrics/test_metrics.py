"""Every check of the harness on every metric."""

from __future__ import annotations

import pytest

from layerscope.metrics import expand_names, metrics
from tests.metrics.harness import CHECKS, METRICS
from tests.metrics.support import REFERENCES

PAPER = {
    "prompt_entropy",
    "dataset_entropy",
    "effective_rank",
    "curvature",
    "infonce",
    "lidar",
    "dime",
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", sorted(metrics()))
def test_metric(name: str, check: str) -> None:
    CHECKS[check](name)


def test_every_metric_is_in_the_tables() -> None:
    assert set(METRICS) == set(REFERENCES) == set(metrics()), (
        "add the metric to METRICS in harness.py and to REFERENCES in support.py"
    )


def test_which_metrics_are_measured() -> None:
    assert {name for name, metric in metrics().items() if metric.info.core} == PAPER
    assert list(metrics())[:7] == sorted(PAPER)
    assert set(expand_names(["paper"])) == PAPER
    by_default = [name for name, metric in metrics().items() if metric.info.by_default]
    assert expand_names(None) == expand_names(["all"]) == by_default
    assert "state_norm" not in by_default
    assert expand_names("paper,state_norm")[-1] == "state_norm"
    assert expand_names(["lidar", "paper", "lidar"])[0] == "lidar"
