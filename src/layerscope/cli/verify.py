"""`layerscope verify`: whether runs and the embedding store on disk are what was written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.errors import RunFolderError, printable


@command("verify", "layerscope verify runs/profile\nlayerscope verify store")
def verify_command(
    output: shared.Listing,
    what: list[str] = typer.Argument(..., help="Folders of runs or exports, or `store` for the embedding store."),
) -> None:
    """Check every stored table, array and result against its checksum. Exit code 2: damaged; 3: something has no checksum."""
    from layerscope.cache import cache_dir
    from layerscope.core.runs import MANIFEST
    from layerscope.models.sealed import check_export
    from layerscope.store.embeddings import EmbeddingStore
    from layerscope.store.verify import DAMAGED, UNKNOWN, check_tree

    found = []
    for name in what:
        if name == "store" and not Path(name).exists():
            found += list(EmbeddingStore(cache_dir() / "embeddings", None).verify())
        else:
            folder = Path(name)
            if not folder.is_dir():
                raise RunFolderError(f"{name} is no folder. Give the folder of a run, or `store` for the embedding store.")
            stores = list(folder.glob("??/*/space.json"))
            exported = check_export(folder)
            if next(folder.rglob(MANIFEST), None) is None and not stores and not exported:
                raise RunFolderError(f"{name} holds no run: there is no {MANIFEST} in it. Give a folder that layerscope wrote.")
            seen = {check.path for check in exported}
            found += exported + [check for check in check_tree(folder) if check.path not in seen]
            if stores:
                found += list(EmbeddingStore(folder, None).verify())
    counts = Counter(check.status for check in found)
    damaged = [check for check in found if check.status == DAMAGED]
    lacking = counts[UNKNOWN]

    def printed() -> None:
        for check in damaged:
            print(printable(f"damaged  {check.path}: {check.reason}"))
        print(f"{len(found)} files: " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "none"))
        if lacking:
            print(f"{lacking} have no checksum: an earlier version wrote them, or it was removed.")

    listed = [{"path": check.path, "reason": check.reason} for check in damaged]
    then = "run the command that wrote it again: what is damaged is set aside and computed again" if damaged else ""
    output.show({"files": len(found), "counts": dict(counts), "damaged": listed}, printed, then=then)
    if damaged or lacking:
        raise typer.Exit(2 if damaged else 3)
