"""The command line. One file per command; user mistakes print one message and exit 1."""

from layerscope.cli.app import app, main

__all__ = ["app", "main"]
