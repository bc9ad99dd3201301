"""Exports are verified in this process, except where a test is about the fresh one."""

from tests.exporting.conftest import here

__all__ = ["here"]
