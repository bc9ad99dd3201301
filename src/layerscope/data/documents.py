"""Folders of documents (.txt, .md), a text each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from layerscope.data.readers import SUFFIXES, Records, codec, text_lines, version_check
from layerscope.errors import DataError

DOCUMENTS = (".txt", ".md")


def read_documents(folder: Path, encoding: str | None = None, whole: bool = False) -> Records:
    """Every document below a folder as one text, in the order of their paths; hidden files and
    folders are passed over."""
    found = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in DOCUMENTS and path.is_file()
    )
    files = [
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not files:
        held = [
            item.name
            for item in sorted(folder.iterdir())
            if item.name.lower().removesuffix(".gz").endswith(SUFFIXES)
        ]
        listed = (
            f" It holds: {', '.join(held[:5])}{', ...' if len(held) > 5 else ''}." if held else ""
        )
        raise DataError(
            f"{folder} is a folder without documents ({', '.join(DOCUMENTS)}). Or give one file of texts "
            f"({', '.join(SUFFIXES)}).{listed}"
        )
    known = codec(encoding)
    records = Records(
        iter(()),
        str(folder),
        "file",
        {"path": str(folder.resolve()), "files": len(files)},
        whole,
        version_check(*files),
    )

    def texts() -> Iterator[tuple[int, object]]:
        for number, path in enumerate(files, 1):
            text = "".join(text_lines(path, known))
            yield number, records.cell({"file": path.relative_to(folder).as_posix()}, "text", text)

    records.items = texts()
    return records
