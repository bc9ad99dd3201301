"""Evaluations in processes of their own that note their work and, at a chosen point, wait to be
killed.

Run as a program it imports everything, then starts a run for every line it reads: imports take
longer than these runs do. Scoring processes are started by a function of this file, so that they
note and wait likewise.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from layerscope.evaluation import scoring
from layerscope.models import LoadedModel

_forward, _score, _start = LoadedModel.forward, scoring._score, scoring._start


def note(what: str, count: int = 1) -> None:
    """Write down work, and wait where there is enough of it."""
    log = Path(os.environ["NOTES"])
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"{what} {os.getpid()}\n" * count)
    done = sum(line.startswith(what) for line in log.read_text(encoding="utf-8").splitlines())
    if os.environ["STOP"] == what and done >= int(os.environ["AFTER"]):
        Path(os.environ["MARK"]).touch()
        time.sleep(600)


def noted_forward(self: LoadedModel, input_ids: Any, *rest: Any, **named: Any) -> Any:
    note("text", len(input_ids))
    return _forward(self, input_ids, *rest, **named)


def noted_score(context: Any, task: Any, job: Any) -> Any:
    result = _score(context, task, job)
    note("job")
    return result


def start_noting() -> None:
    """Prepare a process that scores; its import has made it note."""
    _start()


if __name__ != "__main__":
    setattr(LoadedModel, "forward", noted_forward)  # noqa: B010
    scoring._score = noted_score
else:
    import json
    import sys

    import mteb  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    from layerscope import evaluate
    from tests.evaluation import interrupted
    from tests.tiny import tiny_model

    scoring._start = interrupted.start_noting

    for line in iter(sys.stdin.readline, ""):  # nothing has run here yet, so that forking is safe
        given = json.loads(line)
        os.environ.update(given.pop("environment"))
        process = os.fork()
        if process == 0:
            evaluate(tiny_model(), **given)
            os._exit(0)
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
