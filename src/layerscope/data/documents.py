"""Folders of documents (.txt, .md), a text each."""

from __future__ import annotations

from pathlib import Path

from layerscope.data.readers import SUFFIXES, find_codec, text_lines
from layerscope.data.records import Records, Values, version_check
from layerscope.errors import DataError

DOCUMENTS = (".txt", ".md")


def read_documents(folder: Path, encoding: str | None = None) -> Records:
    """Return every document below a folder as one text, in the order of their paths; hidden files
    and folders are passed over."""
    files = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in DOCUMENTS and not is_hidden and path.is_file():
            files.append(path)
    if not files:
        raise _no_documents(folder)
    codec = find_codec(encoding)

    def values() -> Values:
        for number, path in enumerate(files, 1):
            text = "".join(text_lines(path, codec))
            yield number, {"text": text, "file": path.relative_to(folder).as_posix()}

    facts = {"path": str(folder.resolve()), "files": len(files)}
    return Records(
        "folder", folder.name, str(folder), "file", values(), "text", facts, version_check(*files)
    )


def _no_documents(folder: Path) -> DataError:
    names = sorted(item.name for item in folder.iterdir())
    files = [name for name in names if name.lower().removesuffix(".gz").endswith(SUFFIXES)]
    contents = ""
    if files:
        contents = f" It holds: {', '.join(files[:5])}{', ...' if len(files) > 5 else ''}."
    return DataError(
        f"{folder} is a folder without documents ({', '.join(DOCUMENTS)}). Or give one file of texts "
        f"({', '.join(SUFFIXES)}).{contents}"
    )
