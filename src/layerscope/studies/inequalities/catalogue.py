"""Every statement, in the paper's order."""

from __future__ import annotations

from layerscope.studies.inequalities import lemma1, theorem1, theorem5, theorem6, theorem7
from layerscope.studies.inequalities.base import Statement

STATEMENTS: tuple[Statement, ...] = (
    *lemma1.STATEMENTS,
    *theorem1.STATEMENTS,
    *theorem5.STATEMENTS,
    *theorem6.STATEMENTS,
    *theorem7.STATEMENTS,
)
