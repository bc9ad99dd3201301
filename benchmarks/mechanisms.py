"""What each way of hiding latency buys: seconds of a whole profile with and without it, and the
lines of code it takes.

Every mechanism is switched off by replacing a function or two; the same profile is run with and
without it in turns, and its table is the same but for rounding. The cases are those of `gpu.py` (a:
the paper's metrics with 16 views; b: seven metrics of one view), b with its run folder, the first
run of a process without compiled kernels (`cold`), and small models on a CPU.

    python benchmarks/mechanisms.py                              # what concerns a GPU: about 8 minutes on an H200
    python benchmarks/mechanisms.py --cases "a 128" --repeats 5
    python benchmarks/mechanisms.py --cases cpu "cpu few"        # what concerns a CPU: no GPU needed
    python benchmarks/mechanisms.py --cases "b 128" --only "layerscope-gpu" --prompts 100    # all kernels: slow without

`gain` is how much longer the profile takes without the mechanism; `noise` is the spread of the runs
with everything, in the same unit. `lines` are those of the functions and classes that would go. On
a CPU, seconds are those of all cores together.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu import (
    CASES,
    bare_batches,
    build_model,
    make_model,
    make_texts,
    make_tokenizer,
    run_bare,
    timed,
)

import layerscope
import layerscope_gpu
from layerscope import forward
from layerscope.capture import reduce
from layerscope.data import Corpus, workers
from layerscope.data.augment import ViewPool
from layerscope.metrics import lidar
from layerscope.models import LoadedModel
from layerscope.models.inputs import TextReader
from layerscope.profiling import encode, encoder, tables
from layerscope.spectra import execution, faster
from layerscope_gpu import ahead, factors, passes, tokens, whitening

WARM = ("a 128", "a 512", "b 128", "b 512", "b 128 folder")
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
FEW = {"metrics": ["paper"], "views": 4}
# name: settings, tokens, prompts on a CPU (None: as many as asked for)
SETTINGS: dict[str, tuple[dict[str, Any], int, int | None]] = {
    **{
        f"{case} {length}": (CASES[case], length, None)
        for case in ("a", "b")
        for length in (128, 512)
    },
    "b 128 folder": (CASES["b"], 128, None),
    "cold": (CASES["b"], 128, None),
    "cpu": ({"metrics": ["paper"], "views": 4}, 64, 100),
    "cpu few": (FEW, 64, 24),
}


class OnDemand:
    """In the place of a thread that reads ahead: work is done when its result is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._found = work, []

    def result(self) -> Any:
        """What the work gives."""
        if not self._found:
            self._found.append(self._work())
        return self._found[0]

    def done(self) -> bool:
        """As if it were there: nothing else is done meanwhile."""
        return True


class NoThread:
    """An executor without a thread."""

    def submit(self, work: Callable[..., Any], *given: Any) -> OnDemand:
        """Work for later."""
        return OnDemand(lambda: work(*given))

    def shutdown(self, **_: Any) -> None:
        """There is nothing to end."""


_executor = forward.ThreadPoolExecutor


def no_prefetching(count: int, thread_name_prefix: str) -> Any:
    """Executors of `forward`: none for the prefetcher."""
    return (
        NoThread()
        if "prefetch" in thread_name_prefix
        else _executor(count, thread_name_prefix=thread_name_prefix)
    )


