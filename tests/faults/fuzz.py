"""The fuzzers: inputs that somebody could really give, changed a little or a lot, from a seed.

    python -m tests.faults.fuzz corpus 1250 0     # a kind of input, how many, the seed

`CASES` names every kind of input. Each makes a mutated input in a folder and uses it the way a
command does, and three of them run the command line itself (`LAYERSCOPE_DEBUG=1`). A case ends in a
result or in a `LayerscopeError`; any other error is a defect, also one that the command line would
call "unexpected", and so are five minutes without an answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.choose.choice import Choice
from layerscope.choose.labels import read_labels
from layerscope.core.runs import load_run
from layerscope.data import load_corpus
from layerscope.errors import LayerscopeError
from layerscope.models import load
from tests.faults.inputs import (
    ROWS,
    Scene,
    distort,
    labels_file,
    make_scene,
    map_folder,
    model_folder,
    mutate,
    run_folder,
    task_folder,
    texts_file,
    vectors_file,
)  # fmt: skip

_LONGEST = 300  # seconds that one input may take, also on a busy machine
Case = Callable[[Scene, Path, np.random.Generator], Any]


def corpus(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A file of texts."""
    path = texts_file(folder, rng)
    return load_corpus(
        path, column="text" if rng.random() < 0.3 and path.suffix != ".txt" else None
    )


