"""The command line: commands that belong together share a file; a user mistake is one message and
exit code 1."""

from layerscope.cli.app import app, main

__all__ = ["app", "main"]
