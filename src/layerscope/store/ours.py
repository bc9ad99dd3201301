"""Which files are ours to remove: those that layerscope recorded writing, with a checksum that
still matches.

A record is a run's manifest (its tables), an export's layerscope.json (its files), or the checksum
that an array or a result carries in itself. Everything else is the user's and stays, wherever it
lies and whatever it is called.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from layerscope.core.runs import MANIFEST, MARKER
from layerscope.core.untrusted import matches_checksum, read_json, sha256_of
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.store import atomic, checked

log = logging.getLogger("layerscope")

TABLES, FILES = "tables", "files"
"""The keys of a manifest and of an export's layerscope.json under which the sha256 of every file
is."""

SHARDS = "shards"
# In that folder of an unfinished run: its shards, states that are filled in where they lie, and
# what probes have learned.
_WORKING = re.compile(
    r"(\d{6}\.(pooled\.npy|values\.npz)|[a-z]+\.(b?float\d\d|answers\.npz|training\.(npz|safetensors)|scale\.npz)|kept\.json)(\.damaged)*"
)


def recorded_checksums(folder: Path) -> dict[Path, str]:
    """The sha256 of every file that a run or an export in a folder, or further inside, says it
    wrote."""
    found: dict[Path, str] = {}
    for name, key in ((MANIFEST, TABLES), (MARKER, FILES)):
        for file in folder.rglob(name):
            with contextlib.suppress(LayerscopeError):
                facts = read_json(file, error=RunFolderError)
                listed = facts.get(key)
                if matches_checksum(facts) and isinstance(listed, dict):
                    found.update(
                        {file.parent / str(name): str(digest) for name, digest in listed.items()}
                    )
    return found


def remove_ours(folder: Path, recorded: dict[Path, str] | None = None) -> list[Path]:
    """Remove from a folder what is ours, then the folders that are left empty and the folder
    itself; returns what stays."""
    if folder.is_symlink() or not folder.is_dir():
        return [folder] if folder.is_symlink() or folder.exists() else []
    known = recorded_checksums(folder) if recorded is None else recorded
    stays = []
    for path in sorted(
        folder.rglob("*"), reverse=True
    ):  # what is inside a folder comes before the folder
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        elif _is_ours(path, known):
            path.unlink(missing_ok=True)
        else:
            stays.append(path)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return stays


def give_back(paths: Iterable[Path], source: Path, target: Path) -> None:
    """Move the files that stay from a folder that was replaced into the one that replaced it."""
    for path in paths:
        place = atomic.free_name(target / path.relative_to(source), ".old")
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, place)
        log.warning("%s is not a file that layerscope recorded writing: it is kept", place)
    remove_ours(source)  # the folders, empty by now


def _is_ours(path: Path, recorded: dict[Path, str]) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if atomic.is_part(path) or (path.parent.name == SHARDS and _WORKING.fullmatch(path.name)):
        return True
    if path in recorded:
        return sha256_of(path) == recorded[path]
    try:
        return checked.is_checked(path)
    except RunFolderError:
        return False