def rows(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """Texts whose JSON is valid and whose values are odd."""
    path = folder / "data.jsonl"
    some = ROWS[: int(rng.integers(1, 25))]  # of many, one is always refused
    path.write_text(
        "\n".join(json.dumps(distort(row, rng)) for row in some),
        encoding="utf-8",
        errors="surrogatepass",
    )
    return load_corpus(path)


def labels(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A file of labeled examples."""
    return read_labels(labels_file(folder, rng))


def model(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A model's folder with one file changed, loaded and tried on a text."""
    return load(model_folder(scene, folder, rng)).tokenize(["a text"], 8)


def run(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The folder of a finished run, damaged, opened and put on a page."""
    from layerscope.report.contents import gather
    from layerscope.report.page import write_page as write

    target = run_folder(scene, folder, rng)
    opened = load_run(target)
    opened.summary()
    opened.tables()
    return write(gather([target]), folder / "page.html")


def layer_map(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The map in a stranger's run, opened and put on a page."""
    from layerscope.report.contents import gather
    from layerscope.report.page import write_page as write

    target = map_folder(scene, folder, rng)
    found = load_run(target).map()
    found.table.to_string()
    found.save(folder / "map.html")
    return write(gather([target]), folder / "page.html")


def choice(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A choice of a layer, as `select --json` writes one."""
    good = {
        "layer": 3, "site": "block.2", "readout": "plain/mean/raw/keep/none", "expected_gain": 0.1, "ci_low": 0.0, "ci_high": 0.2,
        "risk_of_loss": 0.1, "tied": [3], "rule": "x", "blocks_saved": 1, "layers": 4, "model": "x", "warnings": ["y"],
    }  # fmt: skip
    path = folder / "choice.json"
    if rng.random() < 0.5:
        path.write_bytes(mutate(json.dumps(good).encode(), rng))
    else:
        path.write_text(json.dumps(distort(good, rng)), encoding="utf-8", errors="surrogatepass")
    return Choice.from_json(path).as_dict()


def task(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The data of a task of one's own."""
    from layerscope.evaluation.tasks import resolve_tasks

    spec = resolve_tasks(["Own"], data_dir=task_folder(folder, rng))[0]
    return spec.facts(spec.load())


def _lines(scene: Scene, what: str, path: Path, out: Path) -> list[list[str]]:
    """The command lines that can be given an input of some kind."""
    model, file, place = str(scene.model), str(path), str(out / "out")
    short = ["--out", place, "--max-length", "16"]
    texts = str(scene.model / "texts.txt")
    unlabeled, read = str(scene.other / "texts.txt"), ["--max-length", "16"]
    vectors = ["--out", f"{place}.parquet", *read]
    return {
        "model": [["profile", file, "--data", str(scene.model / "texts.txt"), "--metrics", "prompt_entropy", *short]],
        "texts": [
            ["profile", model, "--data", file, "--metrics", "prompt_entropy,dime", "--limit", "9", *short],
        ],
        "labels": [
            ["select", model, "--labels", file],
            ["probe", model, "--data", file, "--heads", "mean", *short],
        ],
        "tasks": [["evaluate", model, "--tasks", "Own", "--data-dir", file, "--option", "scoring_workers=0", *short]],
        "embed texts": [
            ["embed", model, "--data", file, *vectors], ["search", model, "words", "--data", file, *read],
            ["search", model, "words", "--data", file, "--json", *read],
            ["compare", model, str(scene.other), "--data", file],
        ],
        "embed labels": [["compare", model, str(scene.other), "--data", unlabeled, "--labels", file]],
        "embed model": [
            ["embed", file, "--data", texts, *vectors], ["search", file, "words", "--data", texts, *read],
            ["search", file, "words", "--data", str(scene.vectors), *read],
            ["compare", str(scene.other), file, "--data", texts],
        ],
        "embed vectors": [
            ["search", model, "words", "--data", file, *read], ["search", model, "words", "--data", file, "--json", *read],
            ["embed", model, "--data", texts, "--out", file, *read], ["embed", model, "--data", file, *vectors],
            ["embed", model, "--data", texts, "--out", file, "--overwrite", *read],
        ],
        "embed stopped": [["embed", model, "--data", texts, "--out", file, *read]],
        "run": [
            ["report", file, "--out", f"{place}.html"],
            ["select", file], ["select", file, "--json"],
            ["export", model, "--choice", file, "--out", place],
        ],
    }[what]  # fmt: skip


def command(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A command line on a mutated input of any kind."""
    what = str(rng.choice(["model", "texts", "labels", "tasks", "run", "run", "run"]))
    if what in ("model", "run"):
        path = (model_folder if what == "model" else run_folder)(scene, folder, rng)
    else:
        path = {
            "texts": texts_file,
            "labels": labels_file,
            "tasks": task_folder,
        }[what](folder, rng)
    return _command(scene, what, path, folder, rng)


def embedding(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """`embed`, `search` and `compare` on mutated texts, labels, models and vectors, or on what a
    stopped `embed` left."""
    what = str(rng.choice(["texts", "labels", "model", "vectors", "stopped"]))
    if what == "stopped":
        path, work = folder / "v.parquet", folder / ".v.parquet.embedding"
        work.mkdir()
        for name in ("parts.json", "part-000000.parquet", "run.lock"):
            if rng.random() < 0.6:
                (work / name).write_bytes(
                    mutate(scene.vectors.read_bytes() if "part-" in name else b'{"parts": {}}', rng)
                )
    elif what == "model":
        path = model_folder(scene, folder, rng)
    else:
        path = (
            vectors_file(scene, folder, rng)
            if what == "vectors"
            else (texts_file if what == "texts" else labels_file)(folder, rng)
        )
    return _command(scene, f"embed {what}", path, folder, rng)


def _command(scene: Scene, what: str, path: Path, folder: Path, rng: np.random.Generator) -> None:
    from layerscope.cli.app import main

    lines = _lines(scene, what, path, folder)
    before, sys.argv = sys.argv, ["layerscope", *lines[int(rng.integers(len(lines)))]]
    try:
        main()
    except SystemExit as leaving:
        if leaving.code:
            raise LayerscopeError(f"it ended with {leaving.code}") from None
    finally:
        sys.argv = before


CASES: dict[str, Case] = {
    "corpus": corpus, "rows": rows, "labels": labels, "model": model, "run": run,
    "choice": choice, "task": task, "command": command,
    "layer_map": layer_map, "embedding": embedding,
}  # fmt: skip


# --- running them ---


def limit_memory(more: int = 4 * 2**30) -> None:
    """Let an input that asks for gigabytes end in a MemoryError, which is a defect, and not in a
    machine without memory.

    What is limited are addresses, of which every thread that a library starts on a core reserves
    some.
    """
    more += 2**28 * (os.cpu_count() or 1)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as stream:
            now = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(
            resource.RLIMIT_AS, (now + more, resource.getrlimit(resource.RLIMIT_AS)[1])
        )


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"no answer after {_LONGEST} seconds")


def fuzz(name: str, count: int, seed: int) -> dict[str, Any]:
    """So many mutated inputs of one kind; which of them ended neither in a result nor in a clear
    error."""
    import torch

    torch.set_num_threads(1)
    limit_memory()
    home = Path(tempfile.mkdtemp(prefix="layerscope-fuzz-"))
    os.environ.update(
        LAYERSCOPE_CACHE=str(home / "cache"), LAYERSCOPE_DEBUG="1", HF_HUB_OFFLINE="1"
    )
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _too_long)
    scene, clock = make_scene(home), time.monotonic()
    found: dict[str, Any] = {"input": name, "inputs": 0, "refused": 0, "defects": []}
    for number in range(count):
        folder = home / "case"
        folder.mkdir()
        rng = np.random.default_rng([seed, sorted(CASES).index(name), number])
        found["inputs"] += 1
        try:
            with (
                warnings.catch_warnings(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                warnings.simplefilter("ignore")
                signal.alarm(_LONGEST)
                CASES[name](scene, folder, rng)
        except LayerscopeError as error:
            found["refused"] += 1
            if any(odd in str(error) for odd in ("\x1b", "Traceback")) or not str(error).strip():
                found["defects"].append(
                    f"{name} {number}: an error that a terminal obeys, or that says nothing: {error!r}"
                )
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = next(
                (
                    f
                    for f in reversed(traceback.extract_tb(error.__traceback__))
                    if "/layerscope/" in f.filename
                ),
                where,
            )
            place = f"{Path(own.filename).name}:{own.lineno} … {Path(where.filename).name}:{where.lineno}"
            found["defects"].append(
                f"{name} {number}: {type(error).__name__}: {str(error)[:150]} ({place})"
            )
        finally:
            signal.alarm(0)
        shutil.rmtree(folder)
    shutil.rmtree(home, ignore_errors=True)
    return {**found, "seconds": round(time.monotonic() - clock)}


if __name__ == "__main__":
    print(json.dumps(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
