"""`layerscope doctor`: what works on this machine, what does not, and the line that mends it."""

from __future__ import annotations

import contextlib
import getpass
import importlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.core.formatting import describe_size
from layerscope.errors import LayerscopeError
from layerscope.version import VERSION, install_command, install_package

OK, NOTE, PROBLEM = "ok", "note", "problem"
_SIGNS = {OK: "[green]ok[/]", NOTE: "[yellow]note[/]", PROBLEM: "[red]problem[/]"}
# extra -> (modules that must import, what it is for)
EXTRAS = {
    "report": (("matplotlib",), "figures"),
    "mteb": (("mteb", "datasets"), "evaluate: labeled tasks"),
    "export": (("sentence_transformers",), "improve and export: sentence-transformers folders"),
    "onnx": (("onnx", "onnxruntime", "onnxscript"), "ONNX exports"),
    "hub": (("datasets",), "hub datasets"),
    "gguf": (("gguf", "accelerate"), "GGUF weights, also those of smollm2-135m and gemma3-270m"),
    "peft": (("peft",), "adapters"),
    "device-map": (("accelerate",), "models over several GPUs"),
    "vision": (("PIL", "sklearn"), "image models"),
    "augment": (("nlpaug",), "nlpaug's views"),
    "ray": (("ray",), "clusters"),
}
_CORE = ("torch", "transformers", "numpy", "pandas", "pyarrow")
_LITTLE = 5 * 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `mend` is a line that a user can run or set; `private` is left out of --report."""

    name: str
    status: str
    text: str
    mend: str = ""
    private: str = ""


@command("doctor", "layerscope doctor")
def doctor_command(
    hub: bool = typer.Option(False, "--hub", help="Also check whether the Hugging Face hub can be reached."),
    report: str | None = typer.Option(
        None, "--report", metavar="FILE", help="Check everything, and write a text for a bug report, free of names, paths and "
        "tokens; - prints it.",
    ),
    as_json: bool = shared.AS_JSON,
) -> None:  # fmt: skip
    """Check versions, extras, the device and its eigen-solver, caches, disk space and permissions."""
    findings = list(examine(hub or report is not None, thorough=report is not None))
    if as_json:
        shared.print_json({"layerscope": VERSION, "findings": [asdict(finding) for finding in findings]})
    elif report is not None:
        _write(as_report(findings), report)
    else:
        _print(findings)
        problem = next((finding for finding in findings if finding.status == PROBLEM and finding.mend), None)
        shared.next_step(problem.mend if problem else _first_command(findings))
    if any(finding.status == PROBLEM for finding in findings):
        raise typer.Exit(2)


def examine(hub: bool = False, thorough: bool = False) -> Iterator[Finding]:
    """Look at everything, one thing after the other. `thorough` also imports the extras, which takes a while."""
    yield Finding("layerscope", OK, f"{VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    yield from (_core(name) for name in _CORE)
    yield from (_extra(name, thorough) for name in EXTRAS)
    yield _safely("device", _device)
    yield _safely("eigen-solver", _solver)
    yield from _caches()
    for place, look in (("this folder", os.getcwd), ("the temp folder", tempfile.gettempdir)):
        try:
            yield _writable(Path(look()), place)
        except OSError as error:  # a folder that was removed meanwhile; no temp folder that can be written
            yield Finding(f"writing to {place}", PROBLEM, f"not possible ({error.strerror})", _ELSEWHERE[place])
    if hub:
        yield _safely("hub", _hub)


def _first_command(findings: Sequence[Finding]) -> str:
    """What a new user can run with the extras that are there."""
    works = {finding.name for finding in findings if finding.status == OK}
    if {"extra gguf", "extra export"} <= works:
        return "layerscope improve smollm2-135m --data reviews.csv --column text --out better"
    return "layerscope profile minilm-l6 --data lee --limit 50"


def as_report(findings: Sequence[Finding]) -> str:
    """The findings as a text that can be shown to anybody, each problem with the line that mends it."""
    lines = []
    for finding in findings:
        mend = f" -> {finding.mend}" if finding.mend and finding.status != OK else ""
        lines.append(without_private_data(f"{finding.status:8}{finding.name}: {finding.text}{mend}"))
    return "\n".join(lines) + "\n"


def without_private_data(text: str) -> str:
    """A text without this user's name and folders, this machine's name, access tokens and addresses.

    >>> without_private_data("no hf_abcdefghijklmnop in /srv/data/model")
    'no (token) in (path)'
    """
    known = {socket.gethostname(): "(host)"}
    for look in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            known[look()] = "(path)"
    with contextlib.suppress(RuntimeError, OSError):
        known[str(Path.home())] = "(path)"
    with contextlib.suppress(KeyError, OSError, ImportError):
        known[getpass.getuser()] = "(user)"
    text = re.sub(r"\b(?:hf|api)_\w{8,}", "(token)", text)
    text = re.sub(r"\w+://\S+", "(address)", text)
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) > 2:
            text = re.sub(rf"(?<![\w.-]){re.escape(secret)}(?![\w-])", known[secret], text)
    return re.sub(r"(?:\(path\)|(?<![\w)])~?)(?:/[^\s/:;,'\"()]+){1,}/?", "(path)", text)


def _write(text: str, place: str) -> None:
    if place == "-":
        print(text, end="")
        return
    from layerscope.store.atomic import write_text

    write_text(Path(place), text)
    print(f"{place}: {len(text.splitlines())} lines, without names, paths or tokens. Read it before you send it.")


def _core(name: str) -> Finding:
    from importlib import metadata  # here, because every command's help reads this file, and reading metadata is slow

    try:
        return Finding(name, OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, PROBLEM, "is not installed", f"pip install {name}")


def _extra(name: str, thorough: bool = False) -> Finding:
    modules, purpose = EXTRAS[name]
    lacking = [module for module in modules if importlib.util.find_spec(module) is None]
    mend = install_command(name)
    if lacking:
        return Finding(f"extra {name}", NOTE, f"not installed ({', '.join(lacking)}); needed for {purpose}", mend)
    for module in modules if thorough else ():
        try:
            importlib.import_module(module)
        except Exception as error:  # of any kind: two packages that do not go together can fail in every way
            why = (
                f"{module} is installed and does not import ({type(error).__name__}: {_first_line(error)}); needed for {purpose}"
            )
            return Finding(f"extra {name}", PROBLEM, why, f"pip install --upgrade --force-reinstall {module.replace('_', '-')}")
    versions = [f"{module} {_version(module)}" for module in modules]
    return Finding(f"extra {name}", OK, f"{purpose} ({', '.join(versions)})")


def _version(module: str) -> str:
    """The version of the distribution that holds a module."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError, LookupError):
        return metadata.version(_distributions()[module][0])
    return "of an unknown version"


@cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib import metadata

    return metadata.packages_distributions()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


def _safely(name: str, look: Callable[[], Finding]) -> Finding:
    """A broken installation must not stop the other checks."""
    try:
        return look()
    except Exception as error:
        return Finding(name, PROBLEM, f"{type(error).__name__}: {_first_line(error)}", "pip install --upgrade torch")


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Finding("device", OK, "cuda: " + ", ".join(f"{gpu.name}, {describe_size(gpu.total_memory)}" for gpu in gpus))
    if torch.backends.mps.is_available():
        return Finding("device", OK, "mps (Apple GPU)")
    text = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if shutil.which("nvidia-smi") is not None:
        return Finding("device", PROBLEM, f"{text}; there is an NVIDIA GPU that torch does not see", "pip install torch")
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
    error = float((values.sum(-1) - gram.diagonal(dim1=-2, dim2=-1).sum(-1)).abs().max() / values.sum(-1).max())
    text = f"{usable_solvers(device)} on {device}: 8 matrices of 96 in {1000 * took:.1f} ms, relative error {error:.0e}"
    if error >= 1e-4:
        return Finding("eigen-solver", PROBLEM, text, "pip install --upgrade torch")
    if device == "cuda" and faster.on(torch.device(device)) is None:
        return Finding("eigen-solver", NOTE, f"{text}; faster with layerscope-gpu", install_package("layerscope-gpu"))
    return Finding("eigen-solver", OK, text)


