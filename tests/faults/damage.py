"""The corrupter: what a disk, a kill or a careless copy does to a file, from a seed.

    python -m tests.faults.damage probe-killed 250 0   # whose files, how many are damaged, the seed
    python -m tests.faults.damage store 250 0

A run that was killed on its way is copied, one of its files is damaged, and the same command goes
on with it: the same numbers as an undisturbed run, or a clear refusal. Files of a kind that there
are few of are drawn as often as others. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("flip", "flip", "flip", "flip", "cut", "empty", "zero")
# whose folder it is, or what it is, can no longer be told: the command refuses to touch it
IDENTITIES = ("manifest.json", "space.json")
KINDS = ("profile-killed", "evaluate-killed", "probe-killed", "store")


def files_of(folder: Path) -> list[Path]:
    """Every file that may be damaged, in a fixed order. Locks hold no content."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")


def kind_of(path: Path, folder: Path) -> str:
    """What a file is: its name without its numbers and keys."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "#", path.relative_to(folder).as_posix())


def choose(folder: Path, rng: np.random.Generator) -> Path:
    """A file: first its kind, then which one of that kind."""
    by_kind: dict[str, list[Path]] = {}
    for path in files_of(folder):
        by_kind.setdefault(kind_of(path, folder), []).append(path)
    some = by_kind[sorted(by_kind)[int(rng.integers(len(by_kind)))]]
    return some[int(rng.integers(len(some)))]


def damage(path: Path, rng: np.random.Generator) -> str:
    """Damage a file in one way and say how; its content is another one afterwards, unless it was
    empty."""
    raw = bytearray(path.read_bytes())
    way = str(rng.choice(WAYS))
    if not raw:
        return "nothing"
    before = bytes(raw)
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
        if raw == before:  # zeros were there already, as in the block of zeros of an exported model
            way = "flip"
            raw[place] ^= 1
    path.write_bytes(bytes(raw))
    return f"{way} at {place}"


def damage_runs(kind: str, count: int, seed: int) -> dict[str, Any]:
    """So many damaged files of the folder of one command that was killed.

    Every run needs a child of its own: threads do not survive a fork, so this process computes
    nothing itself.
    """
    from tests.faults.commands import Commands, same, tables
    from tests.faults.killer import arm, count_steps, forked

    home = Path(tempfile.mkdtemp(prefix="layerscope-damage-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    name = kind.partition("-")[0]
    commands = Commands(home, [name])
    whole, case, start = home / "whole", home / "case", home / "killed"
    rng = np.random.default_rng([seed, sum(kind.encode())])

    def go_on() -> None:
        commands.run(name, case)
        assert same(tables(case), tables(whole)), "other numbers"

    assert forked(lambda: commands.run(name, whole))[0] == 0
    steps = count_steps(lambda: commands.run(name, home / "counted"), home)
    while not _is_stopped(start / "run"):
        shutil.rmtree(start, ignore_errors=True)
        forked(lambda: commands.run(name, start), partial(arm, int(steps * rng.uniform(0.6, 0.97))))
    clock = time.monotonic()
    found: dict[str, Any] = {"damaged": kind, "files": 0, "silent": [], "errors": []}
    kinds = Counter[str]()
    for number in range(count):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(start, case)
        file = choose(case, rng)
        kinds[kind_of(file, case)] += 1
        done = f"{kind} {number}: {file.relative_to(case)}, {damage(file, rng)}"
        found["files"] += 1
        code, said = forked(go_on)
        refused = code == 3 and file.name in IDENTITIES
        if code and not refused:
            where = "silent" if "other numbers" in said else "errors"
            found[where].append(f"{done}: {said[-600:]}")
    shutil.rmtree(home, ignore_errors=True)
    return {**found, "of": dict(kinds), "seconds": round(time.monotonic() - clock)}


def _is_stopped(folder: Path) -> bool:
    """Whether a folder holds a part of a run: of a finished one a damaged table is an error."""
    from layerscope.store import RunFolder
    from layerscope.store.folder import is_complete

    manifest = RunFolder(folder).manifest() if folder.is_dir() and files_of(folder) else None
    return manifest is not None and not is_complete(manifest)


def damage_store(count: int, seed: int) -> dict[str, Any]:
    """So many damaged files of an embedding store: what it gives is right, or it says that it has
    not got it."""
    from layerscope.errors import LayerscopeError
    from layerscope.vectors import Shard, VectorStore

    home = Path(tempfile.mkdtemp(prefix="layerscope-damage-"))
    rng = np.random.default_rng(seed)
    keys = [bytes([i]) * 32 for i in range(6)]
    vectors = rng.standard_normal((3, 6, 5)).astype(np.float32)
    space = VectorStore(home / "whole").space({"model": "m"})
    for part in (slice(0, 4), slice(4, 6)):
        numbers = {"tokens": np.arange(6)[part]}
        space.add(Shard(keys[part], ["a", "b", "c"], {"mean": vectors[:, part]}, numbers))
    clock = time.monotonic()
    found: dict[str, Any] = {"damaged": "store", "files": 0, "silent": [], "errors": []}
    kinds: Counter[str] = Counter()
    for number in range(count):
        case = home / str(number)
        shutil.copytree(home / "whole", case)
        file = choose(case, rng)
        kinds[kind_of(file, case)] += 1
        done = f"store {number}: {file.name}, {damage(file, rng)}"
        found["files"] += 1
        try:
            opened = VectorStore(case).space({"model": "m"})
            there = ~opened.missing(keys, ["mean"], ["a", "b", "c"])
            some = [key for key, is_there in zip(keys, there, strict=True) if is_there]
            read = [opened.read(some, "mean", site) if some else np.empty((0, 5)) for site in "abc"]
            right = all(np.array_equal(one, vectors[i][there]) for i, one in enumerate(read))
            if not right or (
                some
                and not np.array_equal(opened.read_numbers(some, "tokens"), np.flatnonzero(there))
            ):
                found["silent"].append(done)
        except LayerscopeError:
            if file.name != "space.json":
                found["errors"].append(done)
        except Exception as error:
            found["errors"].append(f"{done}: {type(error).__name__}: {str(error)[:300]}")
        shutil.rmtree(case)
    shutil.rmtree(home, ignore_errors=True)
    return {**found, "of": dict(kinds), "seconds": round(time.monotonic() - clock)}


def corrupt(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Damage `count` files of one kind of folder and say what came of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return damage_store(count, seed) if kind == "store" else damage_runs(kind, count, seed)


if __name__ == "__main__":
    print(json.dumps(corrupt(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
