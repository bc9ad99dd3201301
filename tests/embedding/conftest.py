"""Exports are verified in this process."""

from tests.exporting.conftest import here

__all__ = ["here"]
