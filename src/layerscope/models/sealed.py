"""The checksums of an exported folder: written with it into layerscope.json, compared when it is
used again.

What people may edit or remove is not checked: the model card, tables for spreadsheets, and the map,
which holds texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from layerscope.core.runs import MARKER, refuse_newer
from layerscope.core.untrusted import CHECKSUM, matches_checksum, read_json, sha256_of
from layerscope.errors import ExportError
from layerscope.store import checked
from layerscope.store.ours import FILES
from layerscope.store.verify import DAMAGED, OK, UNKNOWN, Check

_EDITED = (".md", ".csv", "map.npz")


def seal(folder: Path) -> None:
    """Write the sha256 of every file into the folder's layerscope.json."""
    facts = read_json(folder / MARKER, error=ExportError)
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    checked.write_json(folder / MARKER, {**facts, FILES: files})


def check_export(folder: Path, sha256: Callable[[Path], str] = sha256_of) -> list[Check]:
    """Every file of an exported folder with whether it is what was written; nothing where the
    folder is not an export."""
    marker = folder / MARKER
    if not marker.is_file():
        return []
    try:
        facts = read_json(marker, error=ExportError)
    except ExportError as error:
        return [Check(marker, DAMAGED, str(error))]
    if facts.get("kind") != "export":
        return []
    refuse_newer(facts, folder)
    files = facts.get(FILES)
    if CHECKSUM not in facts or not isinstance(files, dict):
        return [Check(marker, UNKNOWN)]
    if matches_checksum(facts) is False:
        return [Check(marker, DAMAGED, "its checksum does not match")]
    listed = {
        str(name): str(digest) for name, digest in files.items() if not str(name).endswith(_EDITED)
    }
    return [
        Check(marker, OK),
        *(_compared(folder, name, digest, sha256) for name, digest in listed.items()),
    ]


def damaged(folder: Path, sha256: Callable[[Path], str] = sha256_of) -> list[Check]:
    """The files of an exported folder that are not what was written."""
    return [check for check in check_export(folder, sha256) if check.status == DAMAGED]


def _compared(folder: Path, name: str, digest: str, sha256: Callable[[Path], str]) -> Check:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        return Check(path, DAMAGED, "it is not in this folder")
    if not path.is_file():
        return Check(path, DAMAGED, "it is missing")
    same = sha256(path) == digest
    return Check(path, OK if same else DAMAGED, "" if same else "its checksum does not match")
