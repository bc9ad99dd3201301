"""Reference data that may lie beside the repository; tests that need it are skipped where it is
absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("LAYERSCOPE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shared_folder(*parts: str) -> Path:
    """A file or folder of it, or a skip."""
    place = SHARED.joinpath(*parts)
    if not place.exists():
        pytest.skip(f"no reference data at {place} (set LAYERSCOPE_SHARED)")
    return place


@contextmanager
def offline() -> Iterator[None]:
    """Forbid downloads, as HF_HUB_OFFLINE=1 in the shell does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        if "datasets" in sys.modules:
            patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        yield
