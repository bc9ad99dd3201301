"""The kinds of runs, how any finished run is opened, and the views of each kind.

A kind names its class and its views as "module:name", which are imported when they are first used.
So a run can plot itself although drawing lives several floors above it. Another package adds a kind
through an entry point:

    [project.entry-points."layerscope.runs"]
    my_kind = "my_package.runs:MY_KIND"  # a RunKind
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerscope.core.files import exists, matches_checksum, read_json
from layerscope.core.plugins import Registry
from layerscope.errors import RunFolderError, UnknownNameError, one_line
from layerscope.version import VERSION

__all__ = [
    "MARKER",
    "RunKind",
    "finished_manifest",
    "folder_name",
    "is_reserved",
    "load_run",
    "on_disk",
]

MANIFEST = "manifest.json"
MARKER = "layerscope.json"
"""The marker of an export or a converted model. It is written last: the folder is complete."""


@dataclass(frozen=True)
class RunKind:
    """One kind of run: its class (which has `load(path)`) and its views, each as "module:name"."""

    name: str
    target: str
    views: Mapping[str, str] = field(default_factory=dict)

    def load(self, path: str | Path) -> Any:
        """Open a finished run of this kind."""
        return resolve(self.target).load(path)


run_kinds: Registry[RunKind] = Registry(
    "kind of run",
    "layerscope.runs",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, RunKind),
    hint="A newer version of layerscope may have written this run.",
)

_REPORT = "layerscope.report"
_IMPROVED = "layerscope.improving.words"
_BLOCKS = "layerscope.blocks.result"
_NOTEBOOK = "layerscope.report.notebook"
_WRITE = "layerscope.report.page:write_report"
_ALL_RUNS = {"html": f"{_NOTEBOOK}:result_html", "report": _WRITE}
for _kind in (
    RunKind(
        "profile",
        "layerscope.profiling.run:Profile",
        {
            **_ALL_RUNS,
            "section": f"{_REPORT}.profile:section",
            "plot": f"{_REPORT}.profile:plot_profiles",
            "print": f"{_REPORT}.profile:print_run",
            "choose": "layerscope.choose.select:select",
        },
    ),
    RunKind(
        "evaluation",
        "layerscope.evaluation.run:Evaluation",
        {
            **_ALL_RUNS,
            "section": f"{_REPORT}.scores:evaluation_section",
            "plot": f"{_REPORT}.scores:plot_scores",
            "print": f"{_REPORT}.scores:print_evaluation",
        },
    ),
    RunKind(
        "probe",
        "layerscope.probing.run:ProbeRun",
        {
            **_ALL_RUNS,
            "section": f"{_REPORT}.scores:probe_section",
            "plot": f"{_REPORT}.scores:plot_probes",
            "print": f"{_REPORT}.scores:print_probes",
        },
    ),
    RunKind(
        "improve",
        "layerscope.improving.result:Improved",
        {
            **_ALL_RUNS,
            "section": f"{_REPORT}.improve:improve_section",
            "plot": f"{_REPORT}.improve:plot_choice",
            "print": f"{_IMPROVED}:print_improved",
            "text": f"{_IMPROVED}:as_text",
        },
    ),
    RunKind(
        "encoder",
        "layerscope.blocks.result:FasterEncoder",
        {
            **_ALL_RUNS,
            "section": f"{_REPORT}.improve:encoder_section",
            "plot": f"{_REPORT}.improve:plot_faster",
            "print": f"{_BLOCKS}:print_faster",
            "text": f"{_BLOCKS}:as_text",
        },
    ),
):
    run_kinds.add(_kind)
_OTHER_VIEWS = {  # of what is not a run in a folder
    ("map", "read"): "layerscope.maps:read_map",
    ("map", "of"): "layerscope.maps.layer_map:map_of",
    ("map", "write"): _WRITE,
    ("map", "html"): f"{_NOTEBOOK}:map_html",
    ("choice", "html"): f"{_NOTEBOOK}:choice_html",
}


def resolve(target: str) -> Any:
    """Return the thing that "module:name" stands for."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def view(kind: str, name: str) -> Callable[..., Any]:
    """Return the function that shows runs of a kind in some way, such as `plot`."""
    if (kind, name) in _OTHER_VIEWS:
        return resolve(_OTHER_VIEWS[kind, name])
    views = run_kinds.get(kind).views
    if name not in views:
        raise UnknownNameError(f"view of a {kind} run", name, views)
    return resolve(views[name])


