"""Exports are verified in this process."""

from tests.exporting.conftest import here
from tests.improving.conftest import in_few_parts

__all__ = ["here", "in_few_parts"]
