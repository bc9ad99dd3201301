"""The killer: runs of every command, ended without warning at a step drawn from a seed, resumed,
and compared.

    python -m tests.faults.killer profile 100 0      # a command, how many kills, a seed

A process imports everything once and forks; it starts no threads itself, which would not survive
that. The child runs the command and is killed when it is about to make some file appear, or to
remove one. Then another child goes on, until one ends by itself. What is on disk then must be what
an undisturbed run leaves. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.commands import Commands, same, tables

LEFT = (".part", ".embedding", ".improving", ".exporting")
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


def forked(work: Callable[[], Any], first: Callable[[], Any] = lambda: None) -> tuple[int, str]:
    """Run in a child, after what is to come `first`: its exit code (negative: a signal) and what it
    said of an error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            first()
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


Fate = Callable[[], Any]  # what a child does first, and dies of later


def by_step(
    run: Callable[[Path], Any], home: Path
) -> tuple[dict[str, Any], Callable[[np.random.Generator], Fate]]:
    """What is known of an undisturbed run, and how to draw the step at which a child is killed."""
    steps = count_steps(lambda: run(home / "counted"), home)
    return {"steps": steps}, lambda rng: partial(arm, int(rng.integers(1, steps + 1)))


def kill(name: str, count: int, seed: int, means: Any = by_step) -> dict[str, Any]:
    """So many kills of one command."""
    home = Path(tempfile.mkdtemp(prefix="layerscope-killer-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    commands = Commands(home, [name])
    run = getattr(commands, name)
    started = time.monotonic()
    code, said = forked(lambda: run(home / "whole"))
    assert code == 0, said
    facts, draw = means(run, home)
    rng = np.random.default_rng([seed, sum(name.encode())])
    result: dict[str, Any] = {
        "command": name,
        "kills": 0,
        "runs": 0,
        **facts,
        "wrong": [],
        "errors": [],
        "left": [],
    }
    while result["kills"] < count and len(result["errors"]) < 20:
        out = home / f"case-{result['runs']}"
        result["runs"] += 1
        story = []
        for _ in range(12):
            fate = draw(rng) if len(story) < 1 + int(rng.integers(3)) else None
            code, said = forked(lambda out=out: run(out), *([fate] if fate else []))
            story.append(fate.args[0] if fate else 0)
            if code != -signal.SIGKILL:
                break
            result["kills"] += 1
        if code not in (0, -signal.SIGKILL):
            result["errors"].append(f"{story}: {said}")
        elif code == 0:
            if forked(lambda out=out: _compare(out, home / "whole"))[0]:
                result["wrong"].append(str(story))
            result["left"] += [
                f"{story}: {path.name}"
                for path in out.rglob("*")
                if path.name.endswith(LEFT) or path.name == "shards"
            ]
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    return {**result, "seconds": round(time.monotonic() - started)}


def _compare(out: Path, whole: Path) -> None:
    """Raise where what is on disk is not what an undisturbed run leaves. Read, not computed."""
    assert same(tables(out), tables(whole))


if __name__ == "__main__":
    what, times, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(kill(what, times, start)))
