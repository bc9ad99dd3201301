"""Runs on disk: atomic, resumable, self-describing."""

from layerscope.store.folder import RunFolder
from layerscope.store.stored import StoredRun

__all__ = ["RunFolder", "StoredRun"]
