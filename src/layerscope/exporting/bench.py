"""A folder against the whole model: throughput, latency, memory and size, each in its own process,
by turns."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import torch

from layerscope.core.runs import MARKER
from layerscope.core.untrusted import read_json
from layerscope.errors import ExportError
from layerscope.exporting import bench_child
from layerscope.exporting.draft import text_longer_than
from layerscope.exporting.formats.sentence_transformers import modules_of
from layerscope.exporting.verifying import require_sentence_transformers
from layerscope.models.source import resolve
from layerscope.terminal import Console, headed_table

DEFAULT_LENGTHS = (32, 128)


@dataclass(frozen=True)
class Bench:
    """What was measured of several models in one run; `models` in the order given, the first is the
    one asked about."""

    models: list[dict[str, Any]]
    lengths: list[int]
    threads: int
    machine: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "threads": self.threads,
            "machine": self.machine,
            "lengths": self.lengths,
            "models": self.models,
        }

    def rows(self) -> list[list[str]]:
        """A table of the first against the second: what, first, second, how many times better."""
        one, other = self.models[:2]
        rows = []
        for length in self.lengths:
            a, b = one["lengths"][str(length)], other["lengths"][str(length)]
            rows.append(
                _row(
                    f"texts/s at {length} tokens",
                    a["texts_per_s"],
                    b["texts_per_s"],
                    "{:.1f}",
                    more=True,
                )
            )
            rows.append(
                _row(f"latency p50 at {length} tokens, ms", a["p50_ms"], b["p50_ms"], "{:.1f}")
            )
            rows.append(
                _row(f"latency p95 at {length} tokens, ms", a["p95_ms"], b["p95_ms"], "{:.1f}")
            )
        for label, name in (
            ("peak memory, MB", "peak_bytes"),
            ("… without the libraries", "model_bytes"),
            ("on disk, MB", "disk_bytes"),
        ):
            rows.append(_row(label, one[name] / 2**20, other[name] / 2**20, "{:.0f}"))
        rows.append(
            _row("parameters, M", one["parameters"] / 1e6, other["parameters"] / 1e6, "{:.1f}")
        )
        rows.append(_row("blocks", one["blocks"], other["blocks"], "{:.0f}"))
        return rows


def bench(
    folder: str | Path,
    against: str | Path | Sequence[str | Path],
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    texts: int = 32,
    rounds: int = 3,
    batch_size: int = 16,
    threads: int | None = None,
    offline: bool = False,
) -> Bench:
    """Measure a folder and one or several models by turns. Every text is cut to exactly `lengths`
    tokens for each of them."""
    require_sentence_transformers()
    others = [against] if isinstance(against, (str, Path)) else list(against)
    places = [_place(spec, offline) for spec in (folder, *others)]
    count = threads or torch.get_num_threads()
    with ExitStack() as stack:
        running = [
            _Child(name, path, count) for name, path in places
        ]  # they load at the same time, and are measured by turns
        for child in running:
            stack.enter_context(child)
        for child in running:
            child.measure(min(lengths), 2, batch_size, 1)  # warm up
        for length in lengths:
            for turn in range(rounds):
                for child in running if turn % 2 == 0 else reversed(running):
                    child.throughput(length, texts, batch_size)
                    child.latency(length)
        models = [child.facts(lengths) for child in running]
    return Bench(models, list(lengths), count, f"{platform.machine()}, {os.cpu_count()} cores")


def base_of(folder: str | Path) -> str:
    """The model from which an export was cut, as a name that can be loaded."""
    file = Path(folder) / MARKER
    if not file.is_file():
        raise ExportError(
            f"{folder} is not an export of layerscope, so its base is not known: name a model with against=."
        )
    base = read_json(file, error=ExportError).get("base", {})
    name, source, revision = (base.get(key) for key in ("name", "source", "revision"))
    if source not in ("catalogue", "hub") or not name:
        raise ExportError(
            f"{folder} was cut from {name or 'a model'}, which was given as a {source or 'module'}: name it with against=."
        )
    return (
        f"{name}@{revision}" if source == "hub" and revision and "@" not in str(name) else str(name)
    )


def print_bench(measured: Bench) -> None:
    """One row per figure, the ratio last."""
    console = Console(highlight=False)
    one, other = measured.models[:2]
    table = headed_table()
    table.add_column("")
    for name in (one["name"], other["name"], "ratio"):
        table.add_column(name, justify="right")
    for row in measured.rows():
        table.add_row(*row)
    console.print(table)
    where = f"{measured.threads} threads, {measured.machine}"
    console.print(f"{where}; medians over alternating rounds, each model in its own process")


def _row(label: str, one: float, other: float, shape: str, more: bool = False) -> list[str]:
    ratio = (one / other if more else other / one) if one and other else float("nan")
    return [label, shape.format(one), shape.format(other), f"{ratio:.2f} ×"]


def _place(spec: str | Path, offline: bool) -> tuple[str, Path]:
    source = resolve(spec, offline)
    if source.gguf is not None:
        raise ExportError(
            f"{spec} is a GGUF file, which sentence-transformers does not load. Give a folder of safetensors."
        )
    if (source.path / "modules.json").is_file():
        modules_of(source.path)
    return source.name, source.path


class _Child:
    """A model in a process of its own."""

    def __init__(self, name: str, path: Path, threads: int) -> None:
        self.name, self.path = name, path
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed when the process ends
        env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": str(threads),
        }
        command = [
            sys.executable,
            "-P",
            str(bench_child.__file__),
            str(path.resolve()),
            str(threads),
        ]
        self._process = subprocess.Popen(  # noqa: S603 - our own script and interpreter
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
            cwd=tempfile.gettempdir(),
        )
        self._facts: dict[str, Any] = {}
        self._seconds: dict[int, list[float]] = {}
        self._single: dict[int, list[float]] = {}

    def __enter__(self) -> Self:
        self._facts = self._answer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        if error is not None:
            self._process.kill()
        self._process.wait()
        self._log.close()

    def measure(self, length: int, texts: int, batch_size: int, repeats: int) -> list[float]:
        """Seconds of encoding `texts` long texts cut to `length` tokens, several times."""
        long = text_longer_than(length)[
            : 8 * length
        ]  # in any vocabulary, but not much longer: tokenizing counts too
        given = [f"{i} {long}" for i in range(texts)]
        return self._ask(
            {
                "do": "encode",
                "length": length,
                "texts": given,
                "batch_size": batch_size,
                "repeats": repeats,
            }
        )

    def throughput(self, length: int, texts: int, batch_size: int) -> None:
        """One more measurement of many texts at once."""
        self._seconds.setdefault(length, []).extend(
            s / texts for s in self.measure(length, texts, batch_size, 1)
        )

    def latency(self, length: int) -> None:
        """Some more measurements of one text alone."""
        self._single.setdefault(length, []).extend(self.measure(length, 1, 1, 10))

    def facts(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Everything measured."""
        peak = int(self._ask({"do": "memory"}))
        config = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        weights = sum(file.stat().st_size for file in self.path.rglob("*.safetensors"))
        by_length = {}
        for length in lengths:
            single = sorted(self._single[length])
            p95 = single[min(len(single) - 1, int(0.95 * len(single)))]
            rate = 1 / median(self._seconds[length])
            by_length[str(length)] = {
                "texts_per_s": rate,
                "p50_ms": 1000 * median(single),
                "p95_ms": 1000 * p95,
            }
        blocks = next(
            (
                config[name]
                for name in ("num_hidden_layers", "n_layer", "n_layers")
                if name in config
            ),
            0,
        )
        return {
            "name": self.name,
            "folder": str(self.path),
            "blocks": blocks,
            "parameters": self._facts["parameters"],
            "disk_bytes": weights,
            "peak_bytes": peak,
            "model_bytes": peak - self._facts["imported_bytes"],
            "lengths": by_length,
        }

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["no message"])[-1]
        raise ExportError(f"{self.name} could not be measured: {last[:300]}")