class WriteNow:
    """As `write_behind`, but it writes at once."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __call__(self, index: int, shard: Any) -> None:
        self._store.write(index, shard)

    def __enter__(self) -> WriteNow:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def send_now(sent: execution.Sent, tensor: torch.Tensor) -> None:
    """`Sent.__init__` that waits for the copy."""
    sent._done, sent._here = None, tensor.cpu()


@dataclass(frozen=True)
class Mechanism:
    """What is switched off (object, attribute, what takes its place), what would go with it, and in
    which cases it is at work."""

    name: str
    off: tuple[tuple[Any, str, Any], ...]
    parts: tuple[Any, ...]
    cases: tuple[str, ...]
    by_default: bool = True

    @property
    def lines(self) -> int:
        """Lines of code that would go, blank ones left out."""
        return sum(
            1
            for part in self.parts
            for line in inspect.getsource(part).splitlines()
            if line.strip()
        )

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """While this is open, profiles do without it."""
        with ExitStack() as stack:
            for thing, name, other in self.off:
                stack.enter_context(mock.patch.object(thing, name, other))
            yield


VIEWS = ("a 128", "a 512")
MECHANISMS = (
    Mechanism(
        "early planner: first shard run while others are tokenized",
        ((forward.EarlyPlanner, "_survey_largest", lambda self: None),),
        (forward.EarlyPlanner, forward._first_shards),
        WARM[:4],
    ),
    Mechanism(
        "prefetcher: rows and views read ahead",
        ((forward, "ThreadPoolExecutor", no_prefetching),),
        (forward.Prefetcher,),
        WARM,
    ),
    Mechanism(
        "processes that make views",
        ((TextReader, "start_views", lambda self, views, count=None: None),),
        (workers, ViewPool),
        VIEWS,
    ),
    Mechanism(
        "items run while views are made",
        ((encode, "MOST_PENDING", 1),),
        (encode._run_in_memory,),
        VIEWS,
    ),
    Mechanism(
        "promises: metrics queued before the last shard is there",
        (
            (
                encode.MemoryStore,
                "promise",
                lambda self, index, shard, finish: self.write(index, finish()),
            ),
        ),
        (encode.MemoryStore.promise, encoder.QueuedShard),
        WARM[:4],
    ),
    Mechanism(
        "results sent to the host without waiting",
        ((execution.Sent, "__init__", send_now),),
        (execution.Sent,),
        WARM,
    ),
    Mechanism(
        "Gram matrices of several layers solved together",
        ((reduce, "room_for_matrices", lambda device: 0),),
        (reduce.Reducer._wait, reduce.Reducer._space, reduce.room_for_matrices),
        ("b 128", "b 512"),
    ),
    Mechanism(
        "metrics of several layers computed together",
        ((tables.TableBuilder, "_sites_together", lambda self, prompts: 1),),
        (tables.TableBuilder._sites_together,),
        WARM[:4],
    ),
    Mechanism(
        "LiDAR of all layers at once (GPU)",
        ((lidar.LiDAR, "prepare", lambda self, many: None),),
        (
            lidar.LiDAR.prepare,
            lidar.LiDAR._finish,
            lidar.whitened_together,
            lidar._sites_at_once,
            whitening,
        ),
        VIEWS,
    ),
    Mechanism(
        "LiDAR's folds from one factor (CPU)",
        ((lidar._Scatter, "_factored", lambda self, n: None),),
        (lidar._Scatter._factored, lidar._Scatter._downdated),
        ("cpu", "cpu few"),
    ),
    Mechanism(
        "LiDAR of few vectors in few dimensions (CPU)",
        ((lidar, "_rotated", lambda z: None),),
        (lidar._rotated,),
        ("cpu few",),
    ),
    Mechanism(
        "writing while the next shard is computed",
        ((encode, "write_behind", WriteNow),),
        (encode.write_behind,),
        ("b 128 folder",),
    ),
    Mechanism(
        "kernels compiled ahead",
        ((ahead, "compile_kernels", lambda sources, device: None),),
        (ahead, encode.compile_kernels, layerscope_gpu.cuda.compile_ahead),
        ("cold",),
    ),
    Mechanism(
        "token measures put off while their kernel is compiled",
        (
            (
                encoder.ShardEncoder,
                "_reduce",
                lambda self, batch, token_level: self.reducer.reduce(
                    batch, self.model.run, token_level
                ),
            ),
        ),
        (reduce.LaterTokens, reduce.Reducer._later, encoder.ShardEncoder.settled),
        ("cold",),
    ),
    # kernels of layerscope-gpu
    Mechanism(
        "fused passes",
        ((passes, "fast_passes", lambda module: nullcontext()),),
        (passes,),
        WARM[:4],
    ),
    Mechanism(
        "inverse factors by a kernel",
        ((factors, "leaf_by_kernel", lambda a: False),),
        (factors,),
        WARM[:4],
    ),
    Mechanism(
        "normed states that are not stored",
        (
            (tokens, "normed_means", lambda *given: None),
            (tokens, "centered_states", lambda *given: None),
        ),
        (tokens.normed,),
        WARM[:4],
    ),
    Mechanism(
        "layerscope-gpu", ((faster, "on", lambda device: None),), (), WARM[:4], by_default=False
    ),
)


def make_work(case: str, prompts: int, shape: str) -> tuple[LoadedModel, Corpus, Callable[[], Any]]:
    """The model and texts of a case, and its profile."""
    settings, length, fewer = SETTINGS[case]
    texts = make_texts(fewer or prompts, length)
    tokenizer = make_tokenizer(texts)
    on_cpu = case.startswith("cpu")
    model = (
        build_model("GPTNeoX", SMALL, tokenizer, torch.float32, "small", "cpu")
        if on_cpu
        else make_model(shape, tokenizer, torch.bfloat16)
    )
    corpus = Corpus.of(texts)

    def work() -> Any:
        model._tried = False  # what can be done faster is tried again: it may be switched off
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run" if case.endswith("folder") else None
            return layerscope.profile(
                model, corpus, max_length=length, out=out, progress=False, **settings
            )

    return model, corpus, work


def warm(
    case: str, chosen: list[Mechanism], prompts: int, shape: str, repeats: int
) -> dict[str, list[float]]:
    """Seconds of a case by mechanism that is switched off ('' is none), in turns."""
    _, _, work = make_work(case, prompts, shape)
    ways = {"": nullcontext, **{one.name: one.switched_off for one in chosen}}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            with way():
                took, _ = timed(
                    work, time.process_time if case.startswith("cpu") else time.perf_counter
                )
            if turn:  # the first compiles and warms up
                seconds[name].append(took)
    return seconds


def cold(chosen: list[Mechanism], prompts: int, shape: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of the first profile of a process that finds no compiled kernel."""
    seconds: dict[str, list[float]] = {}
    for name in [name for _ in range(repeats) for name in ("", *(one.name for one in chosen))]:
        with tempfile.TemporaryDirectory() as cache:
            command = [
                sys.executable,
                __file__,
                "--first",
                name,
                "--prompts",
                str(prompts),
                "--shape",
                shape,
            ]
            done = subprocess.run(
                command,
                env={**os.environ, "LAYERSCOPE_CACHE": cache},
                capture_output=True,
                text=True,
            )
        if done.returncode:
            raise SystemExit(done.stderr)
        seconds.setdefault(name, []).append(float(done.stdout.split()[-1]))
    return seconds


