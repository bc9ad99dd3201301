"""Which readouts can be exported, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.core.readout import Readout, all_readouts
from layerscope.exporting import ExportError, export
from layerscope.exporting.draft import check_expressible, nearest, why_not


def test_every_readout_has_an_expressible_neighbour() -> None:
    for readout in all_readouts(has_cls=True):
        assert why_not(nearest(readout)) is None
        assert (why_not(readout) is None) == (readout.template != "echo" and readout.sink == "keep")
        if why_not(readout) is None:
            assert nearest(readout) == readout


@pytest.mark.parametrize(
    ("given", "reason", "near"),
    [
        ("echo/mean/raw", "2 times", "plain/mean/raw/keep/none"),
        ("plain/mean/applied/drop/corpus", "largest norm", "plain/mean/applied/keep/corpus"),
        ("{text} and {text}/last", "2 times", "plain/last/applied/keep/none"),
    ],
)
def test_the_reason_and_the_nearest_are_said(
    given: str, reason: str, near: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=reason) as told:
        check_expressible(Readout.parse(given))
    assert f"readout='{near}'" in str(told.value)
    with pytest.raises(ExportError, match=reason):  # before any model is loaded
        export("no-such-model", 1, readout=given, out=tmp_path / "x")
