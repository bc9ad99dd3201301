"""`layerscope doctor`: what works on this machine, what does not, and the line that mends it. It
names no paths and no users."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from layerscope.cache import cache_dir
from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.core.formatting import describe_size
from layerscope.core.options import parse_size
from layerscope.extras import FASTER, FEATURES, how_to_install
from layerscope.version import VERSION

OK, NOTE, PROBLEM = "ok", "note", "problem"
_SIGNS = {OK: "[green]ok[/]", NOTE: "[yellow]note[/]", PROBLEM: "[red]problem[/]"}
EXTRAS = {
    extra: [
        (what, modules) for what, other, modules in FEATURES.values() if other == extra and modules
    ]
    for _, extra, modules in FEATURES.values()
    if modules
}
"""What each extra is for, and the modules that must import for it."""
_CORE = ("torch", "transformers", "numpy", "pandas", "pyarrow")
_LITTLE = 5 * 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `mend` is a line that a user can run or set."""

    name: str
    status: str
    text: str
    mend: str = ""


@command("doctor", "layerscope doctor")
def doctor_command(
    output: shared.Listing,
    prune: str | None = typer.Option(
        None,
        "--prune",
        help="Remove stored vectors, the least recently used first, until this much is left: 2GB.",
    ),
) -> None:
    """Check versions, extras, the device and its eigen-solver, and the caches: a text that can go
    into a bug report."""
    if prune is not None:
        _prune(prune, output)
        return
    findings = list(examine())
    problems = [finding for finding in findings if finding.status == PROBLEM]
    works = {finding.name for finding in findings if finding.status == OK}
    first = "layerscope profile minilm-l6 --data lee --limit 50"
    if {"extra gguf", "extra export"} <= works:
        first = "layerscope improve smollm2-135m --data reviews.csv --column text --out better"
    value = {"layerscope": VERSION, "findings": [asdict(finding) for finding in findings]}
    output.show(value, lambda: _print(findings), then=problems[0].mend if problems else first)
    if problems:
        raise typer.Exit(2)


def _prune(size: str, output: shared.Listing) -> None:
    """Make room in the store of vectors."""
    from layerscope.vectors import VectorStore

    store = VectorStore(cache_dir() / "embeddings", None)
    freed = sum(space.bytes for space in store.prune(parse_size(size)))
    left = store.size()
    text = f"removed {describe_size(freed)} of vectors; {describe_size(left)} are left"
    output.show({"removed": freed, "left": left}, lambda: print(text))


def examine() -> Iterator[Finding]:
    """Look at everything, one thing after the other. A broken installation must not stop the other
    checks."""
    yield Finding(
        "layerscope",
        OK,
        f"{VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
    )
    yield from (_core(name) for name in _CORE)
    yield from (_extra(name) for name in EXTRAS)
    checks: tuple[tuple[str, Callable[[], Finding], str], ...] = (
        ("device", _device, "pip install --upgrade torch"),
        ("eigen-solver", _solver, "pip install --upgrade torch"),
        ("cache", lambda: _cache("cache", cache_dir()), "export LAYERSCOPE_CACHE=FOLDER"),
        ("hub cache", _hub_cache, "export HF_HOME=FOLDER"),
    )
    for name, look, mend in checks:
        try:
            yield look()
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield Finding(
                name,
                PROBLEM,
                f"{type(error).__name__}: {next(iter(why.splitlines()), '')[:200]}",
                mend,
            )


def _core(name: str) -> Finding:
    from importlib import (
        metadata,
    )  # here, because every command's help reads this file, and reading metadata is slow

    try:
        return Finding(name, OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, PROBLEM, "is not installed", f"pip install {name}")


def _extra(name: str) -> Finding:
    purpose = ", ".join(what for what, _ in EXTRAS[name])
    modules = dict.fromkeys(module for _, some in EXTRAS[name] for module in some)
    lacking = [module for module in modules if importlib.util.find_spec(module) is None]
    if lacking:
        text = f"not installed ({', '.join(lacking)}); needed for {purpose}"
        return Finding(f"extra {name}", NOTE, text, how_to_install(name))
    return Finding(f"extra {name}", OK, purpose)


def _device() -> Finding:
    import torch

    from layerscope.models.settings import bfloat16_units

    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Finding(
            "device",
            OK,
            "cuda: " + ", ".join(f"{gpu.name}, {describe_size(gpu.total_memory)}" for gpu in gpus),
        )
    if torch.backends.mps.is_available():
        return Finding("device", OK, "mps (Apple GPU)")
    units = bfloat16_units()
    told = (
        ""
        if units is None
        else f"; bfloat16 by {units}"
        if units
        else "; no bfloat16 units: float32 is faster"
    )
    text = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads{told}"
    if shutil.which("nvidia-smi") is not None:
        return Finding(
            "device",
            PROBLEM,
            f"{text}; there is an NVIDIA GPU that torch does not see",
            "pip install torch",
        )
    return Finding("device", OK, text)


def _solver() -> Finding:
    import torch

    from layerscope.spectra import eigvalsh, faster, usable_solvers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = torch.randn(8, 96, 96, device=device)
    gram = rows @ rows.mT
    eigvalsh(gram)  # compiles, if it must
    started = time.perf_counter()
    values = eigvalsh(gram)
    took = time.perf_counter() - started
    error = float(
        (values.sum(-1) - gram.diagonal(dim1=-2, dim2=-1).sum(-1)).abs().max()
        / values.sum(-1).max()
    )
    text = f"{usable_solvers(device)} on {device}: 8 matrices of 96 in {1000 * took:.1f} ms, relative error {error:.0e}"
    if error >= 1e-4:
        return Finding("eigen-solver", PROBLEM, text, "pip install --upgrade torch")
    if device == "cuda" and faster.on(torch.device(device)) is None:
        return Finding(
            "eigen-solver",
            NOTE,
            f"{text}; {FASTER}",
            how_to_install("gpu"),
        )
    return Finding("eigen-solver", OK, text)


def _hub_cache() -> Finding:
    from layerscope.data.hub import hub_cache

    return _cache("hub cache", hub_cache())


def _cache(name: str, folder: Path) -> Finding:
    """Whether a folder, or the one in which it would be made, can be written to and has room."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryFile(dir=place):
        free = shutil.disk_usage(place).free
    if free < _LITTLE:
        return Finding(name, NOTE, f"{describe_size(free)} free", "layerscope doctor --prune 1GB")
    return Finding(name, OK, f"can be written, {describe_size(free)} free")


def _print(findings: list[Finding]) -> None:
    from rich.markup import escape

    from layerscope.terminal import Console, unframed_table

    table = unframed_table(3)
    for finding in findings:
        mend = f"\n[bold]{escape(finding.mend)}[/]" if finding.mend and finding.status != OK else ""
        table.add_row(_SIGNS[finding.status], escape(finding.name), escape(finding.text) + mend)
    console = Console(highlight=False)
    console.print(table)
    problems = sum(finding.status == PROBLEM for finding in findings)
    notes = (
        " Notes are about optional parts."
        if any(finding.status == NOTE for finding in findings)
        else ""
    )
    console.print(
        f"{problems} to mend." if problems else f"Everything that is needed works.{notes}",
        style="bold",
    )
