"""The folder of downloads, converted weights and vectors that runs share."""

from __future__ import annotations

import os
from pathlib import Path

from layerscope.errors import LayerscopeError

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """Return the user cache: `$LAYERSCOPE_CACHE`, or `layerscope` under `$XDG_CACHE_HOME` or
    `~/.cache`."""
    configured = os.environ.get("LAYERSCOPE_CACHE")
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "layerscope"
    try:
        return Path.home() / ".cache" / "layerscope"
    except RuntimeError as error:  # a container's user without a name and without HOME
        raise LayerscopeError(
            "this user has no home folder. Say where to keep downloads: "
            "export LAYERSCOPE_CACHE=FOLDER"
        ) from error
