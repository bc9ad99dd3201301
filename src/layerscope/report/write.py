"""`write_report`: runs in, one file out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerscope.core.runs import explain_damage_in, read_manifest
from layerscope.errors import RunFolderError, UnknownNameError
from layerscope.report.contents import Report, gather
from layerscope.store import atomic

FORMATS = ("html", "md", "pdf", "png", "svg")
_SUFFIXES = {"htm": "html", "markdown": "md"}


def write_report(runs: Any, out: str | Path = "report.html", *, texts: bool = True) -> Path:
    """Write one report about runs of any kind: folders, runs, maps, or choices of a layer; one, or
    several in a list.

        layerscope.write_report(run)
        layerscope.write_report(["runs/a", "runs/b"], "report.pdf")

    The suffix sets the format.

    `.html` is a self-contained page; `.md` is text; `.pdf` (a page per figure), `.png` and `.svg`
    are figures. With `texts=False` no text, image or sound of yours is in it.
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


def page_for(
    runs: Sequence[Path], others: Sequence[Any] = (), asks: bool = False, texts: bool = True
) -> Path:
    """The file to show: a new report in the only run's folder, or in a temporary one.

    A page that `asks` has a box for questions, which only its server can answer: it goes to a
    temporary folder.
    """
    if asks:
        report = replace(gather([*runs, *others], texts=texts), asks=True)
        return write(report, Path(tempfile.mkdtemp(prefix="layerscope-")) / "report.html")
    if len(runs) == 1 and not others:
        try:
            return write_report(runs, runs[0] / "report.html", texts=texts)
        except RunFolderError:
            if (read_manifest(runs[0]) or {}).get("status") != "complete":
                raise
    return write_report(
        [*runs, *others], Path(tempfile.mkdtemp(prefix="layerscope-")) / "report.html", texts=texts
    )


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
