"""Whether what is on disk is what was written: every table, array and result of a run's folder,
every chunk of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.runs import MANIFEST, NewerVersionError, read_manifest
from layerscope.core.untrusted import CHECKSUM, is_plain_name, sha256_of
from layerscope.errors import RunFolderError
from layerscope.store import checked
from layerscope.store.checked import DamagedFileError, UnreadableFileError
from layerscope.store.ours import TABLES

OK, DAMAGED, UNKNOWN = "ok", "damaged", "not verified"
_FOREIGN = "mteb"  # mteb's own cache: written for people, never read back


@dataclass(frozen=True)
class Check:
    """One file: `ok`, `damaged` with the reason, or `not verified` because an earlier version wrote
    it without a checksum."""

    path: Path
    status: str
    reason: str = ""

    @property
    def error(self) -> DamagedFileError:
        """The file's damage as an error."""
        return DamagedFileError(self.path, self.reason)


def check_table(file: Path, manifest: dict[str, Any]) -> None:
    """Raise `DamagedFileError` where a table is not the one that its run's manifest was written
    for."""
    told = manifest.get(TABLES)
    expected = told.get(file.name) if isinstance(told, dict) else None
    if expected is not None and sha256_of(file) != expected:
        raise DamagedFileError(file, "its checksum is not the one in the manifest")


def check_run(folder: Path, owned: list[str]) -> Iterator[Check]:
    """Check a run's own files: its tables, and everything in the folders that it keeps (`owned`),
    but no run inside it."""
    manifest = read_manifest(folder) or {}
    told = manifest.get(TABLES)
    digests = told if isinstance(told, dict) else {}
    for name in sorted(digests or (file.name for file in folder.glob("*.parquet"))):
        if not is_plain_name(name):
            continue  # an edited manifest must not reach out of its folder
        file = folder / name
        if not file.is_file():
            if (
                file.suffix == ".parquet" or file.exists()
            ):  # what is made from a table may be removed
                yield Check(file, DAMAGED, "it is missing")
        elif name not in digests:
            yield Check(file, UNKNOWN)
        else:
            yield _checked(file, manifest)
    for name in owned:
        if (
            is_plain_name(name)
            and name != _FOREIGN
            and (folder / name).is_dir()
            and not (folder / name).is_symlink()
        ):
            yield from _check_inside(folder / name)


def check_tree(folder: Path) -> Iterator[Check]:
    """Check a run and every run inside it: the parts of a study, the steps of a sweep."""
    for file in sorted(folder.rglob(MANIFEST)):
        run = file.parent
        try:
            manifest = read_manifest(run) or {}
        except NewerVersionError:
            raise
        except RunFolderError as error:
            yield Check(file, DAMAGED, str(error))
            continue
        yield Check(file, OK if CHECKSUM in manifest else UNKNOWN)
        owned = manifest.get("owned")
        yield from check_run(run, [str(name) for name in owned] if isinstance(owned, list) else [])


def _check_inside(folder: Path) -> Iterator[Check]:
    if (folder / MANIFEST).exists():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _check_inside(path)
        elif path.is_symlink() or not path.is_file():
            yield Check(path, DAMAGED, "it is not a file but a link, a pipe or a device")
        elif path.suffix in (".json", ".npy", ".npz"):
            yield _checked(path, {})


def _checked(path: Path, manifest: dict[str, Any]) -> Check:
    try:
        if manifest:
            check_table(path, manifest)
        known = (
            bool(manifest) or checked.is_checked(path) or path.suffix == ".npz"
        )  # which has its members' own
    except DamagedFileError as error:
        return Check(path, DAMAGED, error.reason)
    except UnreadableFileError:
        raise
    except RunFolderError as error:
        return Check(path, DAMAGED, str(error))
    except OSError as error:
        with contextlib.suppress(OSError):
            if not path.exists():
                return Check(path, DAMAGED, "it is missing")
        raise RunFolderError(
            f"cannot read {path}: {error.strerror or error}. Check the disk and the file's rights."
        ) from error
    return Check(path, OK if known else UNKNOWN)
