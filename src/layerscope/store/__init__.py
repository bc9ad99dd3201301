"""Runs on disk: atomic, resumable, self-describing."""

from layerscope.store.folder import RunFolder, StoredRun

__all__ = ["RunFolder", "StoredRun"]