def first(name: str, prompts: int, shape: str) -> float:
    """Seconds of the first profile in this process, after its bare passes."""
    with next((one.switched_off() for one in MECHANISMS if one.name == name), nullcontext()):
        settings, length, _ = SETTINGS["cold"]
        model, corpus, work = make_work("cold", prompts, shape)
        run_bare(model, bare_batches(model, corpus, length, **settings))
        return timed(work)[0]


def show(case: str, seconds: dict[str, list[float]], chosen: list[Mechanism]) -> None:
    """The rows of a case."""
    base = statistics.median(seconds[""])
    noise = (max(seconds[""]) - min(seconds[""])) / base
    for one in chosen:
        without = statistics.median(seconds[one.name])
        gain, lines = without / base - 1, one.lines or "–"
        print(
            f"| {one.name} | {case} | {base:.3f} | {without:.3f} | {gain:+.1%} | {noise:.1%} | {lines} |",
            flush=True,
        )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=[*WARM, "cold"], choices=SETTINGS)
    parser.add_argument(
        "--only", nargs="+", help="these mechanisms alone, by the beginning of their names"
    )
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--shape", default="410m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first is not None:
        print(first(args.first, args.prompts, args.shape))
        return
    if not torch.cuda.is_available() and not all(case.startswith("cpu") for case in args.cases):
        sys.exit(
            "these cases need a CUDA GPU, and torch finds none here. Without one: --cases cpu 'cpu few'"
        )
    print(
        "| mechanism | case | with (s) | without (s) | gain | noise | lines |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for case in args.cases:
        chosen = [
            one
            for one in MECHANISMS
            if case in one.cases
            and (one.name.startswith(tuple(args.only)) if args.only else one.by_default)
        ]
        if chosen:
            found = cold(chosen, args.prompts, args.shape, args.repeats) if case == "cold" else None
            show(case, found or warm(case, chosen, args.prompts, args.shape, args.repeats), chosen)


if __name__ == "__main__":
    main()
