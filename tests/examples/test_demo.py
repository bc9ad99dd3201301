"""What the demo proves with: a probe on a few labels."""

from __future__ import annotations

import numpy as np
import pytest
from demo import few_shot_accuracy

from tests.selection.judges.support import planted


def test_the_probe_finds_groups_and_is_at_chance_without_them():
    labels = np.arange(480) % 12
    assert few_shot_accuracy(planted(0.3, count=480), labels, shots=8) > 95
    noise = np.random.default_rng(0).normal(size=(480, 16))
    assert few_shot_accuracy(noise, labels, shots=8) == pytest.approx(100 / 12, abs=5)
