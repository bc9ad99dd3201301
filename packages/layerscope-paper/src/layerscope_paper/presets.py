"""Conventions of a profile: as the paper prints its formulas, and as its released code computes.

layerscope.profile(model, texts, **PRESETS["released"])
"""

from __future__ import annotations

from typing import Any

from layerscope.errors import UnknownNameError
from layerscope_paper.nlpaug_views import NLPAUG

# `paper`: formulas as printed. `released`: habits of the authors' code, for parity with the
# published numbers; docs/conventions.md says what each one does to them.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"final_norm": "hf", "views": 16, "rows": "raw", "pooled_rows": "raw"},
    "released": {
        "final_norm": "hf",
        "views": 16,
        "augmenter": NLPAUG.name,
        "view_rows": "centered-unit",
        "lidar_rows": "centered-unit",
        "clamp_gram": True,
        "curvature_absolute": True,
        "infonce_one_way": True,
        "dime_feature_side": True,
        "group": 64,
    },
}


def get_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset, as `layerscope.profile` takes them."""
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return dict(PRESETS[name])
