"""Which column of a table holds the texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from layerscope.errors import DataError

PREFERRED = ("text", "sentence", "content")


def choose_column(given: str | None, columns: Mapping[str, bool], where: str) -> str:
    """The column to read: the one given, else one with a usual name, else the only one that holds text.

    `columns` says of each column whether it holds strings.

    >>> choose_column(None, {"id": False, "body": True}, "posts.csv")
    'body'
    """
    listed = ", ".join(repr(name) for name in columns) or "none"
    strings = [name for name, is_string in columns.items() if is_string]
    if given is not None:
        if given not in columns:
            near = difflib.get_close_matches(given, list(columns), n=1, cutoff=0.5)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{where} has no column {given!r}.{guess} Columns: {listed}.")
        if given not in strings:
            texts = ", ".join(repr(name) for name in strings) or "none"
            raise DataError(f"{where}: column {given!r} does not hold text. Columns that do: {texts}.")
        return given
    by_name = {name.strip().lower(): name for name in reversed(strings)}
    for name in PREFERRED:
        if name in by_name:
            return by_name[name]
    if len(strings) == 1:
        return strings[0]
    found = "no column of text" if not strings else f"{len(strings)} columns of text"
    raise DataError(f"{where} has {found}. Name the one to read with column=. Columns: {listed}.")
