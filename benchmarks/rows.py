"""What results are written with: the commit they are of, and the line of the table that
`benchmarks/all.py` prints.

A benchmark takes part in that table by having a function `short() -> list[Row]`.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import NamedTuple


@cache
def commit() -> str:
    """The commit that is checked out; on a machine without the history, what the variable COMMIT
    says."""
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return os.environ.get("COMMIT") or told


class Row(NamedTuple):
    """What was measured, against what, in the same run; `ratio` is measured / floor unless `text`
    says something else."""

    what: str
    against: str
    measured: float
    floor: float
    unit: str = "s"
    text: str = ""

    def cells(self) -> tuple[str, str, str, str, str]:
        """As words."""
        ratio = self.text or f"{self.measured / self.floor:.2f} ×"
        return (
            self.what,
            self.against,
            f"{self.measured:.2f} {self.unit}",
            f"{self.floor:.2f} {self.unit}",
            ratio,
        )
