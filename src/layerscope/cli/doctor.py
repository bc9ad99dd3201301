"""`layerscope doctor`: what works on this machine, what does not, and the line that repairs it. It
names no paths and no users."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from layerscope.cache import cache_dir
from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.core.options import describe_size, parse_size
from layerscope.extras import FASTER, FEATURES, how_to_install
from layerscope.version import VERSION

OK, NOTE, PROBLEM = "ok", "note", "problem"
_COLORS = {OK: "green", NOTE: "yellow", PROBLEM: "red"}
_CORE = ("torch", "transformers", "numpy", "pandas", "pyarrow")
EXTRAS = sorted({extra for _, extra, modules in FEATURES.values() if modules})
_MIN_FREE = 5 * 2**30
_UPDATE_TORCH = "pip install --upgrade torch"


@dataclass(frozen=True)
class Finding:
    """The state of one part. `mend` is a line that a user can run or set."""

    name: str
    status: str
    text: str
    mend: str = ""


@command("doctor", shared.KEEP, "layerscope doctor")
def doctor_command(
    context: typer.Context,
    prune: Annotated[
        str | None,
        typer.Option(help="Remove stored vectors, least recently used first, down to e.g. 2GB."),
    ] = None,
) -> None:
    """Check versions, extras, the device and its eigen-solver, and the caches: a text that can go
    into a bug report."""
    if prune is not None:
        _prune(context, prune)
        return
    findings = list(examine())
    problems = [finding for finding in findings if finding.status == PROBLEM]
    next_step = "layerscope improve smollm2-135m --data reviews.csv --column text --out better"
    if problems:
        next_step = problems[0].mend
    value = {"layerscope": VERSION, "findings": [asdict(finding) for finding in findings]}
    shared.show(context, value, lambda: _print(findings), next_step)
    if problems:
        raise typer.Exit(2)


def _prune(context: typer.Context, size: str) -> None:
    from layerscope.vectors import VectorStore

    store = VectorStore(cache_dir() / "embeddings", None)
    freed = store.prune(parse_size(size))
    remaining = store.size()
    text = f"removed {describe_size(freed)} of vectors; {describe_size(remaining)} are left"
    shared.show(
        context, {"removed": freed, "left": remaining}, lambda: print(text), "layerscope doctor"
    )


def examine() -> Iterator[Finding]:
    """Check one part after the other. A broken part must not stop the other checks."""
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("layerscope", OK, f"{VERSION}, Python {platform.python_version()}, {system}")
    checks: tuple[tuple[str, Callable[[], Finding], str], ...] = (
        *((name, partial(_check_package, name), f"pip install {name}") for name in _CORE),
        *((extra, partial(check_extra, extra), how_to_install(extra)) for extra in EXTRAS),
        ("device", _check_device, _UPDATE_TORCH),
        ("eigen-solver", check_solver, _UPDATE_TORCH),
        ("cache", partial(_check_folder, "cache", cache_dir), "export LAYERSCOPE_CACHE=FOLDER"),
        ("hub cache", partial(_check_folder, "hub cache", _hub_cache), "export HF_HOME=FOLDER"),
    )
    for name, check, mend in checks:
        try:
            yield check()
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            text = f"{type(error).__name__}: {next(iter(reason.splitlines()), '')[:200]}"
            yield Finding(name, PROBLEM, text, mend)


def _check_package(name: str) -> Finding:
    from importlib import metadata  # slow to import, and every command's help reads this file

    return Finding(name, OK, metadata.version(name))


def extra_modules(extra: str) -> list[str]:
    """Return the modules that an extra installs."""
    features = (modules for _, needed, modules in FEATURES.values() if needed == extra)
    return list(dict.fromkeys(module for modules in features for module in modules))


def check_extra(extra: str) -> Finding:
    """Check that the modules of an extra can be imported."""
    features = (name for name, needed, modules in FEATURES.values() if needed == extra and modules)
    purpose = ", ".join(features)
    absent = [name for name in extra_modules(extra) if importlib.util.find_spec(name) is None]
    if absent:
        text = f"not installed ({', '.join(absent)}); needed for {purpose}"
        return Finding(f"extra {extra}", NOTE, text, how_to_install(extra))
    return Finding(f"extra {extra}", OK, purpose)


def _check_device() -> Finding:
    import torch

    from layerscope.models.settings import bfloat16_units

    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        names = ", ".join(f"{gpu.name}, {describe_size(gpu.total_memory)}" for gpu in gpus)
        return Finding("device", OK, f"cuda: {names}")
    if torch.backends.mps.is_available():
        return Finding("device", OK, "mps (Apple GPU)")
    text = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    units = bfloat16_units()
    if units:
        text += f"; bfloat16 by {units}"
    elif units == "":
        text += "; no bfloat16 units: float32 is faster"
    if shutil.which("nvidia-smi") is not None:
        text += "; there is an NVIDIA GPU that torch does not see"
        return Finding("device", PROBLEM, text, "pip install torch")
    return Finding("device", OK, text)


def check_solver() -> Finding:
    """Check the eigenvalues of random matrices by their traces."""
    import torch

    from layerscope import accelerator
    from layerscope.spectra import eigvalsh, solvers_used

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = torch.randn(8, 96, 96, device=device)
    gram = rows @ rows.mT
    values = eigvalsh(gram)
    traces = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    error = float((values.sum(-1) - traces).abs().max() / values.sum(-1).max())
    text = f"{solvers_used(device)} on {device}: relative error {error:.0e}"
    if error >= 1e-4:
        return Finding("eigen-solver", PROBLEM, text, _UPDATE_TORCH)
    if device == "cuda" and accelerator.on(torch.device(device)) is None:
        return Finding("eigen-solver", NOTE, f"{text}; {FASTER}", how_to_install("gpu"))
    return Finding("eigen-solver", OK, text)


def _hub_cache() -> Path:
    from layerscope.data.hub import hub_cache

    return hub_cache()


def _check_folder(name: str, find: Callable[[], Path]) -> Finding:
    """Check that a folder, or the one in which it would be made, can be written to and has room."""
    folder = find()
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryFile(dir=place):
        free = shutil.disk_usage(place).free
    if free < _MIN_FREE:
        return Finding(name, NOTE, f"{describe_size(free)} free", "layerscope doctor --prune 1GB")
    return Finding(name, OK, f"can be written, {describe_size(free)} free")


def _print(findings: list[Finding]) -> None:
    from rich.markup import escape

    from layerscope.terminal import Console, unframed_table

    table = unframed_table(3)
    for finding in findings:
        text = escape(finding.text)
        if finding.mend and finding.status != OK:
            text += f"\n[bold]{escape(finding.mend)}[/]"
        sign = f"[{_COLORS[finding.status]}]{finding.status}[/]"
        table.add_row(sign, escape(finding.name), text)
    console = Console(highlight=False)
    console.print(table)
    problems = [finding for finding in findings if finding.status == PROBLEM]
    summary = "Everything that is needed works. Notes are about optional parts."
    if problems:
        summary = f"{len(problems)} to mend."
    console.print(summary, style="bold")
