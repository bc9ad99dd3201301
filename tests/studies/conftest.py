"""Studies in folders, quickly: most of their time on tiny models would go into drawing files that
no test looks at."""

from __future__ import annotations

import pytest


@pytest.fixture
def figure_files() -> None:
    """For tests that look at the files of a figure."""


@pytest.fixture(autouse=True)
def quick_folders(request: pytest.FixtureRequest) -> None:
    if "figure_files" not in request.fixturenames:
        request.getfixturevalue("no_figure_files")
