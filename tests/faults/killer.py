"""The killer: runs of every command, ended without warning at a step drawn from a seed, resumed, and compared.

    python -m tests.faults.killer profile 100 0      # a command, how many kills, a seed
    python -m tests.faults.killer race 20 0          # two and three processes on one folder

A process imports everything once and forks; it starts no threads itself, which would not survive that. The child runs the command
and is killed when it is about to make some file appear, or to remove one. Then another child goes on, until one ends by itself.
What is on disk then must be what an undisturbed run leaves. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

TEXTS = [f"text number {i} of some, about {'this and that ' * (i % 4)}and the rest" for i in range(14)]
Tables = dict[str, pd.DataFrame]


class Commands:
    """Every command on tiny models, as functions of a folder; each returns its tables."""

    def __init__(self, home: Path) -> None:
        import torch

        from tests.evaluation.support import write_tasks
        from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

        torch.set_num_threads(1)
        self.home, self.model = home, tiny_model("llama")
        self.folder = home / "model"
        build_tiny("llama").save_pretrained(self.folder)
        tiny_tokenizer().save_pretrained(self.folder)
        (home / "texts.txt").write_text("\n".join(TEXTS))
        self.data = write_tasks(home / "data", pairs=12, texts=12)
        import layerscope.exporting
        import layerscope.improving.job
        import layerscope.probing
        import layerscope.studies.run
        import layerscope.sweeps.run  # noqa: F401 - here, and not in every child

        self.judge = tiny_model("bert", seed=3)
        self.judge.identity["sentence_encoder"] = True

    def profile(self, out: Path) -> Tables:
        """A profile in shards of three prompts."""
        from layerscope.profiling import job, profile

        job.choose_shard_size = lambda *_: 3
        profile(self.model, TEXTS, out=out / "run", views=2, permutations=2, max_length=24, progress=False)
        return _tables(out / "run")

    def evaluate(self, out: Path) -> Tables:
        """Two tasks, two readouts, a store of its own."""
        from layerscope import evaluate

        readouts = ["plain/mean/raw/keep/none", "plain/last/applied/keep/corpus"]
        evaluate(
            self.model, ["Pairs", "Topics"], data_dir=self.data, out=out / "run", store=out / "store", readouts=readouts,
            scoring_workers=0, layers=[0, 3], progress=False,
        )  # fmt: skip
        return _tables(out / "run")

    def probe(self, out: Path) -> Tables:
        """Two kinds of probes, every epoch written down."""
        from layerscope.probing import probe, training

        training._WRITE_EVERY = 0.0
        labels = ["xyz"[i % 3] for i in range(60)]
        texts = [label * 3 + f" item {i}" for i, label in enumerate(labels)]
        settings: dict[str, Any] = {"epochs": 3, "trial": 1, "learning_rates": (1e-2, 3e-2), "progress": False}
        probe(self.model, texts=texts, labels=labels, heads=["mean", "attention"], out=out / "run", **settings)
        return _tables(out / "run")

    def study(self, out: Path) -> Tables:
        """Steps inside blocks: a profile, and ranks of its own."""
        from layerscope.studies.run import study

        study("sublayers", self.model, data=TEXTS, out=out / "run", max_length=24, progress=False)
        return _tables(out / "run")

    def sweep(self, out: Path) -> Tables:
        """One model on one corpus, twice."""
        from layerscope.sweeps.run import sweep

        settings = {"metrics": ["prompt_entropy", "dataset_entropy"], "max_length": 24}
        plan = {"models": [str(self.folder)], "corpora": [str(self.home / "texts.txt")], "profile": settings}
        sweep(
            {**plan, "facts": {str(self.folder): {"parameters": 1000, "blocks": 3, "width": 32}}}, out=out / "run", progress=False
        )
        return {"sweep": pd.read_parquet(out / "run" / "sweep.parquet")}

    def improve(self, out: Path) -> Tables:
        """A readout chosen by a judge, and its folder."""
        import layerscope

        settings: dict[str, Any] = {"max_length": 48, "progress": False, "templates": ["one-word"], "judge": self.judge}
        texts = [f"{text} {i}" for i in range(3) for text in TEXTS]
        layerscope.improve(self.model, texts, out=out / "run", overwrite=True, **settings)
        return _tables(out / "run")

    def export(self, out: Path) -> Tables:
        """A layer as a folder of its own."""
        from layerscope.exporting import export

        made = export(self.model, 2, readout="plain/mean/raw/keep/none", out=out / "run", overwrite=True)
        files = sorted(path.name for path in made.path.iterdir())
        return {"files": pd.DataFrame({"name": files}), "facts": pd.DataFrame({"layer": [made.layer]})}


def _tables(path: Path) -> Tables:
    from layerscope import load_run

    return load_run(path).tables()


STEPS = ("replace", "rename", "unlink", "mkdir", "rmdir", "fsync")


def arm(step: int) -> None:
    """Kill this process when it is about to do its `step`-th thing to the disk."""
    left = [step]

    def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return own(*args, **kwargs)

        return dying

    for name in STEPS:
        setattr(os, name, wrap(getattr(os, name)))


def forked(work: Callable[[], Any], step: int = 0) -> tuple[int, str]:
    """Run in a child, killed at a step (0: never): its exit code (negative: a signal) and what it said of an error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            if step:
                arm(step)
            work()
            code = 0
        except BaseException as error:
            from layerscope.errors import LayerscopeError

            clear = isinstance(error, LayerscopeError)
            os.write(write, (str(error) if clear else traceback.format_exc()).encode()[-4000:])
            code = 3 if clear else 4
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode("utf-8", "replace")
    status = os.waitpid(child, 0)[1]
    return (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), said


