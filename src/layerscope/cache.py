"""Where downloads and converted weights are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user cache: `$LAYERSCOPE_CACHE`, or `layerscope` under `$XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("LAYERSCOPE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "layerscope"
