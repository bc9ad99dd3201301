"""`write_report`: runs in, one file out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerscope.core.runs import explain_damage_in
from layerscope.errors import UnknownNameError
from layerscope.report.contents import Report, gather
from layerscope.store import atomic

FORMATS = ("html", "md", "pdf", "png", "svg")
_SUFFIXES = {"htm": "html", "markdown": "md"}


def write_report(runs: Any, out: str | Path = "report.html", *, texts: bool = True) -> Path:
    """Write one report about runs of any kind: folders, runs, maps, or choices of a layer; one, or several in a list.

        layerscope.write_report(run)
        layerscope.write_report(["runs/a", "runs/b"], "report.pdf")

    The suffix sets the format.

    `.html` is a self-contained page; `.md` is text; `.pdf` (a page per figure), `.png` and `.svg` are figures. With
    `texts=False` no text, image or sound of yours is in it.
    """
    format_of(Path(out))  # before the work: an unknown format is an error at once
    several = isinstance(runs, Iterable) and not isinstance(runs, str)
    return write(gather(runs if several else [runs], texts=texts), out)


def write(report: Report, out: str | Path) -> Path:
    """Write a report that was put together already."""
    kind = format_of(Path(out))
    with explain_damage_in([run.path for run in report.runs if run.path is not None]):
        made = _made(report, kind)
    atomic.write(Path(out), lambda stream: stream.write(made))
    return Path(out)


def _made(report: Report, kind: str) -> bytes:
    """The file's contents. Only what this format needs is loaded."""
    if kind == "html":
        from layerscope.report.page import page

        return page(report).encode()
    if kind == "md":
        from layerscope.report.markdown import markdown

        return markdown(report).encode()
    from layerscope.report.paper import report_bytes

    return report_bytes(report, kind)


def format_of(target: Path) -> str:
    """The format that a file's name asks for."""
    suffix = target.suffix.lower().removeprefix(".")
    kind = _SUFFIXES.get(suffix, suffix)
    if kind not in FORMATS:
        raise UnknownNameError("report format", target.suffix or target.name, FORMATS)
    return kind
