"""A run as a wide table and as LaTeX, and another run drawn beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerscope.errors import LayerscopeError
from tests.report.synthetic import (
    READOUTS,
    synthetic_evaluation,
    synthetic_probe,
    synthetic_run,
)


def test_a_run_draws_another_beside_itself(tmp_path: Path) -> None:
    one, other = synthetic_run("one"), synthetic_run("other").save(tmp_path / "other")
    for drawn in (
        one.plot(other, metrics=["curvature"]),
        one.plot(tmp_path / "other", metrics=["curvature"]),
    ):
        (chart,) = drawn.to_dict()["concat"]
        color = chart["layer"][0]["encoding"]["color"]["scale"]
        assert len(set(color["range"])) == 2
    with pytest.raises(LayerscopeError, match="takes runs"):
        one.plot(3)


def test_wide_tables() -> None:
    run = synthetic_run()
    wide = run.wide(["curvature", "prompt_entropy"])
    assert wide.columns.tolist()[0] == "curvature"
    assert "prompt_entropy (sink dropped)" in wide
    np.testing.assert_allclose(wide["curvature"], run.curve("curvature")["value"])
    with pytest.raises(LayerscopeError, match="curvatur"):
        run.wide(["curvatur"])
    probe = synthetic_probe()
    assert probe.wide().columns.tolist() == probe.probes
    scored = synthetic_evaluation("a", "llama", 6, ["STSBenchmark", "Topics"], READOUTS)
    assert scored.wide(READOUTS[0]).columns.tolist() == ["STSBenchmark", "Topics"]
    assert scored.wide().shape == (7, 2 * len(READOUTS))
