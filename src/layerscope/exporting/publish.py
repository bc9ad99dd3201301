"""A folder that appears whole and verified, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layerscope.exporting.errors import ExportError
from layerscope.store.atomic import explained

MARKER = "layerscope.json"


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse to replace anything but an earlier export, and that only when asked."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportError(f"{out} is a file; an export needs a folder. Choose another --out.")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise ExportError(f"{out} exists and is not empty. Choose another --out, or --overwrite to replace an earlier export.")
    if not _is_export(out):
        raise ExportError(f"{out} holds no export of layerscope, and only those are replaced. Choose another --out.")


@contextmanager
def published(out: Path) -> Iterator[Path]:
    """A scratch folder beside `out` that takes its place at the end; after an `ExportError` it stays as NAME.failed."""
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = out.with_name(f".{out.name}.{os.getpid()}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
    try:
        with explained(out):
            yield scratch
            _replace(scratch, out)
    except ExportError as error:
        if not (scratch / "modules.json").exists():
            raise  # refused before it was complete: nothing to look at
        failed = out.with_name(f"{out.name}.failed")
        shutil.rmtree(failed, ignore_errors=True)
        os.rename(scratch, failed)
        raise ExportError(f"{error} Nothing was written to {out}; what failed is in {failed}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace(scratch: Path, out: Path) -> None:
    for file in scratch.rglob("*.safetensors"):
        file.chmod((scratch / "modules.json").stat().st_mode)  # written for one user only, unlike the rest
    aside = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        os.rename(out, aside)
    os.rename(scratch, out)
    shutil.rmtree(aside, ignore_errors=True)


def _is_export(folder: Path) -> bool:
    try:
        return json.loads((folder / MARKER).read_text(encoding="utf-8")).get("kind") == "export"
    except (OSError, ValueError, AttributeError):
        return False
