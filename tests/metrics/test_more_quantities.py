"""State norms: known answers, invariances and relations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import settings

from layerscope.metrics import Options, expand_names, get_metric, metrics
from tests.metrics.support import tensor

quick = settings(max_examples=40, deadline=None, derandomize=True)
NEW = ("state_norm",)


def value(name: str, data: np.ndarray, options: Options | None = None) -> float:
    return get_metric(name)(options).update(tensor(data)).compute().value


def test_they_are_measured_where_they_are_named() -> None:
    assert set(NEW) <= set(metrics())
    assert not set(NEW) & set(expand_names("all"))
    assert not set(NEW) & set(expand_names(None))
    assert expand_names("paper,state_norm")[-1] == "state_norm"


# --- norms
#   --------------------------------------------------------------------------------------------------------------------


def test_state_norm_known_answers() -> None:
    states = np.zeros((2, 3, 4))
    states[0, :, 0] = [1, 2, 30]
    states[1, :, 1] = 5
    metric = get_metric("state_norm")()
    assert metric.measure(tensor(states), torch.ones(2, 3, dtype=torch.bool)).tolist() == [
        11.0,
        5.0,
    ]
    mask = torch.tensor([[True, True, False], [False, False, False]])
    kept = metric.measure(tensor(states), mask)
    assert kept[0] == 1.5
    assert math.isnan(kept[1])
    assert value("state_norm", 2 * states) == pytest.approx(2 * value("state_norm", states))
