"""A short version of every CPU benchmark that has one, and one table of ratios: against the floors,
and against the released method's way of computing. Ratios within one run are what counts; the
seconds are this machine's.

    python benchmarks/all.py                 # or: make bench
    python benchmarks/all.py released memory # some of them
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from rows import Row  # noqa: E402 - benchmarks are scripts beside each other, not a package


def names() -> list[str]:
    """The benchmarks that have a short version, told by their text: importing them all would take
    long."""
    return [
        file.stem
        for file in sorted(HERE.glob("*.py"))
        if "\ndef short()" in file.read_text(encoding="utf-8")
    ]


def main(chosen: list[str]) -> None:
    """Run and print."""
    known = names()
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise SystemExit(f"no short version of {unknown[0]!r}; there is one of: {', '.join(known)}")
    rows: list[tuple[str, Row]] = []
    for name in chosen or known:
        start = time.perf_counter()
        found = importlib.import_module(name).short()
        rows += [(name, row) for row in found]
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    headings = ("benchmark", "measured", "against", "took", "against took", "ratio")
    table = [headings, *((name, *row.cells()) for name, row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(headings))]
    for line in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


if __name__ == "__main__":
    main(sys.argv[1:])
