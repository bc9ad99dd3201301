"""One line of the table that `benchmarks/all.py` prints. A benchmark takes part by having a function `short() -> list[Row]`."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What was measured, against what, in the same run; `ratio` is measured / floor unless `text` says something else."""

    what: str
    against: str
    measured: float
    floor: float
    unit: str = "s"
    text: str = ""

    def cells(self) -> tuple[str, str, str, str, str]:
        """As words."""
        ratio = self.text or f"{self.measured / self.floor:.2f} ×"
        return self.what, self.against, f"{self.measured:.2f} {self.unit}", f"{self.floor:.2f} {self.unit}", ratio
