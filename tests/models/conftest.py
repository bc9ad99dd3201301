"""A cache of its own for every test, so that nothing touches the user's (tests marked `real` use that one)."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
