"""The corrupter: what a disk, a kill or a careless copy does to a file, from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WAYS = ("flip", "flip", "flip", "flip", "cut", "empty", "zero")


def files_of(folder: Path) -> list[Path]:
    """Every file that may be damaged, in a fixed order. Locks and marks of use hold no content."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("run.lock", "used"))


def damage(path: Path, rng: np.random.Generator) -> str:
    """Damage a file in one way and say how; what was done is different content in every case but that of an empty file."""
    raw = bytearray(path.read_bytes())
    way = str(rng.choice(WAYS))
    if not raw:
        return "nothing"
    place = int(rng.integers(len(raw)))
    if way == "flip":
        raw[place] ^= 1 << int(rng.integers(8))
    elif way == "cut":
        del raw[place:]
    elif way == "empty":
        raw.clear()
    else:
        end = min(len(raw), place + int(rng.integers(1, 64)))
        raw[place:end] = bytes(end - place)
    path.write_bytes(bytes(raw))
    return f"{way} at {place}"
