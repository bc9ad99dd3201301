"""Files that travel inside Debian packages."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from layerscope.errors import DownloadError

_MAGIC, _HEADER = b"!<arch>\n", 60


@contextmanager
def open_deb(data: bytes) -> Iterator[tarfile.TarFile]:
    """The files of a package, as an open archive: a .deb is an `ar` archive with a tar inside it."""
    if not data.startswith(_MAGIC):
        raise DownloadError("what was fetched is not a Debian package.")
    at = len(_MAGIC)
    while at + _HEADER <= len(data):
        name = data[at : at + 16].decode("ascii", "replace").strip().rstrip("/")
        size = int(data[at + 48 : at + 58])
        start = at + _HEADER
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(data[start : start + size])) as archive:
                yield archive
            return
        at = start + size + size % 2  # members begin at even places
    raise DownloadError("the Debian package holds no data.")