_PORTS = {f"{port}{i}" for port in ("com", "lpt") for i in "0123456789¹²³"}
_RESERVED = {"con", "prn", "aux", "nul", *_PORTS}


def is_reserved(name: str) -> bool:
    """Return whether Windows takes a name for a device, or drops its end."""
    return name.partition(".")[0].casefold() in _RESERVED or name.endswith(".")


def on_disk(name: str) -> str:
    """Return a name as a disk may compare it: some tell neither capitals nor ways to write an
    accent apart."""
    return unicodedata.normalize("NFC", name.casefold())


def folder_name(text: str) -> str:
    """Return a name, or the last part of a path, as the name of a folder on any system.

    >>> folder_name("org/my model@v1"), folder_name("NUL.txt"), folder_name("..")
    ('my-model-v1', '_NUL.txt', '-')
    """
    name = Path(text).name or text
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).rstrip(".") or "-"
    return f"_{plain}" if is_reserved(plain) else plain


def load_run(path: str | Path) -> Any:
    """Open any finished run by its folder: a profile, an evaluation, probes, an improvement or
    what another package adds.

    run = layerscope.load_run("runs/smollm2-135m--lee--applied")
    run.kind, run.summary(), run.tables()
    """
    return run_kinds.get(str(finished_manifest(path).get("kind"))).load(path)


def _version_numbers(version: object) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,6})\.(\d{1,6})", str(version))
    return (int(match[1]), int(match[2])) if match else None


def refuse_newer(facts: Mapping[str, Any], where: Path) -> None:
    """Raise an error if a manifest, or the marker of an export, is of a later version than this."""
    written_by = _version_numbers(facts.get("layerscope"))
    current = _version_numbers(VERSION)
    if written_by and current and written_by > current:
        raise RunFolderError(
            f"{where} was written by layerscope {one_line(str(facts['layerscope']))[:40]}, and "
            f"this is {VERSION}. Update layerscope to use it."
        )


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """Return the manifest of a folder, or None where there is none."""
    folder = Path(path)
    if not exists(folder):
        return None
    if not folder.is_dir():
        raise RunFolderError(
            f"{folder} is a file; a run is a folder. Give the folder that the command wrote."
        )
    file = folder / MANIFEST
    if not exists(file):
        return None
    repair = "Delete the folder or choose another one."
    try:
        manifest: dict[str, Any] = read_json(file, error=RunFolderError)
    except RunFolderError as error:
        raise RunFolderError(f"{file} cannot be read ({error}). {repair}") from error
    if not matches_checksum(manifest):
        raise RunFolderError(f"{file} does not match its checksum: it was damaged. {repair}")
    refuse_newer(manifest, folder)
    return manifest


def finished_manifest(path: str | Path, kind: str | None = None) -> dict[str, Any]:
    """Return the manifest of a finished run, of a given kind where one is named."""
    manifest = read_manifest(path)
    if manifest is None:
        raise RunFolderError(no_run(Path(path)))
    actual = str(manifest.get("kind"))
    if kind is not None and actual != kind:
        raise RunFolderError(
            f"{path} holds a run of kind {actual!r}, not {kind!r}. `layerscope.load_run` opens any "
            "kind."
        )
    if manifest.get("status") != "complete":
        raise RunFolderError(
            f"the {actual} run in {path} is not finished. Run the same command again: it resumes."
        )
    return manifest


_HINT = (
    "Give a folder that a layerscope command wrote. If it is a model, profile it first: "
    "`layerscope profile MODEL --data YOUR_TEXTS`."
)


def no_run(folder: Path) -> str:
    """Return the error for a folder that holds no run."""
    if not exists(folder):
        return f"{folder} holds no run: there is no such folder. {_HINT}"
    inside = sorted(child.name for child in folder.iterdir() if (child / MANIFEST).exists())
    if inside:
        shown = ", ".join(inside[:3])
        return f"{folder} holds no run itself, but folders that do ({shown}). Give one of those."
    return f"{folder} holds no run: there is no {MANIFEST} in it. {_HINT}"