def count_steps(work: Callable[[], Any], folder: Path) -> int:
    """How many things an undisturbed run does to the disk."""
    note = folder / "steps"

    def counting() -> None:
        done = [0]

        def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                done[0] += 1
                return own(*args, **kwargs)

            return counted

        for name in STEPS:
            setattr(os, name, wrap(getattr(os, name)))
        work()
        note.write_text(str(done[0]))

    code, said = forked(counting)
    assert code == 0, said
    return int(note.read_text())


def same(a: Tables, b: Tables) -> bool:
    """Whether tables hold the same, up to what other batches round otherwise."""
    try:
        for name, table in a.items():
            pd.testing.assert_frame_equal(table, b[name], rtol=1e-5, atol=1e-6)
    except (AssertionError, KeyError):
        return False
    return a.keys() == b.keys()


def kill(name: str, count: int, seed: int) -> dict[str, Any]:
    """So many kills of one command."""
    home = Path(tempfile.mkdtemp(prefix="layerscope-killer-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    commands = Commands(home)
    run = getattr(commands, name)
    code, said = forked(lambda: run(home / "whole"))
    assert code == 0, said
    steps = count_steps(lambda: run(home / "counted"), home)
    rng = np.random.default_rng([seed, sum(name.encode())])
    result: dict[str, Any] = {"command": name, "kills": 0, "runs": 0, "steps": steps, "wrong": [], "errors": [], "left": []}
    while result["kills"] < count:
        out = home / f"case-{result['runs']}"
        result["runs"] += 1
        story = []
        for _ in range(12):
            step = int(rng.integers(1, steps + 1)) if len(story) < 1 + int(rng.integers(3)) else 0
            code, said = forked(lambda out=out: run(out), step)
            story.append(step)
            if code != -signal.SIGKILL:
                break
            result["kills"] += 1
        if code not in (0, -signal.SIGKILL):
            result["errors"].append(f"{story}: {said}")
        elif code == 0:
            if forked(lambda out=out: _compare(name, run, out, home / "whole"))[0]:
                result["wrong"].append(str(story))
            result["left"] += [
                f"{story}: {path.name}" for path in out.rglob("*") if path.name.endswith(".part") or path.name == "shards"
            ]
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    return result


def _compare(name: str, run: Callable[[Path], Tables], out: Path, whole: Path) -> None:
    """Raise where what is on disk is not what an undisturbed run leaves. Read, not computed."""

    def read(folder: Path) -> Tables:
        if name == "sweep":
            return {"sweep": pd.read_parquet(folder / "run" / "sweep.parquet")}
        return run(folder) if name == "export" else _tables(folder / "run")

    assert same(read(out), read(whole))


def race(count: int, seed: int) -> dict[str, Any]:
    """Two or three processes on one folder: one finishes, the others are refused or find it finished."""
    home = Path(tempfile.mkdtemp(prefix="layerscope-race-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    commands = Commands(home)
    names = ("profile", "probe", "study", "evaluate")
    for name in names:
        code, said = forked(lambda name=name: getattr(commands, name)(home / f"whole-{name}"))
        assert code == 0, said
    result: dict[str, Any] = {"command": "race", "races": 0, "processes": 0, "wrong": [], "errors": [], "refused": 0}
    rng = np.random.default_rng(seed)
    for number in range(count):
        name, out = names[number % len(names)], home / f"race-{number}"
        children = []
        for _ in range(int(rng.integers(2, 4))):
            child = os.fork()
            if child == 0:
                code = 0
                try:
                    null = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(null, 1)
                    os.dup2(null, 2)
                    getattr(commands, name)(out)
                except BaseException as error:
                    from layerscope.errors import RunFolderError

                    code = 3 if isinstance(error, RunFolderError) and "another process is writing" in str(error) else 4
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] >> 8 for child in children]
        result["races"] += 1
        result["processes"] += len(codes)
        result["refused"] += codes.count(3)
        if 0 not in codes or 4 in codes:
            result["errors"].append(f"{name}: {codes}")
        elif forked(lambda out=out, name=name: _compare(name, getattr(commands, name), out, home / f"whole-{name}"))[0]:
            result["wrong"].append(name)
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    return result


if __name__ == "__main__":
    what, times, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(race(times, start) if what == "race" else kill(what, times, start)))
