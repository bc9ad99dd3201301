"""`layerscope store` and `verify`: what is on this machine, whether it is whole, and making
room."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.core.formatting import describe_size
from layerscope.core.options import parse_size
from layerscope.errors import RunFolderError, printable


@command("store", "layerscope store --older-than 30")
def store_command(
    output: shared.Listing,
    prune: str | None = typer.Option(
        None,
        "--prune",
        help="Remove the least recently used vectors until this much is left, e.g. 2GB.",
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", help="Remove vectors not used for this many days."
    ),
) -> None:
    """Show what the embedding store holds, or remove old vectors."""
    from layerscope.cache import cache_dir
    from layerscope.store.embeddings import EmbeddingStore

    store = EmbeddingStore(cache_dir() / "embeddings", None)
    leftovers = store.remove_leftovers()
    removed: list[Any] = []
    if prune is not None or older_than is not None:
        days = None if older_than is None else older_than * 86400
        removed = store.prune(
            keep_bytes=None if prune is None else parse_size(prune), older_than=days
        )
    spaces = store.spaces()
    freed = sum(space.bytes for space in removed)

    def printed() -> None:
        from layerscope.terminal import Console

        console = Console(highlight=False)
        if leftovers:
            console.print(
                f"removed {describe_size(leftovers)} that runs which were killed had left"
            )
        if prune is not None or older_than is not None:
            console.print(f"removed {len(removed)} sets of vectors, {describe_size(freed)}")
        for info in spaces:
            model = info.description.get("model", {})
            day = time.strftime("%Y-%m-%d", time.localtime(info.last_used))
            name = f"{model.get('architecture')} {str(model.get('weights_sha256'))[:8]}"
            console.print(
                f"{describe_size(info.bytes):>11}  {info.texts:7} texts  used {day}  {name}  ",
                end="",
            )
            console.print(repr(str(info.description.get("template"))), markup=False)
        console.print(f"{describe_size(store.size()):>11} in all, in {store.root}", soft_wrap=True)

    listed = [
        {"bytes": s.bytes, "texts": s.texts, "last_used": s.last_used, **s.description}
        for s in spaces
    ]
    value = {
        "path": store.root,
        "bytes": store.size(),
        "removed": {"sets": len(removed), "bytes": freed},
        "spaces": listed,
    }
    output.show(value, printed, then="layerscope store --prune 2GB")


@command("verify", "layerscope verify runs/profile\nlayerscope verify store")
def verify_command(
    output: shared.Listing,
    what: list[str] = typer.Argument(
        ..., help="Folders of runs or exports, or `store` for the embedding store."
    ),
) -> None:
    """Check stored tables, arrays and exported files against their checksums. Exit code 2:
    something is damaged."""
    from layerscope.cache import cache_dir
    from layerscope.core.runs import MANIFEST, MARKER
    from layerscope.store.embeddings import EmbeddingStore
    from layerscope.store.records import check_files

    checks: list[tuple[Path, str]] = []
    for name in what:
        folder = Path(name)
        if name == "store" and not folder.exists():
            checks += EmbeddingStore(cache_dir() / "embeddings", None).verify()
            continue
        if not folder.is_dir():
            raise RunFolderError(
                f"{name} is not a folder. Give the folder of a run, or `store` for the embedding store."
            )
        if next(folder.rglob(MANIFEST), None) is None and not (folder / MARKER).is_file():
            raise RunFolderError(
                f"{name} holds no run: there is no {MANIFEST} in it. Give a folder that layerscope wrote."
            )
        checks += check_files(folder)
    damaged = [(path, problem) for path, problem in checks if problem]
    counts = {"ok": len(checks) - len(damaged), "damaged": len(damaged)}

    def printed() -> None:
        for path, problem in damaged:
            print(printable(f"damaged  {path}: {problem}"))
        shown = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        print(f"{len(checks)} files: {shown or 'none'}")

    listed = [{"path": path, "reason": problem} for path, problem in damaged]
    then = "run the command that wrote it again, with --overwrite" if damaged else ""
    output.show({"files": len(checks), "counts": counts, "damaged": listed}, printed, then=then)
    if damaged:
        raise typer.Exit(2)
