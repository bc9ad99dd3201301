"""What else a file says of some of its texts: the other columns of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerscope.data.corpus import TextStream

_MOST = 40  # columns


def columns_beside(source: Mapping[str, Any], texts: Sequence[str]) -> dict[str, list[Any]]:
    """The other columns of the file that texts are from, by name: a value per text, of the first row that has it.

    `source` is what reading the file told of it. The file is read in a stream; one that is gone or has changed gives nothing.
    """
    if source.get("kind") not in ("file", "folder") or "path" not in source:
        return {}
    wanted, found = set(texts), dict[str, Mapping[str, Any]]()
    try:
        for row in TextStream(source["path"], column=source.get("column"), encoding=source.get("encoding")).rows():
            if row.text in wanted:
                found.setdefault(str(row.text), row.others)
    except Exception:  # of many kinds: other columns than those that were read may be damaged
        return {}
    names = list(dict.fromkeys(name for row in found.values() for name in row))[:_MOST]
    values = {name: [found.get(text, {}).get(name) for text in texts] for name in names}
    return {str(name): some for name, some in values.items() if not any(isinstance(value, list | dict) for value in some)}