def _caches() -> Iterator[Finding]:
    from layerscope.cache import cache_dir

    for name, where in (("cache", cache_dir), ("hub cache", _hub_cache)):
        try:
            path = where()
        except (LayerscopeError, RuntimeError):
            yield Finding(name, PROBLEM, "this user has no home folder", _ELSEWHERE[f"the {name}"])
            continue
        if not path.exists():
            yield Finding(name, OK, "empty", private=str(path))
            yield _writable(path, f"the {name}")
            continue
        total = _size(path)
        free = shutil.disk_usage(path).free
        text = f"{describe_size(total)} used, {describe_size(free)} free"
        status, mend = (NOTE, "layerscope store --prune 1GB") if free < _LITTLE else (OK, "")
        yield Finding(name, status, text, mend, private=str(path))
        yield _writable(path, f"the {name}")


def _hub_cache() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:  # removed meanwhile, or not ours to read
                continue
    return total


_ELSEWHERE = {
    "the cache": "export LAYERSCOPE_CACHE=FOLDER",
    "the hub cache": "export HF_HOME=FOLDER",
    "the temp folder": "export TMPDIR=FOLDER",
    "this folder": "cd to a folder that is yours",
}


def _writable(folder: Path, name: str) -> Finding:
    """Whether a folder, or the one in which it would be made, can be written to."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return Finding(f"writing to {name}", OK, "allowed", private=str(folder))
    except OSError as error:
        return Finding(f"writing to {name}", PROBLEM, f"not allowed ({error.strerror})", _ELSEWHERE[name], private=str(folder))


def _hub() -> Finding:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from huggingface_hub import constants, get_token

    token = "an access token is set" if get_token() else "no access token is set"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", NOTE, f"downloads are off (HF_HUB_OFFLINE); {token}", "unset HF_HUB_OFFLINE")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if not address.startswith(("http://", "https://")):
        return Finding("hub", PROBLEM, "HF_ENDPOINT is not a web address", "unset HF_ENDPOINT", address)
    try:
        with urlopen(f"{address}/api/models?limit=1", timeout=5):  # noqa: S310 - checked to be http above
            pass
    except HTTPError as error:
        return Finding("hub", NOTE, f"answers with HTTP {error.code}; {token}", "layerscope doctor --hub", address)
    except OSError as error:  # a refusal, no route, no such name, a time-out: all of them are this
        text = f"cannot be reached ({type(getattr(error, 'reason', error)).__name__}); {token}"
        return Finding("hub", NOTE, text, "layerscope profile minilm-l6 --offline", address)
    return Finding("hub", OK, f"reachable; {token}", private=address)


def _print(findings: list[Finding]) -> None:
    from rich.markup import escape

    from layerscope.terminal import Console, unframed_table

    table = unframed_table(3)
    for finding in findings:
        where = f" [dim]{escape(finding.private)}[/]" if finding.private else ""
        mend = f"\n[bold]{escape(finding.mend)}[/]" if finding.mend and finding.status != OK else ""
        table.add_row(_SIGNS[finding.status], escape(finding.name), escape(finding.text) + where + mend)
    Console(highlight=False).print(table)
    problems = sum(finding.status == PROBLEM for finding in findings)
    notes = " Notes are about optional parts." if any(finding.status == NOTE for finding in findings) else ""
    told = f"Everything that is needed works.{notes}" if not problems else f"{problems} to mend."
    Console(highlight=False).print(told, style="bold")
    sys.stdout.flush()
