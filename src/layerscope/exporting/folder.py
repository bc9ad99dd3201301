"""The folder of an export: it appears complete, or not at all, and no file of the user is lost."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerscope.core.runs import folder_name
from layerscope.errors import ExportError
from layerscope.store.atomic import explained, lock_beside, part_of, remove_parts, sync_folder
from layerscope.store.records import give_back, record_files, recorded_files, remove_recorded


def default_place(model: Any) -> Path:
    """Return the folder of an export for which the user names none.

    >>> default_place("org/name").as_posix()
    'exports/name'
    """
    name = model if isinstance(model, str | Path) else getattr(model, "name", type(model).__name__)
    return Path("exports") / folder_name(str(name))


def check_free(out: Path, overwrite: bool) -> None:
    """Raise unless the place is free, or holds an earlier export that may be overwritten."""
    if not out.exists():
        return
    problem = ""
    if not out.is_dir():
        problem = f"{out} is a file; an export needs a folder. Choose another out=."
    elif out.samefile(Path()):  # another folder takes its place, and the shell would be nowhere
        problem = (
            f"out={str(out)!r} is the current folder. Name a folder in it, such as out='better'."
        )
    elif any(out.iterdir()):
        if not overwrite:
            problem = (
                f"{out} exists and is not empty. Choose another out=, or overwrite=True to "
                "replace an earlier export."
            )
        elif out / "modules.json" not in recorded_files(out):
            problem = (
                f"{out} holds no export of layerscope that says which files are its own, and only "
                "those are replaced. Choose another out=."
            )
    if problem:
        raise ExportError(problem)


@contextmanager
def published(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a scratch folder beside `out` that takes its place at the end.

    A second process is refused. Files in `out` that no export recorded writing are kept.
    """
    out = out.resolve()  # the target of a link is replaced, not the link
    aside = out.with_name(f"{out.name}.old")
    with lock_beside(out, "exporting"):
        with explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            for earlier in out.parent.glob(f".{glob.escape(aside.name)}.*.part"):
                if out.exists():  # an export was killed after it took the place of this one
                    give_back(remove_recorded(earlier), earlier, out)
                else:
                    os.rename(earlier, out)
            remove_parts(out.parent, of=(f".{out.name}",))  # of exports that were killed
            check_free(out, overwrite)  # another process may have written it meanwhile
            scratch = part_of(out)
            scratch.mkdir()
        try:
            with explained(out):
                yield scratch
                record_files(scratch)
                mode = (scratch / "modules.json").stat().st_mode
                for file in scratch.rglob("*.safetensors"):
                    file.chmod(mode)  # safetensors writes for one user only
                earlier = part_of(aside)
                if out.exists():
                    os.rename(out, earlier)
                os.rename(scratch, out)
                sync_folder(out.parent)
                give_back(remove_recorded(earlier), earlier, out)
        except ExportError as error:
            raise ExportError(f"{error} Nothing was written to {out}.") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
