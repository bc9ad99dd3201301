"""Studies in folders, quickly: most of their time on tiny models would go into drawing files that no test looks at."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def figure_files() -> None:
    """For tests that look at the files of a figure."""


@pytest.fixture(autouse=True)
def no_figure_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, and not drawn into files."""
    if "figure_files" not in request.fixturenames:
        from matplotlib.figure import Figure

        def save(self: Figure, file: Any, **_: Any) -> None:
            file.write(b"a figure")

        monkeypatch.setattr(Figure, "savefig", save)
