"""Studies in folders without their figures, which take longer than everything else on tiny
models."""

from __future__ import annotations

import pytest

from layerscope.errors import MissingExtraError
from layerscope.studies.run import StudyRun


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed: the study must come out all the same."""

    def missing(self: StudyRun) -> None:
        raise MissingExtraError("drawing figures", "report")

    monkeypatch.setattr(StudyRun, "plot", missing)
