"""The kinds of runs, how any finished run is opened, and where the views of each kind live.

A kind is one row: its class and its views, as "module:name" strings that are imported when they are
first used. So a run can plot itself although drawing lives several floors above it. Another package
adds a kind through an entry point:

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

from layerscope.core.files import exists
from layerscope.core.json import matches_checksum, read_json
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
MARKER = "layerscope.json"  # of an export or a converted model, written last: where it is, the folder is complete


@dataclass(frozen=True)
class RunKind:
    """One kind of run: its class (which has `load(path)`) and its views, each as "module:name"."""

    name: str
    target: str
    views: Mapping[str, str] = field(default_factory=dict)

    def load(self, path: str | Path) -> Any:
        """Open a finished run of this kind."""
        return resolve(self.target).load(path)

    def view(self, name: str) -> Callable[..., Any]:
        """The function behind a view, such as `plot`."""
        if name not in self.views:
            raise UnknownNameError(f"view of a {self.name} run", name, self.views)
        return resolve(self.views[name])


run_kinds: Registry[RunKind] = Registry(
    "kind of run",
    "layerscope.runs",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, RunKind),
    hint="A newer version of layerscope may have written this run.",
)

_SECTIONS = "layerscope.report.sections"
_IMPROVED = "layerscope.improving.terminal"
_NOTEBOOK = "layerscope.report.notebook"
for _name, _target, _views in (
    (
        "profile",
        "layerscope.profiling.run:Profile",
        {
            "plot": f"{_SECTIONS}.profile:plot_profiles",
            "print": f"{_SECTIONS}.profile:print_run",
            "choose": "layerscope.choose.select:select",
        },
    ),
    (
        "evaluation",
        "layerscope.evaluation.run:Evaluation",
        {
            "plot": f"{_SECTIONS}.evaluation:plot_scores",
            "print": f"{_SECTIONS}.evaluation:print_evaluation",
        },
    ),
    (
        "probe",
        "layerscope.probing.run:ProbeRun",
        {"plot": f"{_SECTIONS}.probe:plot_probes", "print": f"{_SECTIONS}.probe:print_probes"},
    ),
    (
        "improve",
        "layerscope.improving.result:Improved",
        {
            "plot": "layerscope.report.choosing:plot_choice",
            "print": f"{_IMPROVED}:print_improved",
            "text": f"{_IMPROVED}:as_text",
        },
    ),
    (
        "encoder",
        "layerscope.blocks.result:FasterEncoder",
        {
            "plot": f"{_SECTIONS}.encoder:plot_faster",
            "print": "layerscope.blocks.words:print_faster",
            "text": "layerscope.blocks.words:as_text",
        },
    ),
):
    _common = {"html": f"{_NOTEBOOK}:result_html", "report": "layerscope.report.write:write_report"}
    run_kinds.add(RunKind(_name, _target, {**_common, **_views}))
_MORE_VIEWS = {  # of what is not a run in a folder
    ("map", "read"): "layerscope.maps:read_map",
    ("map", "of"): "layerscope.maps.layer_map:map_of",
    ("map", "write"): "layerscope.report.write:write_report",
    ("map", "html"): f"{_NOTEBOOK}:map_html",
    ("choice", "html"): f"{_NOTEBOOK}:choice_html",
}


def resolve(target: str) -> Any:
    """The thing that "module:name" stands for."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def view(kind: str, name: str) -> Callable[..., Any]:
    """The function that shows runs of a kind in some way; it is imported now."""
    if (kind, name) in _MORE_VIEWS:
        return resolve(_MORE_VIEWS[kind, name])
    return run_kinds.get(kind).view(name)


_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{i}" for port in ("com", "lpt") for i in "0123456789¹²³"),
}


def is_reserved(name: str) -> bool:
    """Whether Windows takes a name for a device, or drops its end."""
    return name.partition(".")[0].casefold() in _RESERVED or name.endswith(".")


def on_disk(name: str) -> str:
    """What a disk may take a name for: some tell neither capitals nor ways to write an accent
    apart."""
    return unicodedata.normalize("NFC", name.casefold())


def folder_name(text: str) -> str:
    """A name, or the last part of a path, as the name of a folder on any system.

    >>> folder_name("org/my model@v1"), folder_name("NUL.txt"), folder_name("..")
    ('my-model-v1', '_NUL.txt', '-')
    """
    plain = (
        "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(text).name or text).rstrip(
            "."
        )
        or "-"
    )
    return f"_{plain}" if is_reserved(plain) else plain


def load_run(path: str | Path) -> Any:
    """Open any finished run by its folder: a profile, an evaluation, probes, an improvement or
    what another package adds.

    run = layerscope.load_run("runs/smollm2-135m--lee--applied")
    run.kind, run.summary(), run.tables()
    """
    manifest = read_manifest(path)
    if manifest is None:
        raise RunFolderError(no_run(Path(path)))
    kind = run_kinds.get(str(manifest.get("kind")))
    finished_manifest(path)
    return kind.load(path)


def refuse_newer(facts: dict[str, Any], where: Path) -> None:
    """Raise where a manifest, or the marker of an export, is of a later version than this."""
    told, own = (
        re.match(r"(\d{1,6})\.(\d{1,6})", str(version))
        for version in (facts.get("layerscope"), VERSION)
    )
    if told and own and tuple(map(int, told.groups())) > tuple(map(int, own.groups())):
        raise RunFolderError(
            f"{where} was written by layerscope {one_line(str(facts['layerscope']))[:40]}, and this is {VERSION}. "
            "Update layerscope to use it."
        )


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None where there is none."""
    folder = Path(path)
    if not exists(folder):
        return None
    if not folder.is_dir():
        raise RunFolderError(
            f"{folder} is a file; a run is a folder. Give the folder that the command wrote."
        )
    file = folder / MANIFEST
    try:
        if not file.exists():
            return None
        found = read_json(file, error=RunFolderError)
        if matches_checksum(found) is False:
            raise RunFolderError(
                "its content does not match its checksum: it was damaged or edited"
            )
    except (RunFolderError, OSError) as error:
        raise RunFolderError(
            f"{file} cannot be read ({error}). Delete the folder or choose another one."
        ) from error
    refuse_newer(found, folder)
    return dict(found)


def finished_manifest(path: str | Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of a finished run, of a given kind where one is named."""
    manifest = read_manifest(path)
    if manifest is None:
        raise RunFolderError(no_run(Path(path)))
    actual = str(manifest.get("kind"))
    if kind is not None and actual != kind:
        raise RunFolderError(
            f"{path} holds a run of kind {actual!r}, not {kind!r}. `layerscope.load_run` opens any kind."
        )
    if manifest.get("status") != "complete":
        raise RunFolderError(
            f"the {actual} run in {path} is not finished. Run the same command again: it resumes."
        )
    return manifest


def no_run(folder: Path) -> str:
    """What to say of a folder that holds no run."""
    if not exists(folder):
        return (
            f"{folder} holds no run: there is no such folder. Give a folder that a layerscope command wrote. "
            "If it is a model, profile it first: `layerscope profile MODEL --data YOUR_TEXTS`."
        )
    inside = sorted(child.name for child in folder.iterdir() if (child / MANIFEST).exists())
    if inside:
        shown = ", ".join(inside[:3]) + (" …" if len(inside) > 3 else "")
        return f"{folder} holds no run itself, but folders that do ({shown}). Give one of those."
    return f"{folder} holds no run: there is no {MANIFEST} in it. Give a folder that a layerscope command wrote."
