"""Checkpoints as a few tar files of bounded size, for machines from which only small files come
back."""

from __future__ import annotations

import tarfile
from pathlib import Path

LARGEST = 15 * 2**20
TOGETHER = 62 * 2**20


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def plan(out: Path) -> list[list[Path]]:
    """Groups of checkpoint folders, each of one model and small enough for one file; the last steps
    of all models first."""
    groups: list[tuple[int, list[Path]]] = []
    for model in sorted(
        folder for folder in out.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    ):
        steps = sorted(
            model.glob("step*"), key=lambda folder: -int(folder.name.removeprefix("step"))
        )
        held: list[Path] = []
        order = 0
        for step in steps:
            if held and sum(map(_size, [*held, step])) > LARGEST:
                groups.append((order, held))
                held, order = [], order + 1
            held.append(step)
        if held:
            groups.append((order, held))
    return [folders for _, folders in sorted(groups, key=lambda group: group[0])]


def parts(out: Path) -> list[list[list[Path]]]:
    """The groups, again grouped into what may travel together: seven tar files and the log."""
    made: list[list[list[Path]]] = [[]]
    for group in plan(out):
        travelling = [*made[-1], group]
        if (
            len(travelling) > 7
            or sum(_size(folder) for folders in travelling for folder in folders) > TOGETHER
        ):
            made.append([])
        made[-1].append(group)
    return made


def pack(out: Path, into: Path, part: int) -> str:
    """Write one part (from 1) into the folder `into`; says what it holds and whether more
    follow."""
    everything = parts(out)
    into.mkdir(parents=True, exist_ok=True)
    for group in everything[part - 1]:
        name = group[0].parent.name
        file = into / f"{name}-{'-'.join(folder.name for folder in group)}.tar"
        with tarfile.open(file, "w") as archive:
            for folder in group:
                archive.add(folder, f"{name}/{folder.name}")
    logs = [model / "log.csv" for model in sorted(out.iterdir()) if (model / "log.csv").is_file()]
    lines = [
        line
        for i, log in enumerate(logs)
        for line in log.read_text(encoding="utf-8").splitlines()[min(i, 1) :]
    ]
    (into / "log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"part {part} of {len(everything)}: {', '.join(file.name for file in sorted(into.iterdir()))}"


def unpack(folder: Path, out: Path) -> None:
    """Unpack all tar files of a folder below `out`."""
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file) as archive:
            archive.extractall(out, filter="data")
