"""The files that a run or an export wrote: its record names them, with the sha256 of each.

The record of a run is its manifest, that of an export its layerscope.json. Arrays and results carry
a checksum in themselves. Everything else in a folder is the user's and stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from layerscope.core.files import read_json, sha256_of
from layerscope.core.runs import MANIFEST, MARKER
from layerscope.errors import ExportError, LayerscopeError, RunFolderError
from layerscope.store import atomic, checked

log = logging.getLogger("layerscope")

TABLES = "tables"
FILES = "files"
"""The keys of a manifest and of an export's layerscope.json under which the sha256 of every file
is."""

_EDITED = (".md", ".csv")  # for people, who may edit or remove them
# In `shards` of an unfinished run: states that are filled in where they lie, and what probes learn.
_WORKING = re.compile(r"[a-z]+\.(b?float\d\d|training\.safetensors)|\..*\.\d+-[0-9a-f]{8}\.part")


def recorded_files(folder: Path) -> dict[Path, str]:
    """Return the sha256 of every file that a run or an export below a folder says it wrote."""
    files: dict[Path, str] = {}
    for name, key in ((MANIFEST, TABLES), (MARKER, FILES)):
        for record in folder.rglob(name):
            with contextlib.suppress(LayerscopeError):
                listed = read_json(record, error=RunFolderError).get(key) or {}
                files |= {record.parent / file: sha for file, sha in listed.items()}
    return files


def record_files(folder: Path) -> None:
    """Write the sha256 of every file of an export into its layerscope.json."""
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    facts = read_json(folder / MARKER, error=ExportError)
    checked.write_json(folder / MARKER, {**facts, FILES: files})


def check_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Check every recorded file below a folder, and every one that carries a checksum.

    Yields each file with what is wrong with it, or nothing.
    """
    recorded = recorded_files(folder)
    for path, digest in sorted(recorded.items()):
        if path.name.endswith(_EDITED):
            continue
        if not path.is_file():
            yield path, "it is missing"
        else:
            yield path, "" if sha256_of(path) == digest else "its checksum does not match"
    checkable = {*folder.rglob("*.json"), *folder.rglob(f"*{checked.ARRAYS}")}
    for path in sorted(checkable - {*recorded}):
        if path.name in (MANIFEST, MARKER) or checked.has_checksum(path):
            try:
                checked.check(path)
            except checked.DamagedFileError as error:
                yield path, error.reason
            else:
                yield path, ""


def remove_recorded(folder: Path) -> list[Path]:
    """Remove from a folder what runs and exports wrote there, and the folders left empty.

    Returns the files that stay, which are the user's.
    """
    if folder.is_symlink() or not folder.is_dir():
        return [folder] if os.path.lexists(folder) else []
    recorded = recorded_files(folder)
    strangers = []
    for path in sorted(folder.rglob("*"), reverse=True):  # what is inside comes before its folder
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        elif _is_as_recorded(path, recorded) or _is_working(path):
            path.unlink(missing_ok=True)
        else:
            strangers.append(path)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return strangers


def give_back(paths: Iterable[Path], source: Path, target: Path) -> None:
    """Move the user's files from a folder that was replaced into the one that replaced it."""
    for path in paths:
        place = atomic.free_name(target / path.relative_to(source), ".old")
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, place)
        log.warning("%s is not a file that layerscope recorded writing: it is kept", place)
    remove_recorded(source)  # the folders, empty by now


def _is_as_recorded(path: Path, recorded: dict[Path, str]) -> bool:
    """Return whether a record names a file; a card or a table that was edited is the user's."""
    is_edited = path.name.endswith(_EDITED)
    return path in recorded and (not is_edited or sha256_of(path) == recorded[path])


def _is_working(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return _WORKING.fullmatch(path.name) is not None or checked.has_checksum(path)
