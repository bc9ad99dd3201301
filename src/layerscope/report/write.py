"""`write_report`: runs in, one HTML page out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerscope.errors import InvalidValueError
from layerscope.report.contents import Report, gather
from layerscope.report.page import page
from layerscope.store import atomic

__all__ = ["write_report"]


def write_report(runs: Any, out: str | Path = "report.html", *, texts: bool = True) -> Path:
    """Write one self-contained HTML page about runs of any kind: folders, runs, maps, or choices of
    a layer; one, or several in a list.

        layerscope.write_report(run)
        layerscope.write_report(["runs/a", "runs/b"], "both.html")

    With `texts=False` the page holds no item of yours.
    """
    check_page_name(out)
    several = isinstance(runs, Iterable) and not isinstance(runs, str)
    return write(gather(runs if several else [runs], texts=texts), out)


def write(report: Report, out: str | Path) -> Path:
    """Write a report that was put together already."""
    check_page_name(out)
    content = page(report).encode()
    atomic.write(Path(out), lambda stream: stream.write(content))
    return Path(out)


def check_page_name(out: str | Path) -> None:
    """Raise an error unless the file's name ends in .html or .htm."""
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise InvalidValueError(
            f"a report is an HTML page, and {out} does not end in .html. "
            "For a picture, save a run's chart: `run.plot().save('run.svg')`."
        )
