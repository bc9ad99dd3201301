"""An image set that another package adds is read by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plugins.support import install
from tiny_images import tiny_image_model

import layerscope
from layerscope_media.image_sets import IMAGE_SETS

IMAGES = """
from pathlib import Path
import numpy as np
from layerscope.catalogue import Installed
from layerscope_media import ImageSetEntry

def read(split, folder):
    return np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8), np.arange(12) % 2

SQUARES = ImageSetEntry(
    name="squares", summary="twelve", license="CC0-1.0", splits=("all",), classes=("even", "odd"), read=read,
    origin=Installed(lambda: Path(__file__).parent, "squares 1.0"),
)
"""


def test_an_image_set_from_outside_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("outside_images", IMAGES, "SQUARES", IMAGE_SETS, tmp_path, monkeypatch)
    run = layerscope.profile(
        tiny_image_model("vit"), "squares", metrics=["prompt_entropy"], progress=False
    )
    assert run.manifest["counts"]["prompts"] == 12
