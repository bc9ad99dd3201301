"""Reference data that may lie beside the repository; tests that need it are skipped where it is
absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("LAYERSCOPE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shared_folder(*parts: str) -> Path:
    """A file or folder of it, or a skip."""
    place = SHARED.joinpath(*parts)
    if not place.exists():
        pytest.skip(f"no reference data at {place} (set LAYERSCOPE_SHARED)")
    return place
