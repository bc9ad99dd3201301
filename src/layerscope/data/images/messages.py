"""Values between a process and the workers it started: pickled, each behind its length."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any


def send(sink: IO[bytes], value: Any) -> None:
    """Write one value: its length, then its bytes."""
    data = pickle.dumps(value, protocol=5)
    sink.write(struct.pack("<q", len(data)))
    sink.write(data)
    sink.flush()


def receive(source: IO[bytes]) -> Any:
    """Read one value; EOFError where there are no more."""
    head = source.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(source.read(struct.unpack("<q", head)[0]))  # noqa: S301 - from the process that started this one
