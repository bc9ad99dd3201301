"""The rule that says when to measure, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.errors import LayerscopeError
from layerscope.training.watch import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    share: float, step: float, trial: float, costs: list[float], steps: int
) -> tuple[Pace, list[int], list[float]]:
    """Return the pace, the measured steps and the shares of a run of equal steps.

    Measurement k takes costs[k mod n]; the trial predicts the first of them.
    """
    clock = Clock()
    pace = Pace(share, clock)
    with pace.turn():
        pass
    measured: list[int] = []
    shares: list[float] = []
    for number in range(1, steps + 1):
        clock.now += step
        with pace.turn():
            if pace.is_trial_due():
                clock.now += trial
                pace.expect(costs[0])
            if pace.is_due():
                cost = costs[len(measured) % len(costs)]
                clock.now += cost
                pace.record(cost)
                measured.append(number)
        shares.append(pace.spent)
    return pace, measured, shares


def test_the_share_holds_after_every_step() -> None:
    pace, measured, shares = run(share=0.02, step=0.1, trial=0.05, costs=[0.5], steps=3000)
    assert max(shares) <= 0.02 + 1e-12
    assert len(measured) > 8  # 300 s of training pay for about a dozen
    assert pace.training == pytest.approx(300)
    assert pace.measuring == pytest.approx(0.05 + 0.5 * len(measured))
    assert measured[0] * 0.1 * 0.02 / 0.98 >= 0.55 - 1e-9  # nothing before it is paid for


def test_a_dearer_measurement_makes_the_next_wait_longer() -> None:
    _, even, _ = run(share=0.05, step=0.1, trial=0.01, costs=[0.1], steps=1000)
    _, uneven, shares = run(share=0.05, step=0.1, trial=0.01, costs=[0.1, 0.1, 2.0], steps=1000)
    assert len(uneven) < len(even)
    assert shares[-1] <= 0.05 + 1e-12  # one that took longer than expected is paid back


@settings(max_examples=25, deadline=None)
@given(st.floats(0.005, 0.3), st.floats(0.01, 1.0), st.floats(0.01, 3.0))
def test_the_share_holds_for_any_costs(share: float, step: float, cost: float) -> None:
    _, _, shares = run(share, step, trial=min(step, cost), costs=[cost], steps=200)
    assert max(shares) <= share + 1e-9


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(LayerscopeError, match="between 0 and 1"):
        Pace(share)
